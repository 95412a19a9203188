"""What an adapter's checkpoint must stand for: it holds nothing of the base, and no other base takes it.

Looked for in the files as bytes, without asking segue what is in them, and tried in a process of its own:
`python -m segue.demo.evidence SETTINGS`, a JSON file as `RunSettings` writes it, in the folder of the runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import segue
from segue._record.digest import digests
from segue.demo.base import write_neighbour
from segue.demo.child import CHECKPOINTS, FINAL
from segue.demo.loop import Parts, build
from segue.demo.settings import Role, RunSettings
from segue.errors import BaseMismatch, SegueError

EVIDENCE = "evidence.json"
OTHER_BASE = "other-base.safetensors"
BLOCK_BYTES = 64
_WORD_BYTES = 8


@dataclass(frozen=True)
class BaseSearch:
    """What of the base was found in the checkpoints, and whether the same search finds the adapter there."""

    num_checkpoint_bytes: int
    """Of the final checkpoint, all its files."""
    num_base_bytes: int
    num_checkpoints: int
    num_searched_bytes: int
    num_base_blocks: int
    """Different blocks of 64 bytes that the base consists of."""
    num_base_blocks_found: int
    found_in: tuple[str, ...]
    """Tensors of the base of which a block was found."""
    num_adapter_blocks: int
    num_adapter_blocks_found: int
    num_adapter_tensors: int
    names_missing: tuple[str, ...]
    """Tensors of the adapter that `model.safetensors` of the final checkpoint lacks."""
    names_unexpected: tuple[str, ...]
    """Tensors that it has besides."""

    @property
    def has_passed(self) -> bool:
        is_search_able = 0 < self.num_adapter_blocks == self.num_adapter_blocks_found
        finds_nothing = self.num_base_blocks > 0 and self.num_base_blocks_found == 0
        return is_search_able and finds_nothing and not (self.names_missing or self.names_unexpected)


@dataclass(frozen=True)
class Refusal:
    """What came of restoring a checkpoint over another base."""

    difference: str
    """How the other base differs."""
    error: str | None
    """The class of the error; `None` if the checkpoint was accepted."""
    code: str | None
    message: str
    changed: tuple[str, ...]
    """What of that training is not as it was before."""

    @property
    def has_passed(self) -> bool:
        return self.error == BaseMismatch.__name__ and not self.changed


@dataclass(frozen=True)
class Evidence:
    """Both findings."""

    search: BaseSearch
    refusal: Refusal

    def write(self, path: Path) -> None:
        """Write to a file; inverse of `read`."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read what `write` wrote."""
        fields = json.loads(path.read_text())
        search, refusal = fields["search"], fields["refusal"]
        lists = {name: tuple(search[name]) for name in ("found_in", "names_missing", "names_unexpected")}
        return cls(
            BaseSearch(**{**search, **lists}), Refusal(**{**refusal, "changed": tuple(refusal["changed"])})
        )


def search_base(
    final: Path, others: Sequence[Path], base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor]
) -> BaseSearch:
    """Search checkpoints for the bytes of a base, at every place of every file.

    The adapter is searched in the same way in the final one: a search that can't find what is there proves nothing.

    Args:
        final: The final checkpoint.
        others: Further checkpoints of the run.
        base: The tensors of the base.
        adapter: Those of the adapter as the final checkpoint must hold them, by their names in the model.

    Returns:
        What was found. Blocks that repeat one number of 8 bytes, such as zeros, are nobody's and not searched; nor is
        what is left of a tensor behind its last whole block.
    """
    base_blocks, adapter_blocks = _blocks(base), _blocks(adapter)
    final_files = [path.read_bytes() for path in _files(final)]
    files = [*final_files, *(path.read_bytes() for checkpoint in others for path in _files(checkpoint))]
    found = {block for data in files for block in _found(base_blocks, data)}
    adapter_found = {block for data in final_files for block in _found(adapter_blocks, data)}
    with safe_open(final / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    return BaseSearch(
        num_checkpoint_bytes=sum(map(len, final_files)),
        num_base_bytes=sum(tensor.nbytes for tensor in base.values()),
        num_checkpoints=1 + len(others),
        num_searched_bytes=sum(map(len, files)),
        num_base_blocks=len(base_blocks),
        num_base_blocks_found=len(found),
        found_in=tuple(sorted({base_blocks[block] for block in found})),
        num_adapter_blocks=len(adapter_blocks),
        num_adapter_blocks_found=len(adapter_found),
        num_adapter_tensors=len(adapter),
        names_missing=tuple(sorted(adapter.keys() - names)),
        names_unexpected=tuple(sorted(names - adapter.keys())),
    )


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def _blocks(tensors: Mapping[str, torch.Tensor]) -> dict[bytes, str]:
    """Cut tensors into blocks; each is mapped to the name of one tensor that has it."""
    blocks = {}
    for name, tensor in tensors.items():
        data = _data(tensor)
        for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            if block != block[:_WORD_BYTES] * (BLOCK_BYTES // _WORD_BYTES):
                blocks[block] = name
    return blocks


def _data(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _found(blocks: Mapping[bytes, str], data: bytes) -> Iterator[bytes]:
    for start in range(len(data) - BLOCK_BYTES + 1):
        block = data[start : start + BLOCK_BYTES]
        if block in blocks:
            yield block


def try_over(
    training: segue.Training, model: nn.Module, record: segue.TrainingRecord, difference: str
) -> Refusal:
    """Restore a record into a training whose base differs, and tell what came of it.

    Args:
        training: Built over the other base.
        model: Its model.
        record: Captured over the right one.
        difference: How the bases differ.
    """
    before = _everything(training, model)
    error = None
    try:
        training.restore(record)
    except SegueError as refused:
        error = refused
    after = _everything(training, model)
    return Refusal(
        difference=difference,
        error=None if error is None else type(error).__name__,
        code=None if error is None else error.code,
        message="" if error is None else str(error),
        changed=tuple(sorted(name for name in {**before, **after} if after.get(name) != before.get(name))),
    )


def _everything(training: segue.Training, model: nn.Module) -> dict[str, object]:
    """Digest what the training captures, and keep the bytes of the model, the base's too, which it does not capture."""
    tensors = {f"model {name}": _data(tensor) for name, tensor in model.state_dict().items()}
    return {**digests(training.capture()), **tensors}


def examine(run: RunSettings, directory: Path) -> Evidence:
    """Examine the checkpoints that segue's run has left.

    Args:
        run: With an adapter.
        directory: Of the runs; gets the file of another base.
    """
    if run.adapter is None:
        raise ValueError("without an adapter there is no base to look for")
    base, kept = Path(run.adapter.base), directory / Role.SEGUE.value
    record = segue.load(kept / FINAL)
    parts = build(run)
    parts.training.restore(record)
    others = sorted((kept / CHECKPOINTS).glob("ckpt-*"))
    search = search_base(kept / FINAL, others, load_file(base), _trained(parts))
    difference = write_neighbour(base, directory / OTHER_BASE, run.seed)
    other = build(replace(run, adapter=replace(run.adapter, base=str(directory / OTHER_BASE))))
    return Evidence(search, try_over(other.training, other.model, record, difference))


def _trained(parts: Parts) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach()
        for name, parameter in parts.model.named_parameters()
        if parameter.requires_grad
    }


def main(settings: Path) -> None:
    """Examine the runs beside the settings, and leave the evidence there."""
    torch.set_num_threads(1)
    examine(RunSettings.read(settings), settings.parent).write(settings.parent / EVIDENCE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
