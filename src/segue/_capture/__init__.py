"""Live PyTorch objects to records and back. Nothing here touches a file.

Each file knows one kind of object and has three verbs: `capture_*` reads it into a record and changes nothing,
`check_*` yields what would not fit and changes nothing, `plan_*` allocates what the restore needs and returns the
writes. Start with `module` and `optimizer`.
"""
