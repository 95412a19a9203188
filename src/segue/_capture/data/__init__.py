"""Where a training stands in its data: one position, over each kind of loader that is in use."""
