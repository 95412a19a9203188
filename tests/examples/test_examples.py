"""Three trainings as their users would write them: cut anywhere and continued in a new process, each ends in the same bits."""

import itertools
import shutil
import signal

import pytest

import segue
from tests.exactness.matrix import EXACT, property_of
from tests.examples.runs import EXAMPLES, UNCOMPILED, forked, fresh, newest, signalled

CUTS = [(name, cut) for name, example in EXAMPLES.items() for cut in range(example.total + 1)]
NEVER = 10_000
ONCE = [name for name in EXAMPLES if "compiled" not in name]
seeds = itertools.count(1000)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    made = {}

    def make(name):
        if name not in made:
            run = tmp_path_factory.mktemp(name) / "run"
            ended = forked(
                EXAMPLES[name], EXAMPLES[name].command(run, save_every=NEVER), run.parent / "output"
            )
            if "compiled" in name and UNCOMPILED in ended.output:
                pytest.skip("no C++ compiler")
            made[name] = run, ended.digest
        return made[name]

    return make


def assert_same_end(run, ended, reference):
    whole, digest = reference
    assert ended.digest == digest  # which shows what it said if it failed
    difference = segue.diff(newest(whole), newest(run))
    assert difference.identical, difference.first


@pytest.mark.exact
@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_cut_at_every_microbatch_and_continued_in_a_new_process(
    name, cut, uninterrupted, tmp_path, record_property
):
    example, run = EXAMPLES[name], tmp_path / "run"
    killed = forked(example, example.command(run), tmp_path / "killed", kill_in_save=cut)
    assert killed.code == -signal.SIGKILL, killed.output
    assert newest(run).name == f"ckpt-{cut:09d}"
    # Another seed, so that whatever is drawn anew and not restored shows; with no checkpoint there is only the seed.
    ended = forked(example, example.command(run, seed=next(seeds) if cut else 0), tmp_path / "ended")
    is_same = ended.code == 0 and ended.digest == uninterrupted(name)[1]
    row = {
        "class": f"{name}, cut {cut:02d}",
        "options": "",
        "dtype": "continued in a new process",
        "cut": "any",
    }
    record_property(*property_of("examples", {**row, "verdict": EXACT if is_same else "DIVERGES"}))
    assert_same_end(run, ended, uninterrupted(name))


@pytest.mark.parametrize("name", ONCE)
def test_killed_in_saves_and_from_outside_it_goes_on_and_ends_in_the_same_bits(name, uninterrupted, tmp_path):
    example, run, output = EXAMPLES[name], tmp_path / "run", tmp_path / "output"
    assert forked(example, example.command(run), output, kill_in_save=1).code == -signal.SIGKILL
    killed = signalled(example, example.command(run, seed=next(seeds)), output, signal.SIGKILL, 2, run)
    assert killed.code == -signal.SIGKILL, killed.output
    # In the last save, when all is done.
    left = example.total - int(newest(run).name.removeprefix("ckpt-"))
    again = forked(example, example.command(run, seed=next(seeds)), output, kill_in_save=left)
    assert again.code == -signal.SIGKILL, again.output
    ended = fresh(example, example.command(run, seed=next(seeds)), output, hash_seed=1)
    assert_same_end(run, ended, uninterrupted(name))


@pytest.mark.exact
@pytest.mark.parametrize("name", ONCE)
def test_preempted_it_saves_says_so_and_goes_on_by_the_same_command(name, uninterrupted, tmp_path):
    example, run = EXAMPLES[name], tmp_path / "run"
    preempted = signalled(example, example.command(run), tmp_path / "preempted", signal.SIGTERM, 2, run)
    assert preempted.code == 1
    assert "preempted; the same command goes on" in preempted.output
    command = example.command(run, seed=next(seeds), save_every=NEVER)
    ended = fresh(example, command, tmp_path / "ended", hash_seed=2)
    assert_same_end(run, ended, uninterrupted(name))


def test_a_finished_run_that_is_started_again_has_nothing_to_do(uninterrupted, tmp_path):
    example = EXAMPLES["image_classifier"]
    whole, digest = uninterrupted("image_classifier")
    run = shutil.copytree(whole, tmp_path / "run")
    again = forked(example, example.command(run, seed=next(seeds)), tmp_path / "again")
    assert f"from batch {example.total} on" in again.output
    assert again.digest == digest


def test_compiled_it_ends_in_the_same_bits_too(uninterrupted, tmp_path):
    example, run, reference = EXAMPLES["gpt, compiled"], tmp_path / "run", uninterrupted("gpt, compiled")
    cut = example.total // 2 + 2  # in mid-window, behind the end of a pass
    assert (
        forked(example, example.command(run), tmp_path / "killed", kill_in_save=cut).code == -signal.SIGKILL
    )
    again = forked(example, example.command(run, seed=next(seeds)), tmp_path / "ended")
    assert_same_end(run, again, reference)
