"""A checkpoint in one file as a stranger may have made it: cut, turned, stuffed, or lying about what is where."""

import os
import random
import socket

import pytest

from segue._record.digest import digests
from segue._store.archive import open_checkpoint
from segue._store.container import header
from segue._store.in_memory import open_bytes, to_bytes
from segue._store.layout import CHECKPOINT_FILES
from segue.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    StoreError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)
from tests._store.records import record
from tests.hostile.lies import lie

HONEST = to_bytes(record(1))
EXPECTED = digests(record(1))


def files_of(data):
    """Take an archive apart: its files in order."""
    found, position = [], 0
    while data[position]:
        name, size = (
            data[position : position + 100].rstrip(b"\0").decode(),
            int(data[position + 124 : position + 135], 8),
        )
        found.append((name, data[position + 512 : position + 512 + size]))
        position += 512 + size + -size % 512
    return found


def archive(files, end=bytes(1024)):
    return b"".join(header(name, len(data)) + data + bytes(-len(data) % 512) for name, data in files) + end


def resealed(block):
    """Make the checksum of a header fit, so that only the lie is wrong."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def patched(offset, value, block=0):
    data = HONEST[block : block + 512]
    changed = resealed(data[:offset] + value + data[offset + len(value) :])
    return HONEST[:block] + changed + HONEST[block + 512 :]


def refused(data, error=StoreError):
    with pytest.raises(error) as caught:
        open_bytes(data).verify()
    assert "bytes://checkpoint" in str(caught.value)
    assert all(31 < ord(character) < 127 or character == "\n" for character in str(caught.value))
    return caught.value


def test_taking_apart_and_putting_together_is_honest():
    assert archive(files_of(HONEST)) == HONEST
    assert digests(open_bytes(HONEST).verify()) == EXPECTED


def test_the_order_of_the_files_does_not_matter():
    assert digests(open_bytes(archive(files_of(HONEST)[::-1])).verify()) == EXPECTED


FILES = files_of(HONEST)
LIES = {
    "nothing": (b"", CorruptCheckpoint),
    "a little": (b"segue", UnsupportedFormat),
    "text": (b"garbage " * 1000, UnsupportedFormat),
    "zeros": (bytes(20480), UnsupportedFormat),
    "a zip": (b"PK\3\4" + bytes(4000), UnsupportedFormat),
    "a pickle": (b"\x80\x02}q\0." * 500, UnsupportedFormat),
    "a GNU archive": (HONEST[:257] + b"ustar  \0" + HONEST[265:], UnsupportedFormat),
    "something before": (bytes(512) + HONEST, UnsupportedFormat),
    "something after": (HONEST + b"x", CorruptCheckpoint),
    "zeros after": (HONEST + bytes(512), CorruptCheckpoint),
    "an archive after": (HONEST + HONEST, CorruptCheckpoint),
    "something in the end": (HONEST[:-700] + b"x" + HONEST[-699:], CorruptCheckpoint),
    "half an end": (HONEST[:-512], CorruptCheckpoint),
    "no end": (HONEST[:-1024], CorruptCheckpoint),
    "a file twice": (archive([*FILES, FILES[0]]), CorruptCheckpoint),
    "a file less": (archive(FILES[1:]), IncompleteCheckpoint),
    "no file": (archive([]), UnsupportedFormat),
    "a foreign file": (archive([*FILES, ("notes", b"mine")]), UnsafeCheckpoint),
    "a file that only a filesystem makes": (archive([*FILES, (".nfs01", b"")]), CorruptCheckpoint),
    "a path upwards": (archive([*FILES, ("../x", b"")]), CorruptCheckpoint),
    "an absolute path": (archive([*FILES, ("/etc/passwd", b"")]), CorruptCheckpoint),
    "a path downwards": (archive([*FILES, ("a/b", b"")]), CorruptCheckpoint),
    "an empty name": (archive([*FILES, ("", b"")]), CorruptCheckpoint),
    "a name with capitals": (archive([*FILES, ("COMMIT", b"")]), CorruptCheckpoint),
    "thousands of files": (archive([(f"f{number}", b"") for number in range(5000)]), CorruptCheckpoint),
    "a name with something behind its end": (patched(50, b"x"), CorruptCheckpoint),
    "a prefix to the name": (patched(345, b"../.."), CorruptCheckpoint),
    "a link": (patched(156, b"2"), CorruptCheckpoint),
    "a link with a target": (patched(156, b"2/etc/passwd"), CorruptCheckpoint),
    "a folder": (patched(156, b"5"), CorruptCheckpoint),
    "a device": (patched(156, b"3"), CorruptCheckpoint),
    "a long name": (patched(156, b"L"), CorruptCheckpoint),
    "an extended header": (patched(156, b"x"), CorruptCheckpoint),
    "a sparse file": (patched(156, b"S"), CorruptCheckpoint),
    "a setuid file": (patched(100, b"0004755\0"), CorruptCheckpoint),
    "an owner": (patched(265, b"root"), CorruptCheckpoint),
    "another time": (patched(136, b"00000000001\0"), CorruptCheckpoint),
    "a size in words": (patched(124, b"many files\0\0"), CorruptCheckpoint),
    "a size with spaces": (patched(124, b"        366 "), CorruptCheckpoint),
    "a negative size": (patched(124, b"-0000000366\0"), CorruptCheckpoint),
    "a negative binary size": (patched(124, b"\xff" * 12), CorruptCheckpoint),
    "a small size in binary": (patched(124, b"\x80" + (246).to_bytes(11, "big")), CorruptCheckpoint),
    "a huge size": (patched(124, b"\x80" + (2**63).to_bytes(11, "big")), CorruptCheckpoint),
    "the largest size": (patched(124, b"\x80" + b"\xff" * 11), CorruptCheckpoint),
    "a size past the end": (patched(124, b"00007777777\0"), CorruptCheckpoint),
    "a size of nothing": (patched(124, b"00000000000\0"), CorruptCheckpoint),
    "a size that swallows the next file": (patched(124, b"%011o\0" % (512 + -len(FILES[0][1]) % 512 + len(FILES[0][1]) + len(FILES[1][1]))), IncompleteCheckpoint),
    "something in the padding": (
        HONEST[: 512 + len(FILES[0][1])] + b"x" + HONEST[513 + len(FILES[0][1]) :],
        CorruptCheckpoint,
    ),
    "a wrong header checksum": (HONEST[:148] + b"000000\0 " + HONEST[156:], CorruptCheckpoint),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_lie_is_refused(what):
    data, error = LIES[what]
    refused(data, error)


def test_every_single_field_of_a_header_is_checked():
    for offset in range(512):
        changed = bytes([HONEST[offset] ^ 1])
        refused(
            patched(offset, changed)
            if not 148 <= offset < 156
            else HONEST[:offset] + changed + HONEST[offset + 1 :]
        )


def every(step, end):
    return sorted({*range(0, end, step), *range(max(0, end - 1100), end, 7), *range(0, min(end, 600), 3)})


def cut_at(lengths):
    for length in lengths:
        refused(HONEST[:length])


def turn_at(positions):
    generator = random.Random(5)
    for position in positions:
        data = bytearray(HONEST)
        data[position] ^= 1 << generator.randrange(8)
        # Nothing in the file is without meaning: each bit is a checksum's, a header's, or must be zero.
        refused(bytes(data))


def test_a_file_cut_short_is_refused():
    cut_at(every(97, len(HONEST)))


def test_a_turned_bit_is_refused_wherever_it_is():
    turn_at(every(41, len(HONEST)))


@pytest.mark.crash
def test_a_file_cut_at_any_byte_is_refused():
    cut_at(range(len(HONEST)))


@pytest.mark.crash
def test_a_turned_bit_in_any_byte_is_refused():
    turn_at(range(len(HONEST)))


def test_lies_in_a_file_are_those_of_a_folder(checkpoint):
    """What is inside is read by the same reader; one lie of many shows it."""
    lie(checkpoint, lambda document: document["tensors"]["model/tensors/weight"].update(shape=[2**40]))
    refused(
        archive([(name, (checkpoint / name).read_bytes()) for name in CHECKPOINT_FILES]), CorruptCheckpoint
    )


def test_a_newer_format_with_other_files_is_told_by_its_version(checkpoint):
    lie(checkpoint, lambda document: document.update(version=99))
    files = [(name, (checkpoint / name).read_bytes()) for name in CHECKPOINT_FILES]
    assert "99" in str(refused(archive([*files, ("shard-2", b"")]), UnsupportedFormat))


def special(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_a_special_file_is_refused_without_waiting(kind, tmp_path):
    special(kind, tmp_path / "a.segue")
    with pytest.raises(UnsafeCheckpoint):
        open_checkpoint(tmp_path / "a.segue")


def test_a_file_that_is_cut_or_changed_while_open_is_noticed(tmp_path):
    path = tmp_path / "a.segue"
    path.write_bytes(HONEST)
    cut, changed = open_checkpoint(path).record(), open_checkpoint(path).record()
    with open(path, "r+b") as file:
        file.seek(512 + len(FILES[0][1]) - 20)
        file.write(bytes(20))
    with pytest.raises(CorruptCheckpoint):
        digests(changed)
    os.truncate(path, 600)
    with pytest.raises(CorruptCheckpoint, match="too early"):
        digests(cut)


def test_a_sparse_file_of_terabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.segue"
    path.write_bytes(HONEST)
    os.truncate(path, 2**42)
    with pytest.raises(CorruptCheckpoint):
        open_checkpoint(path)
