"""Tensor files whose header lies, with checksums, manifest and commit line that agree with it."""

import struct

import pytest

from segue._store.codec import MAX_HEADER_BYTES
from segue.errors import CorruptCheckpoint
from tests.hostile.lies import lie, lie_in_header, refused, replace_head

NAME = "gradients/tensors/weight"


def _set(**fields):
    return lambda header: header[NAME].update(fields)


def _shift(by):
    def change(header):
        header[NAME]["data_offsets"] = [offset + by for offset in header[NAME]["data_offsets"]]

    return change


LIES = {
    "a missing tensor": lambda header: header.pop(NAME) and None,
    "an extra tensor": lambda header: header.update(
        {"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    ),
    "another dtype": _set(dtype="I32"),
    "an unknown dtype": _set(dtype="OBJECT"),
    "another shape": _set(shape=[3, 4]),
    "a shape of floats": _set(shape=[4.0, 3.0]),
    "a shape of bools": _set(shape=[True, 12]),
    "an overlap": _shift(-4),
    "a gap": _shift(4),
    "offsets reversed": lambda header: header[NAME]["data_offsets"].reverse(),
    "an extra field": _set(hook="x"),
    "a missing field": lambda header: header[NAME].pop("shape") and None,
    "an entry that is no object": lambda header: header.update({NAME: []}),
    "metadata that is no text": lambda header: header.update({"__metadata__": {"a": {}}}),
    "metadata that is no object": lambda header: header.update({"__metadata__": []}),
    "a list": lambda header: b"[]",
    "no JSON": lambda header: b"{" * 100,
    "a duplicate": lambda header: b'{"a":1,"a":2}',
}


@pytest.mark.parametrize("what", LIES)
def test_a_header_that_lies_is_refused(checkpoint, what):
    lie_in_header(checkpoint, LIES[what])
    refused(checkpoint, CorruptCheckpoint, entry="training.safetensors")


@pytest.mark.parametrize("tail", [b"\0", b"PK\x05\x06" + bytes(18)])
def test_bytes_after_the_last_tensor_are_refused(checkpoint, tail):
    lie_in_header(checkpoint, lambda header: None, tail=tail)
    refused(checkpoint, CorruptCheckpoint, entry="do not end with the file")


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1, MAX_HEADER_BYTES + 1])
def test_a_header_length_that_lies_is_refused(checkpoint, length):
    data = (checkpoint / "training.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", data[:8])[0]
    replace_head(checkpoint, "training.safetensors", struct.pack("<Q", length) + data[8:size], data[size:])
    refused(checkpoint, CorruptCheckpoint, entry="length")


@pytest.mark.parametrize("head", [0, 7, 8, 9])
def test_a_head_that_is_too_short_is_refused(checkpoint, head):
    data = (checkpoint / "training.safetensors").read_bytes()
    replace_head(checkpoint, "training.safetensors", data[:head], data[head:])
    refused(checkpoint, CorruptCheckpoint, entry="training.safetensors")


def test_overlapping_tensors_that_manifest_and_header_agree_on_are_refused(checkpoint):
    def overlap(document):
        document["tensors"][NAME]["chunks"][0][2:4] = [0, 48]

    lie_in_header(checkpoint, lambda header: header[NAME].update(data_offsets=[0, 48]))
    lie(checkpoint, overlap)
    refused(checkpoint, CorruptCheckpoint, entry="overlap")
