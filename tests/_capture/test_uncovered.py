"""Marks of values, and variables of running functions."""

import inspect
import sys

import numpy as np
import pytest
import torch

from segue._capture.uncovered_frames import locals_of, program_frames
from segue._capture.uncovered_marks import PASSING, mark_of, text_of


def mark(value):
    return mark_of(value, lambda value, place: None)


ALIKE = {
    "a number": (lambda: 3, lambda: 4),
    "nan": (lambda: float("nan"), lambda: 1.0),
    "a flag and a number": (lambda: True, lambda: 1),
    "a list": (lambda: [1, [2]], lambda: [1, [3]]),
    "a long list": (lambda: list(range(1000)), lambda: list(range(1001))),
    "a dictionary": (lambda: {"a": 1}, lambda: {"a": 2}),
    "keys": (lambda: {"a": 1}, lambda: {"b": 1}),
    "a set": (lambda: {1, 2}, lambda: {1, 3}),
    "a tensor": (lambda: torch.ones(3), lambda: torch.tensor([1.0, 1.0, 2.0])),
    "signed zeros": (lambda: torch.tensor(0.0), lambda: torch.tensor(-0.0)),
    "a large tensor": (lambda: torch.ones(300, 300), lambda: torch.zeros(300, 300)),
    "bfloat16": (lambda: torch.ones(3).bfloat16(), lambda: torch.zeros(3).bfloat16()),
    "dtypes": (lambda: torch.ones(3), lambda: torch.ones(3).double()),
    "sparse": (lambda: torch.eye(3).to_sparse(), lambda: (2 * torch.eye(3)).to_sparse()),
    "strided": (lambda: torch.arange(6.0).view(2, 3).T, lambda: torch.arange(1.0, 7.0).view(2, 3).T),
    "an array": (lambda: np.arange(4), lambda: np.arange(1, 5)),
    "a number of NumPy": (lambda: np.float32(2), lambda: np.float32(3)),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_equal_values_have_equal_marks_and_others_have_others(kind):
    first, other = ALIKE[kind]
    assert mark(first()) == mark(first())
    assert mark(first()) != mark(other())
    assert text_of(mark(first()))


def test_a_write_through_data_is_seen():
    tensor = torch.zeros(5)
    before = mark(tensor)
    tensor.data[3] = 1
    assert mark(tensor) != before


def test_what_a_graph_made_passes_also_in_containers():
    made = torch.ones(2, requires_grad=True) * 2
    assert mark(made) is PASSING
    assert mark([1, {"a": made}]) is PASSING


class Held:
    pass


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger keeps the variables")
def test_variables_that_were_read_are_not_kept_alive():
    held = Held()
    frame = inspect.currentframe()
    found = locals_of(frame)
    assert found["held"] is held
    count = sys.getrefcount(held)
    del found
    assert sys.getrefcount(held) == count - 1 == 2


def test_frames_of_libraries_are_passed_over():
    files = {frame.f_code.co_filename for frame in program_frames(inspect.currentframe())}
    assert __file__ in files
    assert not any("site-packages" in file for file in files)
