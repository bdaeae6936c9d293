import ml_dtypes
import numpy as np
import pytest

from edgeinfer.bundle.values import (
    BELOW_INFINITY,
    FINITE,
    INTEGERS,
    KEY,
    NOT_INFINITE,
    NOT_NAN,
    beyond,
    fits,
    integer_bounds,
    stricter,
    unfit,
)
from edgeinfer.types import Array

TAKES = {
    NOT_NAN: (np.inf, -np.inf),
    BELOW_INFINITY: (-np.inf,),
    NOT_INFINITE: (np.nan,),
    FINITE: (),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("level", TAKES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.0])
def test_each_level_takes_its_values_only(level: str, value: float, dtype: type) -> None:
    array: Array = np.zeros((3, 40), dtype)
    array[1, 33] = value
    found = unfit(level, array)
    if value == 1.0 or value in TAKES[level] or any(value is v for v in TAKES[level]):
        assert found == ""
    else:
        what = {NOT_NAN: "NaN", NOT_INFINITE: "infinite"}.get(level, "NaN or infinite")
        assert found == f"1 of 120 {what}, the first at [1, 33]"


@pytest.mark.parametrize("level", TAKES)
def test_nan_among_infinities_is_seen(level: str) -> None:
    for fill in (np.inf, -np.inf):
        array = np.full(64, fill, np.float32)
        array[50] = np.nan
        assert unfit(level, array)
        assert unfit(level, array[::-2]) == "" or level != NOT_NAN


@pytest.mark.parametrize("one", [*TAKES, ""])
@pytest.mark.parametrize("other", [*TAKES, ""])
def test_the_stricter_of_two_levels_refuses_what_either_does(one: str, other: str) -> None:
    for value in (np.nan, np.inf, -np.inf):
        array = np.full(3, value, np.float32)
        either = any(unfit(level, array) for level in (one, other) if level)
        both = stricter(one, other)
        assert bool(both and unfit(both, array)) >= either
    assert stricter(one, "") == stricter("", one) == stricter(one, one) == one


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.float32),
        np.array(2.0, np.float32),
        np.array([1, 2]),
        np.array([True]),
        np.array(["a"], object),
        np.full((1000,), np.finfo(np.float32).max),
    ],
)
def test_ordinary_arrays_pass(array: np.ndarray) -> None:
    assert all(not unfit(level, array) for level in TAKES)


def test_fits_by_constraint() -> None:
    feeds = {"x": np.array([np.nan], np.float32)}
    assert fits({}, feeds)
    assert fits({"os": "linux"}, feeds)
    assert not fits({KEY: NOT_NAN}, feeds)


def test_integers_are_held_to_their_bounds() -> None:
    constraints = {INTEGERS: '{"ids": [0, 5]}'}
    assert fits(constraints, {"ids": np.array([0, 5]), "x": np.array([99])})
    assert not fits(constraints, {"ids": np.array([0, 6])})
    assert beyond((0, 5), np.array([-1, 5])) == "-1 is not between 0 and 5"
    assert beyond((0, 5), np.array([2.5, 9.0])) == "9.0 is not between 0 and 5"
    assert beyond((0, 5), np.array([np.nan])) == beyond((0, 5), np.zeros(0, np.int64)) == ""
    more = integer_bounds('{"x": [0, 50, 2, 0, 5]}')["x"]
    assert beyond(more, np.array([50, 50])) == ""
    assert beyond(more, np.array([1, 2, 50])) == "50 of 3 elements is not between 0 and 5"


@pytest.mark.parametrize("text", ["", "[]", '{"x": 5}', '{"x": [1]}', '{"x": ["a", 2]}'])
def test_bounds_that_say_nothing_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected bounds by input name"):
        integer_bounds(text)
