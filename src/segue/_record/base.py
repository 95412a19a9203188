"""The part of a model that a record leaves out, by name and identity: what must be there already when it is restored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

from segue.errors import InvalidRecord

DIGEST_DIGITS = 32
SOURCES = ("digest", "declared", "model_state")


@dataclass(frozen=True)
class BaseIdentity:
    """What a frozen base is, by content; from `segue.base_identity`. A value: it holds nothing of the model."""

    digest: str
    """Of names, dtypes, shapes and bytes of everything frozen, as 32 hexadecimal digits."""
    tensors: Mapping[str, str]
    """The digest of each tensor's bytes, by its name in the model without adapters."""

    def __str__(self) -> str:
        return self.digest

    def __repr__(self) -> str:
        return f"BaseIdentity({self.digest}, {len(self.tensors)} tensors)"


@dataclass(frozen=True)
class BaseRecord:
    """The omitted tensors of a model, and what tells them from those of another.

    Source of the idea: the adapter record of the seeds, which names its base by a declared string. A digest of the
    content is stronger, and both are possible here.
    """

    source: str
    """`digest`: by the bytes of each omitted tensor. `declared`: by the caller's own string. `model_state`: by whoever
    restores the model; `identity` is its class."""
    identity: str
    """The digest of the whole base, the caller's string, or a class name; never empty."""
    omitted: Mapping[str, str | None]
    """By canonical name: the digest of a tensor's bytes, or `None` where the base is declared."""

    def __post_init__(self) -> None:
        """Refuse a base that names nothing."""
        if self.source not in SOURCES or not self.identity:
            raise InvalidRecord(
                "a base has no identity", code="record.base", expected=SOURCES,
                found=(self.source, self.identity),
            )  # fmt: skip
        for name, digest in self.omitted.items():
            if (digest is not None) != (self.source == "digest") or not _is_digest(digest):
                raise InvalidRecord(
                    "bad digest of an omitted tensor", code="record.base", where=name, found=digest
                )

    @property
    def shown(self) -> str:
        """The identity for people: a digest is cut."""
        return self.identity[:12] if self.source == "digest" else self.identity


def _is_digest(digest: str | None) -> bool:
    return digest is None or (len(digest) == DIGEST_DIGITS and set(digest) <= set("0123456789abcdef"))


def combined_digest(lines: Iterable[tuple[object, ...]]) -> str:
    """Combine what identifies each tensor into one digest, whatever order they come in."""
    text = json.dumps(sorted([*map(list, lines)], key=repr), ensure_ascii=True)
    return xxhash.xxh3_128_hexdigest(text.encode())
