"""A new run from an old checkpoint: the same record, an id of its own, all or nothing, and the source as it was."""

import errno
import gc
import os
import shutil
from pathlib import Path

import pytest

import segue
from segue._record.digest import digests
from segue._store.store import DirectoryStore
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    OptimizerMismatch,
    RunLocked,
    SkippedCheckpointWarning,
    StoreError,
    StoreFull,
)
from segue.stores import BytesStore, FileStore, MemoryStore
from tests._session import forked_program
from tests._session.small import make, step
from tests._store import records
from tests.crash.faults import Fault, FaultyFilesystem
from tests.testing.sqlite_store import SqliteStore


def trained(place, until=3, **options):
    """A run with a checkpoint after each of its steps."""
    model, optimizer, training = make()
    with segue.Checkpointer(training, place, **options) as checkpointer:
        state = checkpointer.resume(default={"n": 0})
        while state["n"] < until:
            step(model, optimizer)
            state["n"] += 1
            checkpointer.save_if_due(state, step=10 * state["n"])
    return place


def checkpoint(run, number):
    return run / f"ckpt-{number:09}"


def everything(folder):
    """Every name below a folder, with bytes and times."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def newest(store):
    """The record of the newest checkpoint, fully verified."""
    return store.open(store.candidates()[0]).verify()


def assert_same_record(one, other):
    """Equal in everything but the lineage, of which the other has one entry more."""
    assert digests(one) == digests(other)
    assert segue.diff(segue.TrainingRecord.of(one), segue.TrainingRecord.of(other)).identical
    for name in ("kind", "step", "microbatch", "topology", "environment", "version", "precision"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.lossy == other.lossy
    assert other.lineage[:-1] == one.lineage


# --- the same record, in a run of its own ---


def test_the_new_run_has_one_checkpoint_with_the_same_record_and_an_id_of_its_own(tmp_path):
    run = trained(tmp_path / "a")
    made = segue.fork(checkpoint(run, 2), tmp_path / "b")
    assert made.path == str(tmp_path / "b")
    assert made.source == segue.verify(checkpoint(run, 2))
    assert made.checkpoint == segue.verify(checkpoint(tmp_path / "b", 1))
    assert sorted(os.listdir(tmp_path / "b")) == ["ckpt-000000001", "run.json"]
    assert_same_record(segue.load(checkpoint(run, 2)), segue.load(made.checkpoint.path))
    assert (made.checkpoint.step, made.checkpoint.microbatch) == (20, 2)
    with DirectoryStore(run) as old, DirectoryStore(tmp_path / "b") as new:
        assert old.run_id != new.run_id


def test_the_lineage_names_the_checkpoint_by_what_it_carries_with_it(tmp_path):
    run = trained(tmp_path / "a")
    made = segue.fork(checkpoint(run, 2), tmp_path / "b")
    [entry] = segue.load(made.checkpoint.path).lineage
    with DirectoryStore(run) as store:
        run_id = store.run_id
    commit = (checkpoint(run, 2) / "commit").read_text()
    assert entry == {
        "step": 20, "microbatch": 2,
        "forked_from": {"run": run_id, "seq": 2, "attempt": made.source.attempt, "manifest_sha256": commit[:64]},
    }  # fmt: skip
    # Wherever the checkpoint lies, and whenever it is forked, that is the same.
    shutil.copytree(checkpoint(run, 2), tmp_path / "moved")
    again = segue.fork(tmp_path / "moved", tmp_path / "c")
    assert segue.load(again.checkpoint.path).lineage == (entry,)


def test_a_fork_of_a_fork_has_both_entries(tmp_path):
    segue.fork(trained(tmp_path / "a"), tmp_path / "b")
    made = segue.fork(tmp_path / "b", tmp_path / "c")
    first, second = segue.load(made.checkpoint.path).lineage
    assert (first["forked_from"]["seq"], second["forked_from"]["seq"]) == (3, 1)
    assert first["forked_from"]["run"] != second["forked_from"]["run"]


KINDS = {
    "plain": records.record(3),
    "subclasses, sparse and quantized": records.second_version(4),
    "rank-local, caller-made, converted": records.third_version(5),
    "half, which lost bits": records.record(6).converted("half"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_is_copied_byte_for_byte(kind, tmp_path):
    with DirectoryStore(tmp_path / "a") as store:
        stored = Path(store.put(KINDS[kind]).path)
    made = Path(segue.fork(stored, tmp_path / "b").checkpoint.path)
    assert_same_record(segue.load(stored), segue.load(made))
    for name in ("model.safetensors", "training.safetensors", "state.json"):
        assert (made / name).read_bytes() == (stored / name).read_bytes(), name
    one, other = (segue.load(place).sections() for place in (stored, made))
    assert [key for key in one if key not in other] == []
    assert segue.load(made).precision == KINDS[kind].precision


def test_what_lost_bits_is_told_by_the_new_run_too(tmp_path):
    model, optimizer, training = make()
    step(model, optimizer)
    segue.save(training.capture(), tmp_path / "half", precision="half")
    segue.fork(tmp_path / "half", tmp_path / "b")
    with (
        segue.Checkpointer(make()[2], tmp_path / "b") as checkpointer,
        pytest.raises(segue.errors.LossyRecord),
    ):
        checkpointer.resume()


# --- from where to where ---


@pytest.mark.parametrize("into", ["b", "b.segue", "memory://{}/b", "memory://{}/b.segue"])
@pytest.mark.parametrize("source", ["folder", "file", "export", "export file", "memory"])
def test_from_each_place_to_each(source, into, tmp_path):
    memory = f"memory://{tmp_path.name}/a"
    model, optimizer, training = make()
    step(model, optimizer)
    if source.startswith("export"):
        place = tmp_path / source.replace(" ", ".").replace("file", "segue")
        segue.save(training.capture({"n": 1}), place)
    else:
        place = {"folder": tmp_path / "a", "file": tmp_path / "a.segue", "memory": memory}[source]
        trained(place, 1)
    url = into.format(tmp_path.name) if "://" in into else tmp_path / into
    made = segue.fork(place, url)
    assert made.path == str(url)
    assert segue.load(made.checkpoint.path).state == {"n": 1}
    _, _, resumed = make(seed=5)
    with segue.Checkpointer(resumed, url) as checkpointer:
        assert checkpointer.resume(default={}) == {"n": 1}
        assert_same_record(segue.load(made.source.path), checkpointer.newest())
        checkpointer.save({"n": 2})
    origin = segue.load(made.checkpoint.path).lineage[0]["forked_from"]
    assert (origin["run"] is None) == source.startswith("export")
    segue.stores.forget(f"memory://{tmp_path.name}")


STORES = {
    "folder": lambda folder: DirectoryStore(folder / "run"),
    "file": lambda folder: FileStore(folder / "run.segue"),
    "memory": lambda folder: MemoryStore(f"memory://{folder.name}/run"),
    "bytes": lambda folder: BytesStore(),
    "a store of one's own": lambda folder: SqliteStore(folder / "run.sqlite"),
}


@pytest.mark.parametrize("into", STORES)
@pytest.mark.parametrize("source", STORES)
def test_from_any_store_to_any(source, into, tmp_path):
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    old, new = STORES[source](tmp_path / "from"), STORES[into](tmp_path / "to")
    trained(old, 2)
    made = segue.fork(old, new)
    assert (made.path, made.source.step, made.checkpoint.seq) == (new.path, 20, 1)
    assert_same_record(newest(old), newest(new))
    [entry] = newest(new).lineage
    assert entry["forked_from"]["attempt"] == made.source.attempt
    assert (entry["forked_from"]["run"] is None) == (source == "a store of one's own")
    with segue.Checkpointer(make()[2], new) as checkpointer:  # it was let go
        assert checkpointer.resume() == {"n": 2}
    for name in ("from", "to"):
        segue.stores.forget(f"memory://{name}")


def test_of_a_run_the_newest_that_is_intact_is_taken(tmp_path):
    run = trained(tmp_path / "a")
    (checkpoint(run, 3) / "manifest.json").write_text("{}")
    with pytest.warns(SkippedCheckpointWarning, match="ckpt-000000003"):
        made = segue.fork(run, tmp_path / "b")
    assert made.source.path == str(checkpoint(run, 2))
    assert segue.load(made.checkpoint.path).state == {"n": 2}


# --- refusals: nothing appears, nothing changes ---


def test_a_damaged_source_is_refused_and_nothing_appears(tmp_path):
    source = checkpoint(trained(tmp_path / "a"), 2)
    for name in sorted(os.listdir(source)):
        size = (source / name).stat().st_size
        for position in (0, size // 2, size - 1):
            damaged = tmp_path / "damaged"
            shutil.copytree(source, damaged)
            data = bytearray((damaged / name).read_bytes())
            data[position] ^= 1
            (damaged / name).write_bytes(data)
            with pytest.raises(CorruptCheckpoint):
                segue.fork(damaged, tmp_path / "deep" / "b")
            assert not (tmp_path / "deep").exists(), (name, position)
            shutil.rmtree(damaged)
        shutil.copytree(source, damaged)
        (damaged / name).unlink()
        with pytest.raises(IncompleteCheckpoint):
            segue.fork(damaged, tmp_path / "deep" / "b")
        assert not (tmp_path / "deep").exists(), name
        shutil.rmtree(damaged)


def test_a_damaged_file_is_refused_and_nothing_appears(tmp_path):
    file = trained(tmp_path / "a.segue", 1)
    whole = file.read_bytes()
    for position in range(0, len(whole), 997):
        data = bytearray(whole)
        data[position] ^= 1
        file.write_bytes(data)
        with pytest.raises(StoreError):
            segue.fork(file, tmp_path / "b")
        assert not (tmp_path / "b").exists(), position


def test_a_run_with_nothing_but_damage_is_refused(tmp_path):
    run = trained(tmp_path / "a", 2)
    for number in (1, 2):
        (checkpoint(run, number) / "commit").write_text("")
    with (
        pytest.warns(SkippedCheckpointWarning),
        pytest.raises(CorruptCheckpoint, match="no checkpoint of this run can be read"),
    ):
        segue.fork(run, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_where_nothing_is_nothing_is_copied(tmp_path):
    with DirectoryStore(tmp_path / "empty"):
        pass
    for source in (tmp_path / "empty", tmp_path / "none", DirectoryStore(tmp_path / "none"), BytesStore()):
        with pytest.raises(CheckpointNotFound):
            segue.fork(source, tmp_path / "b")
    run = trained(tmp_path / "a", 1)
    (run / "run.json").unlink()
    with pytest.warns(SkippedCheckpointWarning), pytest.raises(IncompleteCheckpoint, match=r"run\.json"):
        segue.fork(run, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    segue.fork(checkpoint(run, 1), tmp_path / "b")  # by its own path it is whole


@pytest.mark.parametrize("taken", ["a", "other", "other.segue", "damaged", "export.segue"])
def test_a_run_with_checkpoints_is_refused_as_it_is(taken, tmp_path):
    run = trained(tmp_path / "a")
    trained(tmp_path / "other", 1)
    trained(tmp_path / "other.segue", 1)
    (checkpoint(trained(tmp_path / "damaged", 1), 1) / "commit").unlink()
    segue.save(make()[2].capture(), tmp_path / "export.segue")
    before = everything(tmp_path)
    for source in (run, checkpoint(run, 1)):
        with pytest.raises(CheckpointExists, match="a fork begins a new run"):
            segue.fork(source, tmp_path / taken)
    assert everything(tmp_path) == before


ENCLOSED = [
    "a/inner", "a/inner/b", "a/inner.segue", "a/ckpt-000000002", "a/ckpt-000000002/b", "export", "export/b",
    "link/b", "elsewhere/run/deep/b", ".", "a/../a/inner",
]  # fmt: skip


@pytest.mark.parametrize("into", ENCLOSED)
def test_a_place_in_a_run_or_a_checkpoint_or_around_the_source_is_refused(into, tmp_path):
    run = trained(tmp_path / "a")
    segue.save(make()[2].capture(), tmp_path / "export")
    with DirectoryStore(tmp_path / "elsewhere" / "run"):
        pass
    (tmp_path / "link").symlink_to(run)
    before = everything(tmp_path)
    with pytest.raises(CheckpointExists) as caught:
        segue.fork(checkpoint(run, 1), tmp_path / into)
    assert caught.value.code == "store.enclosed"
    assert everything(tmp_path) == before


def test_the_same_in_memory(tmp_path):
    run = f"memory://{tmp_path.name}/a"
    trained(run, 1)
    for into in (f"{run}/b", f"{run}/ckpt-000000001", f"memory://{tmp_path.name}"):
        with pytest.raises(CheckpointExists) as caught:
            segue.fork(run, into)
        assert caught.value.code == "store.enclosed"
    assert segue.stores.forget(f"memory://{tmp_path.name}")


def test_a_run_json_of_somebody_else_above_is_no_run_of_ours(tmp_path):
    run = trained(tmp_path / "a", 1)
    (tmp_path / "run.json").write_text('{"name": "a file that others call so too"}')
    (tmp_path / "commit").write_text("this too")
    segue.fork(run, tmp_path / "deep" / "b")


def test_an_empty_run_or_folder_is_begun_and_a_run_keeps_its_id(tmp_path):
    run = trained(tmp_path / "a", 1)
    with DirectoryStore(tmp_path / "b") as store:
        before = store.run_id
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("mine")
    for name in ("b", "c"):
        segue.fork(run, tmp_path / name)
        assert segue.load(checkpoint(tmp_path / name, 1)).state == {"n": 1}
    with DirectoryStore(tmp_path / "b") as store:
        assert store.run_id == before


def test_a_copy_of_the_sources_own_run_json_is_refused(tmp_path):
    run = trained(tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    shutil.copy(run / "run.json", tmp_path / "b")
    before = everything(tmp_path / "b")
    with pytest.raises(CheckpointExists, match="id of its own") as caught:
        segue.fork(run, tmp_path / "b")
    assert caught.value.code == "store.same_run"
    assert everything(tmp_path / "b") == before


def test_another_writer_that_is_faster_keeps_what_it_wrote(tmp_path):
    class Contested(DirectoryStore):
        def acquire(self):
            if not os.path.exists(self.path):
                trained(self.path, 1)
            super().acquire()

    run = trained(tmp_path / "a", 2)
    with pytest.raises(CheckpointExists, match="a fork begins a new run"):
        segue.fork(run, Contested(tmp_path / "b"))
    assert os.listdir(tmp_path / "b") != []
    assert segue.load(checkpoint(tmp_path / "b", 1)).state == {"n": 1}
    assert not checkpoint(tmp_path / "b", 2).exists()
    with DirectoryStore(tmp_path / "b", lock_timeout_seconds=0):  # it was let go
        pass


def test_a_new_run_that_another_process_writes_to_is_refused(tmp_path):
    run = trained(tmp_path / "a", 1)
    with DirectoryStore(tmp_path / "b"), pytest.raises(RunLocked):
        segue.fork(run, DirectoryStore(tmp_path / "b", lock_timeout_seconds=0))
    assert os.listdir(tmp_path / "b") == ["run.json"]


def test_what_is_no_place_is_refused(tmp_path):
    run = trained(tmp_path / "a", 1)
    for source, into in ((3, tmp_path / "b"), (run, 3), (segue.load(checkpoint(run, 1)), tmp_path / "b")):
        with pytest.raises(TypeError):
            segue.fork(source, into)
    assert not (tmp_path / "b").exists()


# --- the source, and a kill ---


def test_the_source_is_read_without_a_lock_and_stays_as_it_was(tmp_path):
    run = trained(tmp_path / "a")
    file = trained(tmp_path / "a.segue")
    with DirectoryStore(run), FileStore(file):  # a writer is at work
        before = everything(tmp_path)
        for number, source in enumerate((run, checkpoint(run, 1), file)):
            segue.fork(source, tmp_path / f"fork-{number}")
        after = everything(tmp_path)
    assert {name: after[name] for name in before} == before


def test_a_checkpoint_that_is_pruned_meanwhile_is_copied_whole(tmp_path):
    class Pruning(DirectoryStore):
        def put(self, record):
            shutil.rmtree(tmp_path / "a")
            return super().put(record)

    source = segue.load(checkpoint(trained(tmp_path / "a"), 2))
    made = segue.fork(checkpoint(tmp_path / "a", 2), Pruning(tmp_path / "b"))
    assert_same_record(source, segue.load(made.checkpoint.path))


def outcome(path, source):
    """Tell what is in a place after an accident: nothing, or the whole record; never a third thing."""
    store = FileStore(path) if path.suffix else DirectoryStore(path)
    candidates = store.candidates()
    if not candidates:
        return "nothing"
    [candidate] = candidates
    with store.open(candidate) as found:
        assert_same_record(source, found.verify())
    return "forked"


def store_at(path, filesystem):
    kind = FileStore if path.suffix else DirectoryStore
    return kind(path, filesystem=filesystem, lock_timeout_seconds=0)


@pytest.mark.parametrize("name", ["b", "b.segue"])
@pytest.mark.parametrize(
    "how", ["before", *(pytest.param(how, marks=pytest.mark.crash) for how in ("after", "half"))]
)
def test_a_failure_of_any_operation_leaves_nothing_or_all_of_it(name, how, tmp_path):
    run = trained(tmp_path / "a", 1)
    source, before = segue.load(checkpoint(run, 1)), everything(run)
    at, failed = 0, set()
    while True:
        at += 1
        path = tmp_path / str(at) / name
        fault = Fault(at, how, errno.ENOSPC)
        try:
            segue.fork(checkpoint(run, 1), store_at(path, FaultyFilesystem(fault)))
        except StoreError as error:
            failed.add(type(error))
        else:
            assert outcome(path, source) == "forked"
        if not fault.hit:
            break
        if outcome(path, source) == "nothing":  # no repair is needed to do it again
            segue.fork(checkpoint(run, 1), path)
            assert outcome(path, source) == "forked"
    assert at > 30
    assert StoreFull in failed or how == "half"
    assert everything(run) == before


@pytest.mark.parametrize("name", ["b", "b.segue"])
@pytest.mark.parametrize("how", ["kill before", pytest.param("kill half", marks=pytest.mark.crash)])
def test_a_kill_at_any_operation_leaves_nothing_or_all_of_it(name, how, tmp_path):
    run = trained(tmp_path / "a", 1)
    source, before = segue.load(checkpoint(run, 1)), everything(run)
    counting = FaultyFilesystem()
    segue.fork(checkpoint(run, 1), store_at(tmp_path / "counting" / name, counting))
    seen = set()
    gc.collect()
    for at in range(1, counting.count + 1):
        path = tmp_path / str(at) / name
        child = os.fork()
        if child == 0:
            segue.fork(checkpoint(run, 1), store_at(path, FaultyFilesystem(Fault(at, how))))
            os._exit(0)
        os.waitpid(child, 0)
        found = outcome(path, source)
        seen.add(found)
        if found == "nothing":
            segue.fork(checkpoint(run, 1), path)
            assert outcome(path, source) == "forked"
    assert seen == {"nothing", "forked"}
    assert everything(run) == before


# --- going on ---


@pytest.mark.parametrize("into", ["b", pytest.param("b.segue", marks=pytest.mark.exact)])
@pytest.mark.parametrize("microbatch", [3, pytest.param(4, marks=pytest.mark.exact)])
def test_a_program_goes_on_from_the_fork_bit_for_bit_as_the_run_did(microbatch, into, tmp_path):
    assert forked_program.run(tmp_path / "a", 8) == (0, "")
    made = segue.fork(checkpoint(tmp_path / "a", microbatch), tmp_path / into)
    assert (made.checkpoint.microbatch, made.checkpoint.step) == (microbatch, microbatch // 2)
    assert forked_program.run(tmp_path / into, 8) == (0, "")
    end = segue.load(checkpoint(tmp_path / "a", 8))
    there = segue.Checkpointer(make()[2], tmp_path / into).newest()
    assert segue.diff(end, there).identical
    assert (there.microbatch, there.step) == (end.microbatch, end.step) == (8, 4)
    assert there.state["losses"] == end.state["losses"]
    assert [sorted(entry) for entry in there.lineage] == [["forked_from", "microbatch", "step"]]


@pytest.mark.exact
def test_a_change_on_purpose_at_the_fork_is_refused_unless_told_and_is_in_the_lineage_beside_it(tmp_path):
    assert forked_program.run(tmp_path / "a", 6) == (0, "")
    segue.fork(checkpoint(tmp_path / "a", 4), tmp_path / "b")
    before = everything(tmp_path / "b")
    code, said = forked_program.run(tmp_path / "b", 8, "--lr", 0.1)
    assert code != 0
    assert OptimizerMismatch.__name__ in said
    assert 'accept=["optimizer.optimizer.lr"]' in said
    assert everything(tmp_path / "b") == before

    accept = ("--lr", 0.1, "--accept", "optimizer.optimizer.lr")
    assert forked_program.run(tmp_path / "b", 8, *accept) == (0, "")
    assert forked_program.run(tmp_path / "b", 9, *accept) == (0, "")  # it stays in the program
    record = segue.load(checkpoint(tmp_path / "b", 6))
    fork, change = record.lineage
    assert fork["forked_from"]["seq"] == 4
    assert (change["step"], change["microbatch"], change["accepted"]) == (2, 4, ["optimizer.optimizer.lr"])
    assert record.optimizers["optimizer"].groups[0].options["lr"] == 0.1
    assert record.microbatch == 9
    # The run that it came from trains on as it would have.
    assert forked_program.run(tmp_path / "a", 8) == (0, "")
    assert segue.load(checkpoint(tmp_path / "a", 8)).lineage == ()
