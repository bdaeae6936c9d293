"""Values of bound buffers are looked at before a run, or next to that of a device."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

from edgeinfer.errors import InputError, RunError
from edgeinfer.runtime import bound
from edgeinfer.runtime.bound import checked
from edgeinfer.runtime.inputs import ValueCheck
from edgeinfer.types import Array, InputRange, TensorSpec

SPECS = (TensorSpec("x", "float32", ("N",)), TensorSpec("k", "int64", (1,)))
REACH = {"x": (6.0, InputRange(-6.0, 6.0))}
FEW, MANY = 10, bound._MANY_BYTES


def values(level: str | None = "finite", *, reaches: bool = True) -> ValueCheck:
    return ValueCheck(SPECS, level, "take another", REACH if reaches else None)


def feeds(value: float, count: int = FEW) -> dict[str, Array]:
    x = np.zeros(count, np.float32)
    x[count // 2] = value
    return {"x": x, "k": np.array([7])}


@pytest.mark.parametrize("level", [None, "finite"])
@pytest.mark.parametrize("reaches", [True, False])
@pytest.mark.parametrize("value", [1.0, -6.0, 6.5, 1e15, np.nan, np.inf, -np.inf])
def test_holds_where_nothing_is_said(value: float, level: str | None, reaches: bool) -> None:
    check, is_silent = values(level, reaches=reaches), True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check(feeds(value))
        except (InputError, RuntimeWarning):
            is_silent = False
    # Where it says nothing of NaN it is asked again, which changes nothing.
    assert check.holds(feeds(value)) <= is_silent
    if np.isfinite(value):
        assert check.holds(feeds(value)) == is_silent


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_what_is_refused_is_refused_every_time(beside: bool, count: int) -> None:
    given, runs = feeds(1.0, count), list[int]()
    call = checked(lambda: runs.append(1), values(), given, beside=beside)
    call()
    assert runs == [1]
    given["x"][0] = np.nan
    for _ in range(2):
        with pytest.raises(InputError, match="'x'"):
            call()
    given["x"][0] = 7.0
    with pytest.warns(RuntimeWarning, match="expected values up to 6"):
        call()
    given["x"][0] = -1.0
    call()


def test_values_are_looked_at_while_a_device_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    holds = ValueCheck.holds

    def watched(self: ValueCheck, given: dict[str, Array]) -> bool:
        looked.set()
        return holds(self, given)

    monkeypatch.setattr(ValueCheck, "holds", watched)

    def run() -> None:
        # It would wait for ever for what came behind it.
        assert looked.wait(30)

    checked(run, values(), feeds(1.0, MANY), beside=True)()


def test_who_gave_the_values_is_told_of_them_first() -> None:
    def run() -> None:
        raise RunError("the device failed")

    with pytest.raises(RunError):
        checked(run, values(), feeds(1.0, MANY), beside=True)()
    with pytest.raises(InputError):
        checked(run, values(), feeds(np.inf, MANY), beside=True)()
