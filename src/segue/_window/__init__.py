"""Accumulation windows: the sums between two optimizer updates.

`plain` divides by microbatches, `weighted` by the sum of weights (tokens); `window` is what both are. Each microbatch is
checked as a whole (`microbatch`, `refusals`), then added (`sums`, `arithmetic`, `sparse`). An accumulator is a
`PendingSource` to `_capture`, and neither imports the other: sums are keyed by the parameter object, and only capture
knows names. `_session.accumulators` joins the two into what people use.
"""
