"""Checks of runs: numbers, ownership, refusals, threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import Executable
from edgeinfer.backends.testing.cases import Values, normal
from edgeinfer.backends.testing.expect import (
    expected_error,
    require,
    require_outputs,
    require_runs,
)
from edgeinfer.backends.testing.loading import silence_required
from edgeinfer.backends.testing.models import CASES
from edgeinfer.backends.testing.subject import Subject
from edgeinfer.errors import ClosedError, LoadError, RunError

_WORKERS = 8
_RUNS = 25


def numbers_check(name: str) -> Callable[[Subject, Path], None]:
    """Return the check that one model gives the right numbers."""

    def check(subject: Subject, folder: Path) -> None:
        case = CASES[name]
        able = subject.backend.capabilities()
        sizes = {spec.shape for spec in subject.artifact(case, folder).inputs}
        dynamic = any(isinstance(dim, str) for shape in sizes for dim in shape or ())
        if case.dtypes <= able.dtypes and (able.dynamic_shapes or not dynamic):
            require_runs(subject.load(case, folder), case)

    check.__doc__ = f"Right numbers: {CASES[name].build.__doc__}"
    return check


def check_optimization_off(subject: Subject, folder: Path) -> None:
    """``optimize=False`` gives the same numbers, or is refused with a LoadError."""
    case = CASES["conv"]
    try:
        executable = subject.load(case, folder, optimize=False)
    except LoadError:
        return
    require_runs(executable, case)


def check_runs_repeat(subject: Subject, folder: Path) -> None:
    """The same inputs give the same bits again."""
    executable = subject.load(CASES["matmul"], folder)
    ((feeds, _),) = CASES["matmul"].runs()
    first = executable.run(feeds)["y"]
    for index in range(5):
        again = executable.run(feeds)["y"]
        require(np.array_equal(first, again), f"run {index + 2} differs from the first")


def check_outputs_belong_to_the_caller(subject: Subject, folder: Path) -> None:
    """A later run, a changed input or a close does not change an output; it can be written."""
    for name in ("add", "passed_through", "in_place_bait"):
        executable = subject.load(CASES[name], folder)
        ((feeds, expected),) = CASES[name].runs()
        feeds = {key: array.copy() for key, array in feeds.items()}
        first = executable.run(feeds)
        for array in feeds.values():
            array += 1
        executable.run(feeds)
        require_outputs(first, expected, f"{name}: outputs after another run")
        for key, array in first.items():
            require(array.flags.writeable, f"{name}: output {key!r} cannot be written")
            array[...] = 0
        second = executable.run({key: array - 1 for key, array in feeds.items()})
        kept = {key: array.copy() for key, array in second.items()}
        executable.close()
        del executable
        require_outputs(second, kept, f"{name}: outputs after close")


def check_inputs_are_left_alone(subject: Subject, folder: Path) -> None:
    """A run changes no input."""
    for name in ("in_place_bait", "passed_through", "add"):
        executable = subject.load(CASES[name], folder)
        ((feeds, _),) = CASES[name].runs()
        before = {key: array.copy() for key, array in feeds.items()}
        executable.run(feeds)
        for key, array in feeds.items():
            require(np.array_equal(array, before[key]), f"{name}: input {key!r} was changed")


def check_strided_inputs(subject: Subject, folder: Path) -> None:
    """Inputs of any strides, and read-only ones, give the right numbers."""
    case = CASES["add"]
    executable = subject.load(case, folder)
    ((feeds, expected),) = case.runs()
    frozen = feeds["a"].copy()
    frozen.flags.writeable = False
    wide = np.zeros((4, 6), np.float32)
    wide[::2, ::2] = feeds["a"]
    views = {
        "column-major": np.asfortranarray(feeds["a"]),
        "reversed": np.ascontiguousarray(feeds["a"][::-1, ::-1])[::-1, ::-1],
        "sliced": wide[::2, ::2],
        "read-only": frozen,
    }
    for what, view in views.items():
        require_outputs(executable.run({"a": view, "b": feeds["b"]}), expected, f"{what} input")
    spread = executable.run({"a": np.broadcast_to(np.float32(2), (2, 3)), "b": feeds["b"]})
    require_outputs(spread, {"y": np.tile(feeds["b"] + 2, (2, 1))}, "broadcast input")


def check_unfit_inputs_raise(subject: Subject, folder: Path) -> None:
    """A missing or surplus input, another shape or another type raises RunError, quietly."""
    executable = subject.load(CASES["add"], folder)
    ((feeds, expected),) = CASES["add"].runs()
    a, b = feeds["a"], feeds["b"]
    unfit: dict[str, Values] = {
        "no inputs": {},
        "one input of two": {"a": a},
        "a surplus input": {"a": a, "b": b, "c": b},
        "an input of another name": {"a": a, "c": b},
        "another rank": {"a": a.reshape(6), "b": b},
        "another size": {"a": normal(2, 4), "b": b},
        "another type": {"a": a.astype(np.float64), "b": b},
    }
    for what, values in unfit.items():
        with silence_required(what), expected_error(RunError, f"run with {what}"):
            executable.run(values)
    require_outputs(executable.run(feeds), expected, "a good run after bad ones")


def check_failed_runs_raise(subject: Subject, folder: Path) -> None:
    """A run that fails inside the engine raises RunError, quietly, and the next one works."""
    if not subject.backend.capabilities().dynamic_shapes:
        return
    case = CASES["two_sizes"]
    executable = subject.load(case, folder)
    with silence_required("a failing run"), expected_error(RunError, "run that cannot work"):
        executable.run({"a": normal(3), "b": normal(4)})
    require_runs(executable, case)


def check_close(subject: Subject, folder: Path) -> None:
    """Closing twice is fine; whatever is used after it raises ClosedError."""
    executable = subject.load(CASES["add"], folder)
    ((feeds, _),) = CASES["add"].runs()
    buffers = {"y": np.zeros((2, 3), np.float32)}
    bound = executable.bind(feeds, buffers)
    executable.close()
    executable.close()
    uses: dict[str, Callable[[], Any]] = {
        "run": partial(executable.run, feeds),
        "run without inputs": partial(executable.run, {}),
        "bind": partial(executable.bind, feeds, buffers),
        "a bound call": bound,
    }
    for what, use in uses.items():
        with expected_error(ClosedError, f"{what} after close"):
            use()


def check_concurrent_runs(subject: Subject, folder: Path) -> None:
    """Eight threads get the results of their own inputs, and bound ones those of their own."""
    if not subject.backend.capabilities().concurrent_runs:
        return
    executable = subject.load(CASES["in_place_bait"], folder)

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        expected = {"y": -np.maximum(x, 0).reshape(6)}
        y = np.zeros(6, np.float32)
        bound = executable.bind({"x": x}, {"y": y})
        for _ in range(_RUNS):
            require_outputs(executable.run({"x": x}), expected, f"thread {seed}")
            bound()
            require_outputs({"y": y}, expected, f"thread {seed}, bound")

    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(work, range(_WORKERS)))


def check_close_during_runs(subject: Subject, folder: Path) -> None:
    """A run under way while another thread closes ends rightly or raises ClosedError."""
    if not subject.backend.capabilities().concurrent_runs:
        return
    case = CASES["matmul"]
    ((feeds, expected),) = case.runs()

    def work(executable: Executable) -> int:
        for count in range(10_000):
            try:
                outputs = executable.run(feeds)
            except ClosedError:
                return count
            require_outputs(outputs, expected, "run during close")
        return -1

    for _ in range(3):
        executable = subject.load(case, folder)
        with ThreadPoolExecutor(3) as pool:
            workers = [pool.submit(work, executable) for _ in range(3)]
            executable.run(feeds)
            executable.close()
            counts = [worker.result() for worker in workers]
        require(min(counts) >= 0, "runs go on after close")
