import math

from segue.demo.settings import Role
from segue.demo.verdict import compare, digest
from tests.demo.results import result

WHOLE = result(Role.UNINTERRUPTED, [3.0, 2.0, 1.0])


def test_equal_losses_and_digests_are_identical():
    same = result(Role.SEGUE, [3.0, [2.0, 2.0], 1.0])
    found = compare(WHOLE, same)
    assert found.is_identical
    assert (found.num_losses, found.num_replayed, found.largest_difference) == (3, 1, 0.0)
    assert digest(WHOLE) == digest(same)


def test_one_bit_in_one_loss_is_not_identical():
    near = result(Role.SEGUE, [3.0, math.nextafter(2.0, 3.0), 1.0])
    found = compare(WHOLE, near)
    assert not found.is_identical
    assert (found.num_losses_differing, found.first_differing) == (1, 2)
    assert found.largest_difference == math.nextafter(2.0, 3.0) - 2.0
    assert digest(WHOLE) != digest(near)


def test_a_replay_that_came_out_otherwise_is_not_identical_even_if_the_last_value_is_right():
    found = compare(WHOLE, result(Role.SEGUE, [3.0, [2.5, 2.0], 1.0]))
    assert found.num_losses_differing == 0
    assert (found.num_replayed, found.num_replayed_differing) == (1, 1)
    assert not found.is_identical


def test_a_section_of_the_final_training_that_differs_is_named():
    found = compare(WHOLE, result(Role.SEGUE, [3.0, 2.0, 1.0], streams="other"))
    assert found.sections_differing == ("streams",)
    assert not found.is_identical


def test_a_missing_loss_differs():
    found = compare(WHOLE, result(Role.SEGUE, [3.0, 2.0]))
    assert (found.num_losses_differing, found.largest_difference) == (1, math.inf)
