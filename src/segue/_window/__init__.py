"""Accumulation windows: the sums between two optimizer updates.

`plain` divides by microbatches, `weighted` by the sum of weights (tokens); `sums` is what they share. An accumulator
is a `PendingSource` to `_capture`, and neither imports the other: sums are keyed by the parameter object, and only
capture knows names.
"""
