"""Making checkpoints lie, and reading them."""

import hashlib
import json
import os
import struct

import pytest
import xxhash

from segue._store.archive import open_checkpoint
from segue.errors import SegueError, StoreError


def read_all(path) -> None:
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        checkpoint.record().verify()


def refused(path, error=StoreError, match=None, entry=None) -> StoreError:
    """Check that a checkpoint is refused with an error of this library that names the place, and is left alone."""
    before = snapshot(path)
    with pytest.raises(error, match=match) as caught:
        read_all(path)
    assert isinstance(caught.value, StoreError)
    assert os.fspath(path) in str(caught.value)
    if entry is not None:
        assert entry in str(caught.value)
    assert all(31 < ord(character) < 127 or character == "\n" for character in str(caught.value))
    assert snapshot(path) == before
    return caught.value


def snapshot(path):
    found = {}
    for entry in os.scandir(path):
        status = entry.stat(follow_symlinks=False)
        found[entry.name] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def sign(path) -> None:
    """Make the commit line fit, so that only the lie is wrong."""
    document = (path / "manifest.json").read_bytes()
    (path / "commit").write_text(f"{hashlib.sha256(document).hexdigest()}  manifest.json\n")


def manifest(path) -> dict:
    return json.loads((path / "manifest.json").read_text())


def lie(path, change) -> None:
    """Change the parsed manifest and sign it again."""
    document = manifest(path)
    change(document)
    (path / "manifest.json").write_text(json.dumps(document))
    sign(path)


def at(tree, path):
    """Follow a path into parsed JSON."""
    for part in path:
        tree = tree[part]
    return tree


def put(path, **values):
    """Change entries of an object among the sections."""
    return lambda document: at(document["sections"], path).update(values)


def drop(path, key):
    """Take an entry away."""
    return lambda document: at(document["sections"], path).pop(key)


def lie_in_bytes(path, data: bytes) -> None:
    (path / "manifest.json").write_bytes(data)
    sign(path)


def lie_in_state(path, data: bytes) -> None:
    """Replace `state.json` and make manifest and commit line agree with it."""
    (path / "state.json").write_bytes(data)

    def agree(document):
        document["files"]["state.json"] = {
            "size": len(data), "head": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)
        }  # fmt: skip

    lie(path, agree)


def lie_in_header(path, change, file="training.safetensors", tail=b"") -> None:
    """Change the parsed header of a tensor file, and make size, checksum, manifest and commit line agree."""
    data = (path / file).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    head = struct.pack("<Q", len(text)) + text
    replace_head(path, file, head, data[8 + length :] + tail)


def replace_head(path, file, head: bytes, rest: bytes) -> None:
    (path / file).write_bytes(head + rest)

    def agree(document):
        document["files"][file] = {
            "size": len(head) + len(rest), "head": len(head), "xxh3": xxhash.xxh3_128_hexdigest(head)
        }  # fmt: skip

    lie(path, agree)


__all__ = [
    "SegueError",
    "lie",
    "lie_in_bytes",
    "lie_in_header",
    "lie_in_state",
    "manifest",
    "read_all",
    "refused",
]
