"""Records <-> bytes that survive: directories of checkpoints, written durably and read as hostile input.

Start with `store.DirectoryStore`; `commit.commit` is the write protocol in one screen, `reader.StoredCheckpoint`
the other direction, and `docs/explanation/format.md` the format. Nothing here may touch a module or an optimizer,
run code that came from a file, or modify a checkpoint once it has its name.
"""
