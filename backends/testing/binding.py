"""Checks of bound executables: fixed buffers, repeated runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeinfer.backends.testing.cases import Values, normal
from edgeinfer.backends.testing.expect import expected_error, require, require_outputs
from edgeinfer.backends.testing.models import CASES
from edgeinfer.backends.testing.subject import Subject
from edgeinfer.errors import RunError
from edgeinfer.types import Array

_WITHOUT_BUFFERS = {"strings", "size_from_data"}


def check_bind_equals_run(subject: Subject, folder: Path) -> None:
    """A bound call writes what a run returns, for every model with sizes known beforehand."""
    able = subject.backend.capabilities()
    for case in CASES.values():
        if not case.dtypes <= able.dtypes or case.may_refuse or case.name in _WITHOUT_BUFFERS:
            continue
        if f"check_numbers_of_{case.name}" in subject.known_failures:
            continue
        executable = subject.load(case, folder)
        for feeds, expected in case.runs()[: None if able.dynamic_shapes else 1]:
            outputs = {name: np.zeros_like(array) for name, array in expected.items()}
            executable.bind(feeds, outputs)()
            require_outputs(outputs, expected, f"{case.name}, bound")


def check_bind_reads_and_writes_in_place(subject: Subject, folder: Path) -> None:
    """The caller fills the buffers it gave, calls, and finds the results in the same memory."""
    executable = subject.load(CASES["add"], folder)
    ((feeds, _),) = CASES["add"].runs()
    inputs = {name: array.copy() for name, array in feeds.items()}
    outputs = {"y": np.zeros((2, 3), np.float32)}
    bound = executable.bind(inputs, outputs)
    for name, array in (*inputs.items(), *outputs.items()):
        held = (bound.inputs if name in inputs else bound.outputs)[name]
        require(np.shares_memory(held, array), f"bound buffer {name!r} is not the caller's")
    for step in range(4):
        inputs["a"][...] = step
        bound()
        expected = {"y": np.broadcast_to(inputs["b"] + np.float32(step), (2, 3))}
        require_outputs(outputs, expected, f"bound call {step}")
    before = {name: array.copy() for name, array in inputs.items()}
    executable.run(feeds)
    require_outputs(inputs, before, "bound inputs after a plain run")
    require_outputs(outputs, expected, "bound outputs after a plain run")


def check_bounds_are_independent(subject: Subject, folder: Path) -> None:
    """Two bound executables of one model keep their own buffers, also when one goes away."""
    executable = subject.load(CASES["add"], folder)
    b = np.array([1, 2, 3], np.float32)
    results = [np.zeros((2, 3), np.float32) for _ in range(2)]
    bounds = [
        executable.bind({"a": np.full((2, 3), 10 * i, np.float32), "b": b}, {"y": y})
        for i, y in enumerate(results)
    ]
    for _ in range(2):
        for bound in bounds:
            bound()
        for i, y in enumerate(results):
            wanted = np.tile(b + np.float32(10 * i), (2, 1))
            require_outputs({"y": y}, {"y": wanted}, f"bound {i}")
            y[...] = 0
    del bounds[0]
    bounds[0]()
    wanted = np.tile(b + np.float32(10), (2, 1))
    require_outputs({"y": results[1]}, {"y": wanted}, "bound after another went away")


def check_bound_buffers_stay_alive(subject: Subject, folder: Path) -> None:
    """A bound executable keeps buffers that the caller has forgotten."""
    executable = subject.load(CASES["matmul"], folder)
    ((feeds, expected),) = CASES["matmul"].runs()
    x, y = feeds["x"].copy(), np.zeros((4, 32), np.float32)
    bound = executable.bind({"x": x}, {"y": y})
    del x, y
    rubbish = [np.full((4, 256), np.nan, np.float32) for _ in range(20)]
    bound()
    require_outputs(dict(bound.outputs), expected, "buffers held by the bound executable only")
    require(len(rubbish) > 0, "")


def check_unfit_buffers_raise(subject: Subject, folder: Path) -> None:
    """A buffer that cannot be used raises RunError from ``bind``."""
    executable = subject.load(CASES["add"], folder)
    ((feeds, _),) = CASES["add"].runs()
    a, b, y = feeds["a"], feeds["b"], np.zeros((2, 3), np.float32)
    frozen = y.copy()
    frozen.flags.writeable = False
    unfit: dict[str, tuple[Values, dict[str, Array]]] = {
        "no outputs": ({"a": a, "b": b}, {}),
        "one input of two": ({"a": a}, {"y": y}),
        "a surplus input": ({"a": a, "b": b, "c": b}, {"y": y}),
        "a surplus output": ({"a": a, "b": b}, {"y": y, "z": y}),
        "an input of another type": ({"a": a.astype(np.float64), "b": b}, {"y": y}),
        "an output of another type": ({"a": a, "b": b}, {"y": y.astype(np.float64)}),
        "an output of another shape": ({"a": a, "b": b}, {"y": np.zeros((3, 2), np.float32)}),
        "a strided input": ({"a": np.asfortranarray(a), "b": b}, {"y": y}),
        "a strided output": ({"a": a, "b": b}, {"y": np.zeros((3, 2), np.float32).T}),
        "a read-only output": ({"a": a, "b": b}, {"y": frozen}),
    }
    for what, (inputs, outputs) in unfit.items():
        with expected_error(RunError, f"bind with {what}"):
            executable.bind(inputs, outputs)


def check_bound_sizes_must_fit(subject: Subject, folder: Path) -> None:
    """With open sizes, an output buffer that is too large or too small raises RunError."""
    if not subject.backend.capabilities().dynamic_shapes:
        return
    executable = subject.load(CASES["dynamic_batch"], folder)
    for rows in (1, 3):
        buffers = {"y": np.zeros((rows, 4), np.float32)}
        with expected_error(RunError, f"bound call with {rows} rows for 2"):
            executable.bind({"x": normal(2, 8)}, buffers)()
