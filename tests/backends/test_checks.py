"""What backends check before an engine sees anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends import checks
from edgeinfer.backends.base import Artifact, Device, LoadOptions, Probe
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.types import Array, TensorSpec

X = TensorSpec("x", "float32", ("N", 3))
HERE = Probe("acme", "1", (Device("cpu", "any"),))


def test_engine_messages_become_one_bounded_line() -> None:
    assert checks.one_line(RuntimeError("a\n  b\t c\n")) == "a b c"
    assert checks.one_line(RuntimeError()) == "RuntimeError"
    assert len(checks.one_line(RuntimeError("x" * 10_000))) == 500


def test_missing_device_says_what_is_here_and_what_to_do() -> None:
    checks.check_device(HERE, "cpu")
    with pytest.raises(NotAvailableError, match="no device 'npu' here, only cpu; buy one"):
        checks.check_device(HERE, "npu", "buy one")
    with pytest.raises(NotAvailableError, match="acme not installed"):
        checks.check_device(Probe("acme", None, reason="acme not installed"), "cpu")


def test_file_must_be_there_and_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(LoadError, match="does not exist"):
        checks.check_file("acme", Artifact("onnx", path, (), ()), ("onnx",))
    with pytest.raises(LoadError, match="is not a file"):
        checks.check_file("acme", Artifact("onnx", tmp_path, (), ()), ("onnx",))
    path.touch()
    assert checks.check_file("acme", Artifact("onnx", path, (), ()), ("onnx",)) == path
    with pytest.raises(LoadError, match="opens a, onnx, not 'tflite'"):
        checks.check_file("acme", Artifact("tflite", path, (), ()), ("onnx", "a"))


def test_signature_gives_the_engines_positions() -> None:
    found = [{"a": "float32"}, {"x": "float32", "merged": "float32"}]
    a = TensorSpec("a", "float32", ())
    assert checks.check_signature("acme", "input", (X, a), found) == (1, 0)
    # An engine may have outputs that nobody requested, but not inputs that nobody gives.
    assert checks.check_signature("acme", "output", (X,), found) == (1,)
    with pytest.raises(LoadError, match=r"wants further inputs \[\['a'\]\]"):
        checks.check_signature("acme", "input", (X,), found)
    with pytest.raises(LoadError, match=r"inputs \['x'\] are not in the artifact, it has \['a'\]"):
        checks.check_signature("acme", "input", (X,), found[:1])
    with pytest.raises(LoadError, match="'x': expected float32, the artifact has int64"):
        checks.check_signature("acme", "output", (X,), [{"x": "int64"}])


def test_an_element_type_that_is_none_is_refused() -> None:
    for name in ("flnat32", "float72", "", "V99999999", "f4,f4", "(9,9)f4", "M8[s]", "O"):
        with pytest.raises(LoadError, match="no element type"):
            checks.array_type(name)


def test_threads() -> None:
    assert checks.thread_count("acme", LoadOptions(threads=3)) == 3
    assert 1 <= checks.thread_count("acme", LoadOptions()) <= (os.cpu_count() or 1)
    with pytest.raises(LoadError, match="1 or more and at most 1024, not 0"):
        checks.thread_count("acme", LoadOptions(threads=0))


def test_buffers_come_back_in_the_order_of_the_specs() -> None:
    y = TensorSpec("y", "int64", (2,))
    types: dict[str, np.dtype[Any]] = {"x": np.dtype("float32"), "y": np.dtype("int64")}
    arrays: dict[str, Array] = {"y": np.zeros(2, np.int64), "x": np.zeros((4, 3), np.float32)}
    assert list(checks.check_buffers("input", (X, y), arrays, types)) == ["x", "y"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "input 'x' has no buffer"),
        ({"x": np.zeros((1, 3), np.float32), "z": np.zeros(1)}, "no input is named 'z'"),
        ({"x": [[1.0, 2.0, 3.0]]}, "expected a numpy array, received list"),
        ({"x": np.zeros((1, 3))}, "expected float32, received float64"),
        ({"x": np.zeros((1, 3), ">f4")}, "expected float32, received >f4"),
        ({"x": np.zeros((1, 4), np.float32)}, r"expected x: float32\[N, 3\], received shape"),
        ({"x": np.zeros(3, np.float32)}, r"received shape \(3,\)"),
        ({"x": np.zeros((3, 2), np.float32).T}, r"received shape \(2, 3\)|not C-contiguous"),
    ],
)
def test_unfit_buffers(arrays: dict[str, object], message: str) -> None:
    with pytest.raises(RunError, match=message):
        checks.check_buffers("input", (X,), arrays, {"x": np.dtype("float32")})  # type: ignore[arg-type]


def test_read_only_buffer_serves_as_input_only() -> None:
    array = np.zeros((1, 3), np.float32)
    array.flags.writeable = False
    types = {"x": np.dtype("float32")}
    assert checks.check_buffers("input", (X,), {"x": array}, types)
    with pytest.raises(RunError, match="read-only"):
        checks.check_buffers("output", (X,), {"x": array}, types)


def test_strings_cannot_be_bound() -> None:
    spec = TensorSpec("s", "string", (1,))
    with pytest.raises(RunError, match="use run"):
        checks.check_buffers(
            "input", (spec,), {"s": np.array(["a"], object)}, {"s": checks.array_type("string")}
        )
