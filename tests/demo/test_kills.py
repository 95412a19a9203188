import pytest

from segue.demo.kills import continued_from, fewest_microbatches, plan_kills
from segue.demo.settings import RunSettings


def test_every_seed_kills_inside_a_window_and_during_a_save():
    for seed in range(200):
        run = RunSettings(seed=seed)
        kills = plan_kills(run)
        computing = [kill for kill in kills if not kill.is_during_save]
        assert len(kills) == 3
        assert any(continued_from(kill, run) % run.window_microbatches for kill in computing)
        assert any(kill.is_during_save for kill in kills)


@pytest.mark.parametrize("num_microbatches", [fewest_microbatches(RunSettings()), 160, 4000])
def test_each_kill_is_reachable_after_the_one_before(num_microbatches):
    for seed in range(100):
        run = RunSettings(seed=seed, num_microbatches=num_microbatches)
        places = [kill.microbatch for kill in plan_kills(run)]
        assert places == sorted(set(places))
        assert continued_from(plan_kills(run)[0], run) > 0
        assert places[-1] < num_microbatches


def test_a_save_is_due_at_the_boundary_where_it_is_killed():
    for seed in range(100):
        run = RunSettings(seed=seed)
        for kill in plan_kills(run):
            assert not kill.is_during_save or kill.microbatch % run.save_every_microbatches == 0


def test_a_seed_repeats_the_plan_and_another_changes_it():
    assert plan_kills(RunSettings(seed=5)) == plan_kills(RunSettings(seed=5))
    assert len({plan_kills(RunSettings(seed=seed)) for seed in range(50)}) > 40


def test_a_run_too_short_for_three_kinds_of_kills_is_refused():
    with pytest.raises(ValueError, match="at least"):
        plan_kills(RunSettings(num_microbatches=fewest_microbatches(RunSettings()) - 1))


def test_an_interrupted_save_is_not_what_segue_continues_from():
    run = RunSettings()
    during = next(kill for kill in plan_kills(run) if kill.is_during_save)
    assert continued_from(during, run) == during.microbatch - run.save_every_microbatches
