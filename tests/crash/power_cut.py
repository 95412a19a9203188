"""All states that a power cut can leave, by model: which of the unsynced names and contents reached the disk.

A filesystem promises little: what was fsynced is there, and a name is there once its directory was fsynced. Of the
rest anything may have arrived, in any order. So after each operation of a recorded save we build every such state
(each subset of the unsynced changes of names, times several contents of each unsynced file) and read it.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from segue._store.local import LocalFilesystem
from tests.crash.outcome import newest

CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "zeros of full size": lambda data: bytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "half, then zeros": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "all": lambda data: data,
}


@dataclass(frozen=True)
class Event:
    """One change, or one promise asked for; things are known by number, since names move."""

    what: str
    thing: int = 0
    name: str = ""
    other: str = ""
    made: int = 0
    data: bytes = b""


class Recorder(LocalFilesystem):
    """Does everything and writes down what matters; `ignore` makes mutants, by forgetting what was asked."""

    def __init__(self, ignore: Callable[[str, str], bool] = lambda what, name: False) -> None:
        self.events: list[Event] = []
        self.ignore = ignore
        self.names: dict[int, str] = {}
        self.numbers: dict[int, int] = {}
        self.counter = itertools.count(1)

    def number(self, status: os.stat_result) -> int:
        return self.numbers[status.st_ino]

    def learn(self, status: os.stat_result, name: str) -> int:
        number = next(self.counter)
        self.numbers[status.st_ino] = number
        self.names[number] = name
        return number

    def make_directory(self, name, within=None):
        super().make_directory(name, within)
        if within is not None:
            made = self.learn(self.lstat(name, within), "folder")
            self.events.append(Event("mkdir", self.number(os.fstat(within)), name, made=made))

    def create_file(self, name, within):
        file = super().create_file(name, within)
        made = self.learn(self.lstat(name, within), name)
        self.events.append(Event("create", self.number(os.fstat(within)), name, made=made))
        return _RecordedFile(self, file, made)

    def fsync_directory(self, directory):
        super().fsync_directory(directory)
        number = self.numbers.get(os.fstat(directory).st_ino)
        if number is not None and not self.ignore("fsync_directory", self.names[number]):
            self.events.append(Event("fsync_directory", number))

    def rename_noreplace(self, old, new, within):
        super().rename_noreplace(old, new, within)
        self.events.append(Event("rename", self.number(os.fstat(within)), old, new))

    def rename_replace(self, old, new, within):
        super().rename_replace(old, new, within)
        self.events.append(Event("rename", self.number(os.fstat(within)), old, new))

    def unlink(self, name, within):
        super().unlink(name, within)
        self.events.append(Event("remove", self.number(os.fstat(within)), name))

    def remove_directory(self, name, within):
        super().remove_directory(name, within)
        self.events.append(Event("remove", self.number(os.fstat(within)), name))


class _RecordedFile:
    def __init__(self, recorder, inner, number):
        self.recorder, self.inner, self.number = recorder, inner, number

    def write(self, data):
        count = self.inner.write(data)
        self.recorder.events.append(Event("write", self.number, data=bytes(data[:count])))
        return count

    def fsync(self):
        self.inner.fsync()
        if not self.recorder.ignore("fsync", self.recorder.names[self.number]):
            self.recorder.events.append(Event("fsync", self.number))

    def close(self):
        self.inner.close()


class Disk:
    """What is surely on the disk, and what may be."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[str, int]] = {}
        self.files: dict[int, bytes] = {}
        self.unsynced: set[int] = set()
        self.pending: list[Event] = []

    def load(self, path, recorder: Recorder) -> int:
        """Take what is there at the beginning as durable."""
        number = recorder.learn(os.stat(path), "root")
        self.entries[number] = {}
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir():
                child = self.load(entry.path, recorder)
                recorder.names[child] = "folder"
            else:
                child = recorder.learn(entry.stat(), entry.name)
                with open(entry.path, "rb") as file:
                    self.files[child] = file.read()
            self.entries[number][entry.name] = child
        return number

    def apply(self, event: Event) -> None:
        if event.what == "write":
            self.files[event.thing] += event.data
            self.unsynced.add(event.thing)
        elif event.what == "fsync":
            self.unsynced.discard(event.thing)
        elif event.what == "fsync_directory":
            for change in [change for change in self.pending if change.thing == event.thing]:
                rename_in(self.entries, change)
                self.pending.remove(change)
        else:
            if event.what == "create":
                self.files[event.made] = b""
                self.unsynced.add(event.made)
            elif event.what == "mkdir":
                self.entries[event.made] = {}
            elif event.what == "rename":
                event = Event(
                    "rename", event.thing, event.name, event.other, made=self.now(event.thing)[event.name]
                )
            self.pending.append(event)

    def now(self, directory: int) -> dict[str, int]:
        """What a running program sees."""
        entries = {number: dict(names) for number, names in self.entries.items()}
        for change in self.pending:
            rename_in(entries, change)
        return entries[directory]

    def states(self) -> Iterator[tuple[dict[int, dict[str, int]], Callable[[bytes], bytes]]]:
        """Yield every set of names that may have survived, with every content of unsynced files."""
        for kept in itertools.product((False, True), repeat=len(self.pending)):
            entries = {number: dict(names) for number, names in self.entries.items()}
            for change, keep in zip(self.pending, kept, strict=True):
                if keep:
                    rename_in(entries, change)
            for content in CONTENTS.values():
                yield entries, content


def rename_in(entries: dict[int, dict[str, int]], change: Event) -> None:
    names = entries[change.thing]
    if change.what == "rename":
        names.pop(change.name, None)
        names[change.other] = change.made
    elif change.what == "remove":
        names.pop(change.name, None)
    else:
        names[change.name] = change.made


def build(disk: Disk, root: int, entries, content, path) -> tuple:
    """Describe a state as a tree of names and bytes."""
    described = []
    for name, number in sorted(entries[root].items()):
        if number in disk.files:
            data = disk.files[number]
            described.append((name, content(data) if number in disk.unsynced else data))
        else:
            described.append((name, build(disk, number, entries, content, path)))
    return tuple(described)


def write_state(tree: tuple, path) -> None:
    os.mkdir(path)
    for name, value in tree:
        if isinstance(value, bytes):
            with open(os.path.join(path, name), "wb") as file:
                file.write(value)
        else:
            write_state(value, os.path.join(path, name))


def cut_everywhere(
    path, workload, scratch, *, ignore=lambda what, name: False, read=newest
) -> tuple[int, list]:
    """Run a workload, then read every state that a power cut during it, or right after, can leave.

    Args:
        path: A run with the old checkpoint.
        workload: Takes a filesystem and a function to call when a save is acknowledged.
        scratch: A folder to build states in.
        ignore: The fsyncs that a mutant leaves out.
        read: Tells what a reader finds.

    Returns:
        How many different states there were, and those that broke the promise.
    """
    recorder, disk = Recorder(ignore), Disk()
    root = disk.load(path, recorder)
    workload(recorder, lambda: recorder.events.append(Event("acknowledged")))
    allowed, seen, bad = ("old", "new"), {}, []
    for position, event in enumerate([Event("begin"), *recorder.events]):
        if event.what == "acknowledged":
            allowed = ("new",)
        elif event.what != "begin":
            disk.apply(event)
        for entries, content in disk.states():
            tree = build(disk, root, entries, content, path)
            if tree not in seen:
                place = os.path.join(scratch, f"state{len(seen)}")
                write_state(tree, place)
                seen[tree] = read(place)
                shutil.rmtree(place)
            if seen[tree] not in allowed:
                bad.append((position, event.what, seen[tree]))
    return len(seen), bad
