"""An adapter so small that its training takes milliseconds, its base, and its checkpoints."""

from pathlib import Path

import torch

from segue.demo.base import BASE, write_base
from segue.demo.loop import build
from segue.demo.model import Decoder, ModelSize
from segue.demo.settings import AdapterSettings, RunSettings

SIZE = ModelSize(width=16, num_layers=1, num_heads=2, context=12)


def small_run(directory: Path, **options) -> RunSettings:
    """Settings of a tiny adapter, whose base is written; all values are random, so that none is a constant block."""
    base = directory / BASE
    # Not the seed of the run: from the same stream the adapter would get some of the base's values.
    torch.manual_seed(12345)
    model = Decoder(SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    write_base(model, base)
    return RunSettings(model=SIZE, num_sequences=2, adapter=AdapterSettings(str(base), rank=2), **options)


def parts_of(run: RunSettings):
    """Build a training, with an adapter that is not zero."""
    parts = build(run)
    with torch.no_grad():
        for parameter in trained(parts.model).values():
            parameter.normal_()
    return parts


def trained(model) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
