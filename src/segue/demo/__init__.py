"""The demonstration: one training run three times, whole, continued by segue, and continued from state dicts.

`loop` is the training, written as a user would; `keepers` are the three ways of keeping it; `child` is one process
of a run, and `trial` the parent that starts the processes, kills them where `kills` says, and reads their `journal`.
`verdict` compares the three. Nothing here prints: the command `segue demo` does.
"""
