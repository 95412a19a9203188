"""Results of runs, made by hand."""

from segue.demo.trial import RunResult


def result(role, losses, **digests):
    """Make a result; a loss given as a list was computed more than once."""
    values = {
        microbatch: [value.hex() for value in (loss if isinstance(loss, list) else [loss])]
        for microbatch, loss in enumerate(losses, start=1)
    }
    return RunResult(role, losses=values, digests={"model": "a", "streams": "b", **digests})
