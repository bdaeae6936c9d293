import numpy as np
import pytest
from onnx.reference.ops.op_cum_sum import CumSum
from onnx.reference.ops.op_gather import Gather
from onnx.reference.ops.op_gather_elements import GatherElements

from edgeinfer.convert.verify.operators import OPERATORS

DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array(1), np.array([-1, 0]), np.array([[0, 1], [-2, 1]])])
def test_gather_is_onnx_own(axis: int, indices: np.ndarray) -> None:
    (found,) = OPERATORS["Gather"]({"axis": axis}, 13, [DATA, indices])
    expected = Gather.eval(DATA, indices, axis=axis)
    np.testing.assert_array_equal(found, expected)


def test_gather_of_a_row_by_a_number_is_an_array() -> None:
    (found,) = OPERATORS["Gather"]({}, 13, [np.array([3, 4]), np.array(-1)])
    assert isinstance(found, np.ndarray)
    assert found.shape == ()
    assert found == 4


def test_gather_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        OPERATORS["Gather"]({}, 13, [DATA, np.array(2)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_takes_fewer_positions_than_there_are_rows(axis: int) -> None:
    whole = np.zeros([2 if a == axis % 3 else n for a, n in enumerate(DATA.shape)], np.int64)
    whole[0], whole[:, -1] = 1, -1
    run = OPERATORS["GatherElements"]
    (found,) = run({"axis": axis}, 13, [DATA, whole])
    expected = GatherElements.eval(DATA, whole, axis=axis % 3)
    np.testing.assert_array_equal(found, expected)
    (part,) = run({"axis": axis}, 13, [DATA, whole[:1, :2, :1]])
    np.testing.assert_array_equal(part, found[:1, :2, :1])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_running_sums_take_an_axis_of_either_form(reverse: int, exclusive: int, axis: int) -> None:
    attrs = {"reverse": reverse, "exclusive": exclusive}
    expected = CumSum.eval(DATA, np.array(axis), **attrs)
    for form in (np.array(axis), np.array([axis])):
        (found,) = OPERATORS["CumSum"](attrs, 14, [DATA, form])
        np.testing.assert_array_equal(found, expected)
