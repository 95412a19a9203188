"""What an accumulation window costs at each microbatch: `python -m segue.bench.accumulation`.

Side by side, in turn, in one process: `add` of a window; one `torch._foreach_add_` over the same gradients and sums,
which is the least that adding them up can cost; and whole backwards with a window and with plain `.grad`
accumulation. Read ratios, not milliseconds: each is the median of the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from segue import WeightedAccumulator

MICROBATCHES = 4


@dataclass(frozen=True)
class Case:
    """Gradients of one kind."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    """Of parameters and gradients; sums are fp32."""
    weight: float = 1.0
    """Other than 1, gradients are of mean losses, and are multiplied by it."""


@dataclass(frozen=True)
class Result:
    """Medians over rounds."""

    case: str
    num_parameters: int
    num_elements: int
    add_ms: float
    foreach_ms: float
    add_ratio: float
    """`add` over `_foreach_add_`."""
    extra_ratio: float
    """What a microbatch takes longer than with plain `.grad` accumulation, over `_foreach_add_`."""
    whole_ratio: float
    """Backward and `add`, over backward with plain `.grad` accumulation."""
    finish_ms: float
    """`finish_mean`, once in a window."""
    window_bytes: int
    """Allocated by all calls to the accumulator in one window after the first."""


def cases(scale: float) -> list[Case]:
    """Return what is measured; `scale` makes it smaller."""
    large = ((2048, 2048),) * max(1, round(24 * scale))
    small = ((1280,),) * max(1, round(20_000 * scale))
    return [
        Case("large fp32", large, torch.float32),
        Case("large bf16", large, torch.bfloat16),
        Case("large fp32, weighted means", large, torch.float32, 3.0),
        Case("large bf16, weighted means", large, torch.bfloat16, 3.0),
        Case("small fp32", small, torch.float32),
        Case("small bf16", small, torch.bfloat16),
        Case("small bf16, weighted means", small, torch.bfloat16, 3.0),
    ]


class Deliver(torch.autograd.Function):
    """A backward that costs next to nothing: it gives each parameter a copy of a gradient that is there already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(1, requires_grad=True)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        return (None, *[gradient.clone() for gradient in ctx.gradients])


class Bench:
    """The live objects of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = nn.ParameterList(
            nn.Parameter(torch.zeros(shape, dtype=case.dtype)) for shape in case.shapes
        )
        self.parameters = list(self.model.parameters())
        self.gradients = [torch.full(shape, 0.5, dtype=case.dtype) for shape in case.shapes]
        self.sums = [torch.zeros(shape) for shape in case.shapes]
        self.window = WeightedAccumulator(self.model, microbatches=MICROBATCHES)

    def backward(self) -> None:
        Deliver.apply(self.gradients, *self.parameters).backward()  # type: ignore[no-untyped-call]

    def add(self) -> None:
        if self.case.weight == 1.0:
            self.window.add_sum(1.0)
        else:
            self.window.add_mean(self.case.weight)

    def backward_and_add(self) -> None:
        self.backward()
        self.add()

    def finish(self) -> None:
        self.window.finish_mean()

    def foreach(self) -> None:
        torch._foreach_add_(self.sums, self.gradients)

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def window_bytes(self) -> int:
        """Return what the accumulator allocates in one whole window."""
        total = 0
        for _ in range(MICROBATCHES):
            self.backward()
            total += allocated_by(self.add)
        total += allocated_by(self.finish)
        self.clear()
        return total


def seconds(call: Callable[[], None]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def allocated_by(call: Callable[[], None]) -> int:
    """Return how many bytes of tensor memory a call allocates, whether it frees them again or not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = profiled.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0)


def measure(case: Case, rounds: int) -> Result:
    """Measure one case: every method once in each round, each window's first microbatch left out."""
    bench = Bench(case)
    bench.window_bytes()  # the first window finds nothing to use again
    times: dict[str, list[float]] = {"add": [], "foreach": [], "whole": [], "plain": [], "finish": []}
    while len(times["plain"]) < rounds:
        bench.backward_and_add()
        for _ in range(MICROBATCHES - 1):
            bench.backward()
            times["add"].append(seconds(bench.add))
            times["foreach"].append(seconds(bench.foreach))
        times["finish"].append(seconds(bench.finish))
        bench.clear()
        _measure_whole(bench, times)
    return Result(
        case.name,
        len(bench.parameters),
        sum(parameter.numel() for parameter in bench.parameters),
        _median_ms(times["add"]),
        _median_ms(times["foreach"]),
        statistics.median(_ratios(times["add"], times["foreach"])),
        statistics.median(
            (whole - plain) / foreach
            for whole, plain, foreach in zip(times["whole"], times["plain"], times["foreach"], strict=True)
        ),
        statistics.median(_ratios(times["whole"], times["plain"])),
        _median_ms(times["finish"]),
        bench.window_bytes(),
    )


def _measure_whole(bench: Bench, times: dict[str, list[float]]) -> None:
    """Measure whole microbatches of a window, and as many that accumulate in `.grad`."""
    bench.backward_and_add()
    for _ in range(MICROBATCHES - 1):
        times["whole"].append(seconds(bench.backward_and_add))
    bench.window.finish_sums()
    bench.clear()
    bench.backward()
    for _ in range(MICROBATCHES - 1):
        times["plain"].append(seconds(bench.backward))
    bench.clear()


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def _median_ms(times: list[float]) -> float:
    return 1000 * statistics.median(times)


def table(results: list[Result]) -> str:
    """Lay results out in columns."""
    lines = [
        f"{'gradients':<28}{'tensors':>8}{'elements':>13}{'add ms':>9}{'foreach':>9}{'ratio':>7}{'extra':>7}"
        f"{'whole':>7}{'finish ms':>11}{'bytes':>9}"
    ]
    lines += [
        f"{item.case:<28}{item.num_parameters:>8}{item.num_elements:>13}{item.add_ms:>9.1f}{item.foreach_ms:>9.1f}"
        f"{item.add_ratio:>7.2f}{item.extra_ratio:>7.2f}{item.whole_ratio:>7.2f}{item.finish_ms:>11.1f}"
        f"{item.window_bytes:>9}"
        for item in results
    ]
    return "\n".join(lines)


LEGEND = """
ratio  add over one _foreach_add_ of the same gradients to fp32 sums
extra  what a whole microbatch takes longer than with plain .grad accumulation, over the same _foreach_add_
whole  backward and add over a backward that accumulates in .grad (a backward that only copies gradients)
bytes  of tensor memory allocated by the accumulator in one window after the first
"""


def main(argv: list[str] | None = None) -> int:
    """Measure all cases and print them; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m segue.bench.accumulation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="microbatches measured of each kind")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, 100 M elements")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        results = [measure(case, options.rounds) for case in cases(options.scale)]
    finally:
        torch.set_num_threads(threads)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print(table(results), LEGEND, sep="\n", end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
