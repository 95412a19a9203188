"""Each operation of a save fails once, in every way: old checkpoint or new one, never a third thing."""

import errno
import gc
import os
import shutil
import warnings

import pytest

from segue.errors import StoreError, StoreFull, StoreWarning
from tests.crash.faults import Fault, FaultyFilesystem
from tests.crash.outcome import NEW, OLD, litter, newest, save_and_prune, saves_again, store_at


@pytest.fixture(scope="module", params=["a", "a.segue"], ids=["folder", "file"])
def run_with_old(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / request.param
    with store_at(path) as store:
        store.put(OLD)
    return path


@pytest.fixture(scope="module")
def num_operations(run_with_old, tmp_path_factory):
    path = copy_of(run_with_old, tmp_path_factory.mktemp("count") / "runs")
    filesystem = FaultyFilesystem()
    save_and_prune(path, filesystem)
    assert newest(path) == "new"
    assert {"write", "fsync", "fsync_directory", "create_file"} <= set(filesystem.trace)
    assert {"rename_noreplace", "rename_replace"} & set(filesystem.trace)
    return filesystem.count


def copy_of(run, folder):
    shutil.copytree(run.parent, folder)
    return folder / run.name


@pytest.fixture
def fresh(run_with_old, tmp_path):
    made = []

    def copy():
        made.append(copy_of(run_with_old, tmp_path / f"run{len(made)}"))
        return made[-1]

    return copy


def outcome_of_error(path, fault) -> None:
    acknowledged, raised = False, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            acknowledged = save_and_prune(path, FaultyFilesystem(fault))
        except StoreError as error:
            raised = error
    if raised is not None:
        assert str(path if path.is_dir() else path.parent) in str(raised)
        if fault.hit[:1] == ["write"] and fault.errno in (errno.ENOSPC, errno.EDQUOT):
            assert isinstance(raised, StoreFull)
    assert all(issubclass(warning.category, StoreWarning) for warning in caught), caught
    found = newest(path)
    assert found in (("new",) if acknowledged else ("old", "new")), (found, fault)
    saves_again(path)


@pytest.mark.parametrize("how", ["before", "after", "half"])
def test_an_error_at_any_operation_leaves_old_or_new(fresh, num_operations, how):
    for at in range(1, num_operations + 1):
        outcome_of_error(fresh(), Fault(at, how, errno.ENOSPC if how == "before" else errno.EIO))


@pytest.mark.crash
@pytest.mark.parametrize("code", ["EIO", "EDQUOT", "EROFS", "EMFILE", "ESTALE", "EACCES", "ENOENT", "EEXIST"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_every_errno_at_any_operation_leaves_old_or_new(fresh, num_operations, how, code):
    for at in range(1, num_operations + 1):
        outcome_of_error(fresh(), Fault(at, how, getattr(errno, code)))


def test_a_disk_that_dies_for_good_at_any_operation_leaves_old_or_new(fresh, num_operations):
    for at in range(1, num_operations + 1):
        outcome_of_error(fresh(), Fault(at, "before", errno.EIO, sticky=True))


def test_a_failed_save_leaves_no_temporary_files(fresh, run_with_old):
    path = fresh()
    at = 0
    while True:
        at += 1
        fault = Fault(0, "before", errno.ENOSPC)
        filesystem = FaultyFilesystem(fault)
        with store_at(path, filesystem=filesystem) as store:
            fault.at = filesystem.count + at
            before, names = litter(path), names_in(path)
            try:
                store.put(NEW)
            except StoreFull:
                assert litter(path) == before
                # Only the very last step comes after the rename.
                assert names_in(path) == names or fault.hit == ["fsync_directory"]
            if not fault.hit:
                break
    assert at > 12


def names_in(path):
    return set(os.listdir(path)) if path.is_dir() else {path.name}


def test_no_file_is_fsynced_again_after_a_failed_fsync(fresh, num_operations):
    trace = FaultyFilesystem()
    save_and_prune(fresh(), trace)
    for at, name in enumerate(trace.trace, start=1):
        if name != "fsync":
            continue
        filesystem = FaultyFilesystem(Fault(at, "before"))
        with pytest.raises(StoreError):
            save_and_prune(fresh(), filesystem)
        assert "fsync" not in filesystem.trace[at:]


@pytest.mark.parametrize("how", ["kill before", "kill after", "kill half"])
def test_a_kill_at_any_operation_leaves_old_or_new(fresh, num_operations, how):
    gc.collect()
    for at in range(1, num_operations + 1):
        path = fresh()
        acknowledged = die(path, Fault(at, how))
        found = newest(path)
        assert found in (("new",) if acknowledged else ("old", "new")), (found, at, how)
        saves_again(path)


def die(path, fault) -> bool:
    """Save in a forked child that is killed on the way; return whether it had acknowledged its save."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        filesystem = FaultyFilesystem(fault)
        store = store_at(path, filesystem=filesystem, lock_timeout_seconds=0)
        store.acquire()
        store.put(NEW)
        os.write(writer, b"saved")
        for candidate in store.candidates()[1:]:
            store.remove(candidate)
        store.release()
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    acknowledged = os.read(reader, 5) == b"saved"
    os.close(reader)
    return acknowledged


@pytest.mark.parametrize("name", ["a", "a.segue"])
def test_a_kill_while_a_run_is_created_leaves_nothing_or_the_new_one(tmp_path, name):
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}" / "runs" / name
        fault = Fault(at, "kill after")
        if die(path, fault) and at > 60:
            break
        assert newest(path) in ("nothing", "new")
        saves_again(path)
    assert newest(path) == "new"


@pytest.mark.parametrize("name", ["a", "a.segue"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_an_error_while_a_run_is_created_leaves_nothing_or_the_new_one(tmp_path, how, name):
    for at in range(1, 70):
        path = tmp_path / f"{at}" / "runs" / name
        try:
            acknowledged = save_and_prune(path, FaultyFilesystem(Fault(at, how)))
        except StoreError:
            acknowledged = False
        assert newest(path) in (("new",) if acknowledged else ("nothing", "new"))
        saves_again(path)
