"""Boxes by compiled code are those of NumPy, at limits too."""

from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.decode.grouping import ByNumpy
from edgeinfer.errors import RunError
from edgeinfer.runtime.pipelines.grouping import GroupingByCode, grouping


def _boxes(rng: np.random.Generator, count: int) -> Any:
    """Many of them share sides, so that overlaps are simple fractions."""
    corners = rng.integers(0, 12, (count, 4)).astype(np.float32) * np.float32(rng.choice([1, 0.1]))
    corners[:, 2:] += corners[:, :2] + 1
    return corners


@pytest.mark.parametrize("overlap", [0.0, 1 / 3, 0.3, 0.5, 1.0])
def test_groups(functions: Functions, overlap: float) -> None:
    rng = np.random.default_rng(0)
    by_code, plain = GroupingByCode(functions), ByNumpy()
    for count in (0, 1, 2, 7, 8, 9, 64, 301):
        corners, classes = _boxes(rng, count), rng.integers(0, 3, count)
        for most in (0, 1, 5, 1000):
            for per_class in (True, False):
                given = corners, classes, overlap, most
                found = by_code.groups(*given, per_class=per_class)
                expected = plain.groups(*given, per_class=per_class)
                np.testing.assert_array_equal(found, expected, err_msg=f"{count}, {most}")


def test_boxes_that_are_out_of_range(functions: Functions) -> None:
    corners = np.array(
        [[0, 0, 1e30, 1e30], [0, 0, 1e30, 9e29], [-1e38, 0, 1e38, 5], [3, 3, 3, 3], [1, 1, 0, 0]],
        np.float32,
    )
    classes = np.zeros(len(corners), np.int64)
    with np.errstate(all="ignore"):
        expected = ByNumpy().groups(corners, classes, 0.5, 9, per_class=True)
    found = GroupingByCode(functions).groups(corners, classes, 0.5, 9, per_class=True)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_peaks(functions: Functions, axis: int) -> None:
    rng = np.random.default_rng(0)
    by_code, plain = GroupingByCode(functions), ByNumpy()
    for shape in ((1, 1), (5, 5), (33, 84), (84, 33), (100, 7), (6, 1000)):
        scores = rng.normal(0, 5, shape).astype(np.float32)
        scores[rng.random(shape) < 0.1] = np.nan
        scores[rng.random(shape) < 0.05] = -np.inf
        for first in {0, shape[axis] // 2, shape[axis] - 1}:
            found, expected = (b.peaks(scores, first, axis) for b in (by_code, plain))
            # Where there is nothing but NaN neither reaches any threshold.
            np.testing.assert_array_equal(found, np.where(np.isnan(expected), -np.inf, expected))


def test_arrays_without_a_function_are_left_to_numpy(functions: Functions) -> None:
    by_code, plain = GroupingByCode(functions), ByNumpy()
    rng = np.random.default_rng(0)
    wide = _boxes(rng, 20).astype(np.float64)
    classes = np.zeros(20, np.int64)
    np.testing.assert_array_equal(
        by_code.groups(wide, classes, 0.3, 9, per_class=True),
        plain.groups(wide, classes, 0.3, 9, per_class=True),
    )
    turned = rng.normal(0, 1, (9, 5)).astype(np.float32).T
    np.testing.assert_array_equal(by_code.peaks(turned, 1, 0), plain.peaks(turned, 1, 0))


def test_what_is_used_is_told(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grouping(functions, "")[1] == "boxes by compiled code for x86-64-v3"
    assert grouping(None, "it was requested")[1] == "boxes by NumPy: it was requested"

    def wrong(name: str, arguments: Any) -> None:
        arguments[-1][...] = 0

    monkeypatch.setattr(functions, "call", wrong)
    by, about = grouping(functions, "")
    assert isinstance(by, ByNumpy)
    assert about == "boxes by NumPy: the bundle's code gives other boxes here"


def test_arguments_are_checked_by_the_function_itself(functions: Functions) -> None:
    some = np.zeros((4, 8), np.float32)
    with pytest.raises(RunError, match="has no function 'nothing'"):
        functions.call("nothing", (some,))
    with pytest.raises(RunError, match="Expected 3 arguments"):
        functions.call("peaks_down", (some,))
    with pytest.raises(RunError, match="dtype"):
        functions.call("peaks_down", (some, np.zeros(1, np.int64), np.zeros(8, np.float32)))
    with pytest.raises(RunError, match="expected to match"):
        functions.call("peaks_down", (some, np.zeros(1, np.int32), np.zeros(7, np.float32)))
    with pytest.raises(ValueError, match="not contiguous"):
        functions.call("peaks_down", (some.T, np.zeros(1, np.int32), np.zeros(4, np.float32)))
