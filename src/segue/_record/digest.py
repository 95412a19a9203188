"""Digests of a record: equal exactly when every bit, type and layout is equal.

XXH3-128, as in the store: a checksum against accidents, not a signature. Two records of one boundary give the
same digests in any process, whatever its hash seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from segue._record.precision import in_own_dtypes
from segue._record.tensors import Blob, CapturedTensor, read_bytes
from segue._record.training import TrainingRecord
from segue._record.tree import Path, encode

# What a training *is*. Its environment, lineage and the caller's step count are about it.
STATE_SECTIONS = (
    "model", "optimizers", "schedulers", "gradients", "window", "components", "streams", "caller_state",
    "model_state", "groups", "opaque_optimizers", "private_streams",
)  # fmt: skip


def tree_digest(tree: Any) -> str:
    """Digest one tree, as 32 hexadecimal digits."""
    hasher = xxhash.xxh3_128()

    def absorb(_path: Path, blob: Blob) -> str:
        digest = xxhash.xxh3_128_hexdigest(read_bytes(blob.source))
        if isinstance(blob, CapturedTensor):
            return f"{blob.dtype} {blob.shape} {blob.strides} {digest}"
        return digest

    encoded = encode(tree, absorb)
    hasher.update(json.dumps(encoded, sort_keys=True, ensure_ascii=True).encode())
    return hasher.hexdigest()


def digests(record: TrainingRecord) -> dict[str, str]:
    """Digest each section that is state, each tensor in its own dtype: an exact conversion changes none."""
    sections: Mapping[str, Any] = in_own_dtypes(record).sections()
    return {name: tree_digest(sections[name]) for name in STATE_SECTIONS if name in sections}


def total(section_digests: Mapping[str, str]) -> str:
    """Combine the digests of sections into one."""
    return xxhash.xxh3_128_hexdigest(json.dumps(dict(section_digests), sort_keys=True).encode())
