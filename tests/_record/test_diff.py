"""What differs, where, and by how much."""

import math

import numpy as np
import pytest
import torch

from segue._capture.staging import capture_tensor
from segue._record.diff import diff
from segue._record.gradients import GradientsRecord
from tests._store.records import array, record, tensor


def gradients(values):
    return record(gradients=GradientsRecord({"w": capture_tensor(values, "w")}))


def only(left, right):
    [difference] = diff(left, right).differences
    return difference


def test_records_of_one_boundary_are_identical():
    found = diff(record(), record(environment={}, step=7))
    assert found.identical
    assert found.first is None
    assert found.worst is None


def test_a_differing_tensor_is_told_with_count_place_values_and_distance():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    other = values.clone()
    other[1, 0] = torch.nextafter(torch.nextafter(other[1, 0], torch.tensor(9.0)), torch.tensor(9.0))
    other[1, 1] = 4.5
    found = only(gradients(values), gradients(other))
    assert (found.section, found.path) == ("gradients", "tensors/w")
    assert (found.num_elements, found.num_differing, found.first_index) == (4, 2, (1, 0))
    assert (found.left, found.right) == (repr(3.0), repr(other[1, 0].item()))
    assert found.max_absolute == 0.5
    assert found.max_ulps == round(0.5 / 2**-21)


@pytest.mark.parametrize(
    ("left", "right", "ulps"),
    [(0.0, -0.0, 0), (1.0, 1.0000001192092896, 1), (1e-45, -1e-45, 2), (0.0, 1e-45, 1), (3.4028234663852886e38, math.inf, 1)],
)  # fmt: skip
def test_distances_count_representable_values(left, right, ulps):
    found = only(gradients(torch.tensor(left)), gradients(torch.tensor(right)))
    assert found.max_ulps == ulps
    assert found.num_differing == 1
    assert found.first_index == ()


def test_a_nan_on_one_side_is_infinitely_far():
    found = only(gradients(torch.tensor([1.0, 2.0])), gradients(torch.tensor([1.0, math.nan])))
    assert found.max_absolute == math.inf
    assert found.max_ulps is None


def test_nans_of_another_payload_differ():
    one, other = (
        torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00123)
    )
    assert only(gradients(one), gradients(other)).num_differing == 1


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float64, torch.complex64,
     torch.complex128, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2],
)  # fmt: skip
def test_every_dtype_can_be_compared(dtype):
    size = dtype.itemsize
    one, other = torch.zeros(2 * size, dtype=torch.uint8), torch.zeros(2 * size, dtype=torch.uint8)
    other[0] = 1
    found = only(gradients(one.view(dtype)), gradients(other.view(dtype)))
    assert (found.num_differing, found.first_index) == (1, (0,))


def test_another_layout_is_told_as_such():
    values = torch.arange(6.0).view(2, 3)
    found = only(gradients(values), gradients(values.t().contiguous().t()))
    assert (found.left, found.right, found.num_differing) == ("strides (3, 1)", "strides (1, 2)", 0)


def test_another_shape_or_dtype_is_told_without_numbers():
    found = only(gradients(torch.ones(2)), gradients(torch.ones(2, dtype=torch.float64)))
    assert (found.left, found.right, found.num_elements) == ("float32 (2,)", "float64 (2,)", None)


def test_one_sided_and_plain_leaves_are_told_by_path():
    left, right = record(caller_state={"a": 1, "b": [2]}), record(caller_state={"b": [3], "c": 10**5000})
    found = {item.path: (item.left, item.right) for item in diff(left, right).differences}
    assert found["a"] == ("1", "absent")
    assert found["b/0"] == ("2", "3")
    assert found["c"][0] == "absent"
    assert "too many digits" in found["c"][1]


def test_the_first_difference_is_by_section_and_the_worst_by_distance():
    left = record(gradients=GradientsRecord({"w": tensor("float32", seed=1)}), caller_state=1)
    right = record(gradients=GradientsRecord({"w": tensor("float32", seed=2)}), caller_state=2)
    found = diff(left, right)
    assert [item.section for item in found.differences] == ["gradients", "caller_state"]
    assert found.first is found.worst is found.differences[0]


def test_arrays_that_differ_are_told_by_dtype_and_shape():
    left, right = array(np.arange(3)), array(np.arange(3) + 1)
    found = only(record(caller_state={"a": left}), record(caller_state={"a": right}))
    assert (found.path, found.left, found.right) == ("a", "array <i8 (3,)", "array <i8 (3,)")
    assert diff(record(caller_state={"a": left}), record(caller_state={"a": array(np.arange(3))})).identical
