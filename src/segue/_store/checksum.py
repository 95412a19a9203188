"""Checksums: XXH3-128 over data, in blocks so that parts can be verified alone; SHA-256 over the manifest.

Against accidents, not against forgery: whoever can change the data can change the commit line too.
"""

from __future__ import annotations

import hashlib

import xxhash

BLOCK_BYTES = 64 * 2**20
"""A tensor's data is hashed in blocks of this size, counted from its first byte; the last may be shorter."""
DIGEST_DIGITS = 32


def digest(data: bytes | memoryview) -> str:
    """Return the XXH3-128 of some bytes as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def num_blocks(num_bytes: int) -> int:
    """Return how many digests cover this many bytes; an empty tensor has one, that of nothing."""
    return max(1, -(-num_bytes // BLOCK_BYTES))


class BlockHasher:
    """Digests of consecutive blocks of a stream of bytes."""

    __slots__ = ("_digests", "_hasher", "_room")

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._hasher = xxhash.xxh3_128()
        self._room = BLOCK_BYTES

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        while len(data) > self._room:
            self._hasher.update(data[: self._room])
            data = data[self._room :]
            self._next_block()
        self._hasher.update(data)
        self._room -= len(data)
        if self._room == 0:
            self._next_block()

    def _next_block(self) -> None:
        self._digests.append(self._hasher.hexdigest())
        self._hasher.reset()
        self._room = BLOCK_BYTES

    def digests(self) -> list[str]:
        """Return the digests of everything taken so far; the stream must be at its end."""
        if self._room == BLOCK_BYTES and self._digests:
            return self._digests
        return [*self._digests, self._hasher.hexdigest()]


def commit_line(manifest: bytes, name: str) -> bytes:
    """Make the line that `sha256sum -c` understands: the digest, two spaces, the file's name."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {name}\n".encode("ascii")
