"""Four ranks, then two, then three: the samples and their augmentation are those of the run that never stopped."""

import json
from dataclasses import replace

import pytest

from tests.exactness.processes import in_new_process
from tests.exactness.rank_lives import LENGTH, STEPS_OF_EPOCH, Life, live

TOTAL = 2 * STEPS_OF_EPOCH
CUTS = range(1, TOTAL)


def lived(life):
    """Let all ranks of a life live, each in a new process; return what they wrote down, by rank."""
    diaries = []
    for rank in range(life.world_size):
        own = replace(life, rank=rank)
        assert in_new_process(live, own) == 0
        diaries.append(json.loads(own.diary.read_text()))
    return diaries


def expect_the_same(diaries, whole, start):
    """Assert that the parts of all ranks, one behind the other, are the steps of one rank alone, bit for bit."""
    for number, pages in enumerate(zip(*diaries, strict=True)):
        expected = whole[start + number]
        assert [index for page in pages for index in page["samples"]] == expected["samples"]
        assert [bits for page in pages for bits in page["bits"]] == expected["bits"]
        assert {page["position"] for page in pages} == {expected["position"]}
    assert start + len(diaries[0]) == len(whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The steps of one rank that never stopped."""
    (diary,) = lived(Life(str(tmp_path_factory.mktemp("whole"))))
    samples = [index for page in diary for index in page["samples"]]
    assert sorted(samples[:LENGTH]) == sorted(samples[LENGTH:]) == list(range(LENGTH))
    assert samples[:LENGTH] != samples[LENGTH:]
    return diary


def test_four_then_two_then_three_ranks_at_every_cut(whole, tmp_path):
    four = Life(str(tmp_path), world_size=4)
    expect_the_same(lived(four), whole, 0)
    twos = {}
    for cut in CUTS:
        twos[cut] = replace(four, world_size=2, start=cut, came_from=four.name)
        expect_the_same(lived(twos[cut]), whole, cut)
    # The third begin where the second have saved, of which each began elsewhere.
    for cut in CUTS[1:]:
        three = replace(four, world_size=3, start=cut, came_from=twos[(cut + 1) // 2].name)
        expect_the_same(lived(three), whole, cut)


@pytest.mark.parametrize("persistent", [False, True])
def test_ranks_with_workers_go_on_alike(tmp_path, persistent):
    one = Life(str(tmp_path), workers=1, persistent=persistent)
    (expected,) = lived(one)
    four = replace(one, world_size=4, stop=3)
    lived(four)
    two = replace(one, world_size=2, start=3, stop=7, came_from=four.name)
    expect_the_same(lived(two), expected[:7], 3)
    three = replace(one, world_size=3, start=7, came_from=two.name)
    expect_the_same(lived(three), expected, 7)


@pytest.mark.parametrize("stateful", [False, True])
def test_augmentation_is_the_same_with_any_workers_and_after_a_resume_in_a_new_process(
    tmp_path, stateful, whole
):
    expected = None
    for workers, cuts in ((0, (3, 5, 8)), (1, (7,)), (2, (3,))):
        first = Life(str(tmp_path), workers=workers, stateful=stateful)
        (diary,) = lived(first)
        bits = [page["bits"] for page in diary]
        expected = bits if expected is None else expected
        assert bits == expected
        for cut in cuts:
            (rest,) = lived(replace(first, start=cut, came_from=first.name))
            assert [page["bits"] for page in rest] == expected[cut:]
    assert stateful or expected == [page["bits"] for page in whole]
