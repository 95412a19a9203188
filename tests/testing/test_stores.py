"""Every store of ours passes the conformance suite; and the suite finds what is wrong with stores that are wrong."""

import pytest

import segue.testing
from segue import stores
from segue._store.memory import PROCESS_MEMORY


def turned(data: bytes, fraction: float) -> bytes:
    position = round(fraction * (len(data) - 1))
    changed = bytearray(data)
    changed[position] ^= 4
    return bytes(changed)


class TestDirectoryStore(segue.testing.StoreConformance):
    def make_store(self, place):
        return stores.DirectoryStore(place / "run", lock_timeout_seconds=0)

    def turn_bit(self, store, candidate, fraction):
        from pathlib import Path

        files = sorted(Path(candidate.path).iterdir())
        data = b"".join(file.read_bytes() for file in files)
        data = turned(data, fraction)
        for file in files:
            size = file.stat().st_size
            file.write_bytes(data[:size])
            data = data[size:]


class TestFileStore(segue.testing.StoreConformance):
    def make_store(self, place):
        return stores.FileStore(place / "run.segue", lock_timeout_seconds=0)

    def turn_bit(self, store, candidate, fraction):
        from pathlib import Path

        Path(store.path).write_bytes(turned(Path(store.path).read_bytes(), fraction))


class TestMemoryStore(segue.testing.StoreConformance):
    @pytest.fixture(autouse=True)
    def _tidy(self, tmp_path):
        yield
        stores.forget(f"memory:/{tmp_path}")

    def make_store(self, place):
        return stores.MemoryStore(f"memory:/{place}/run", lock_timeout_seconds=0)

    def turn_bit(self, store, candidate, fraction):
        paths = [
            f"{candidate.path}/{name}"
            for name in (
                "commit",
                "manifest.json",
                "model.safetensors",
                "state.json",
                "training.safetensors",
            )
        ]
        data = turned(b"".join(PROCESS_MEMORY.contents(path) for path in paths), fraction)
        for path in paths:
            size = len(PROCESS_MEMORY.contents(path))
            PROCESS_MEMORY.place(path, data[:size])
            data = data[size:]


class TestBytesStore(segue.testing.StoreConformance):
    several_handles = False

    def make_store(self, place):
        return stores.BytesStore()

    def turn_bit(self, store, candidate, fraction):
        store._memory.place(store.path, turned(store.data, fraction))
