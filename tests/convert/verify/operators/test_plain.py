import numpy as np
import pytest
from onnx.reference.ops.op_gather import Gather

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
