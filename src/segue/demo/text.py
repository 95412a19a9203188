"""The text of the demo, and the microbatches that are cut from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

# Marks padding among the targets; the value that `cross_entropy` ignores by default.
PADDING = -100


def read_text(path: Path | None) -> bytes:
    """Return the text to train on: a file, or else the language reference that ships inside CPython."""
    if path is not None:
        return path.read_bytes()
    from pydoc_data.topics import topics  # half a megabyte, needed by the demo alone

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


@dataclass(frozen=True)
class Microbatch:
    """Some sequences of unequal length, padded at the end."""

    tokens: torch.Tensor
    """int64 of shape (batch, length)."""
    targets: torch.Tensor
    """int64 of shape (batch, length): the next byte, or `PADDING`."""

    @property
    def num_tokens(self) -> int:
        return int((self.targets != PADDING).sum())


@dataclass(frozen=True)
class Corpus:
    """A text from which microbatch number `index` is always the same, in any process.

    So the place in the data is one integer, which all three runs of the demo keep: none is at a disadvantage here.
    """

    text: torch.Tensor
    """uint8 of shape (bytes,)."""
    context: int
    num_sequences: int
    seed: int

    @classmethod
    def of(cls, text: bytes, *, context: int, num_sequences: int, seed: int) -> Corpus:
        """Wrap a text.

        Raises:
            ValueError: If the text is shorter than two sequences.
        """
        if len(text) < 2 * (context + 1):
            raise ValueError(
                f"the text has {len(text)} bytes; at least {2 * (context + 1)} are needed for sequences of {context}"
            )
        return cls(torch.frombuffer(bytearray(text), dtype=torch.uint8), context, num_sequences, seed)

    def microbatch(self, index: int) -> Microbatch:
        """Cut a microbatch from random places, each sequence of a random length from a quarter of the context up."""
        # A generator of its own: drawing data must not move the stream that dropout draws from.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        shape = (self.num_sequences, 1)
        starts = torch.randint(0, self.text.numel() - self.context, shape, generator=generator)
        lengths = torch.randint(self.context // 4, self.context + 1, shape, generator=generator)
        offsets = torch.arange(self.context + 1)
        cut = self.text[starts + offsets].to(torch.int64)
        targets = cut[:, 1:].masked_fill(offsets[:-1] >= lengths, PADDING)
        return Microbatch(cut[:, :-1], targets)
