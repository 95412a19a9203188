"""Where the parts are joined: a training's live objects with records, records with a store, and both with policy.

`training` binds and captures, `plan` is a restore as data, `checkpointer` decides when to save and which to resume,
`writer` is the one background thread, `retention` says what to delete, `cadence` when to save, `preemption` listens
for signals.
"""
