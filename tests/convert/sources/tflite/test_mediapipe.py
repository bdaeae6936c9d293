"""MediaPipe's custom operators: what was read computes what MediaPipe computed."""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.engines import import_litert
from edgeinfer.convert.sources.tflite import read_file
from edgeinfer.errors import SourceError, UnsupportedError
from tests.convert.sources.tflite.custom_file import Step, flexbuffer, write_steps
from tests.convert.sources.tflite.mediapipe_cases import (
    NETS,
    PICTURES,
    VALID,
    Case,
    cases,
    golden,
    picture,
    thinned,
)
from tests.convert.sources.tflite.reading import Array, floats, run_onnx
from tests.zoo import fetch

CASES = {case.id: case for case in cases()}
_golden = functools.cache(golden)


def _near(value: Array, want: Array, share: float = 1e-5) -> None:
    np.testing.assert_allclose(value, want, rtol=share, atol=share * np.abs(want).max())


def _first(kind: str) -> Case:
    return next(c for c in CASES.values() if c.id.startswith(kind))


@pytest.mark.sample(20)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_mediapipe(case: Case, tmp_path: Path) -> None:
    found = read_file(case.write(tmp_path / "m.tflite"))
    made = run_onnx(found.model, dict(case.inputs))
    for value, want in zip(made.values(), _golden()[case.id], strict=True):
        _near(value, want)
    assert found.original.custom == (case.name,)
    assert any(line.startswith(f"{case.name}: read by MediaPipe's") for line in found.notes.lines)


@pytest.mark.models
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("net", NETS)
def test_nets_equal_mediapipe(net: str, name: str) -> None:
    found = read_file(fetch(net))
    (given,) = found.original.inputs
    made = run_onnx(found.model, {given[0]: picture(name, NETS[net])})
    wanted = _golden()[f"{net} {name}"]
    assert len(wanted) == len(made)
    for value, want in zip(made.values(), wanted, strict=True):
        _near(thinned(value), want, 1e-4)


def test_sizes_that_a_run_decides(tmp_path: Path) -> None:
    case = next(c for c in CASES.values() if c.id.startswith("deconvolution-2-(3, 3)-(2, 2)"))
    _, height, width, depth = case.inputs["x"].shape
    path = case.write(tmp_path / "m.tflite", sizes={"x": (-1, -1, -1, depth)})
    model = read_file(path).model
    _near(run_onnx(model, dict(case.inputs))["y0"], _golden()[case.id][0])
    assert run_onnx(model, {"x": floats(1, height + 2, width, depth)})["y0"].shape[1] == (
        2 * (height + 1) + 3
    )


def refused(case: Case, tmp_path: Path, **more: Any) -> str:
    with pytest.raises(UnsupportedError) as caught:
        read_file(case.write(tmp_path / "m.tflite", **more))
    return str(caught.value)


def damaged(case: Case, tmp_path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        read_file(case.write(tmp_path / "m.tflite"))
    return str(caught.value)


def test_what_is_not_read_is_refused(tmp_path: Path) -> None:
    deconvolution, pool, unpool = map(_first, ("deconvolution-1-(3, 3)-(2", "pool", "unpool"))
    placing, moved, seen = map(_first, ("placing", "moved-landmarks", "moved-picture"))
    padding = replace(deconvolution, raw=struct.pack("<3i", 0, 1, 1))
    assert "padding 0, known are 1 (SAME) and 2 (VALID)" in refused(padding, tmp_path)
    open_sizes = refused(deconvolution, tmp_path, sizes={"x": (1, -1, -1, 3)})
    assert "dynamic_shape: SAME padding of a size that a run decides" in open_sizes
    assert "fix the sizes of the model's inputs" in open_sizes
    assert "'x' has elements of type INT32" in refused(deconvolution, tmp_path, kind="INT32")
    tanh = replace(pool, raw=struct.pack("<6i", 1, 2, 2, 2, 2, 4))
    assert "fused activation 4" in refused(tanh, tmp_path)
    assert "dynamic_shape" in refused(pool, tmp_path, sizes={"x": (1, -1, -1, 3)})
    overlap = replace(unpool, raw=struct.pack("<6i", 1, 1, 1, 2, 2, 0))
    assert "only windows that lie side by side are read" in refused(overlap, tmp_path)
    for case in (placing, moved, seen):
        assert "version 1, read is 2" in refused(replace(case, version=1), tmp_path)
    two = replace(seen, inputs={"x": floats(2, 9, 8, 3), "matrix": floats(1, 4, 4)})
    assert "2 images" in refused(two, tmp_path)


def test_damaged_options_are_told(tmp_path: Path) -> None:
    deconvolution, placing, seen = map(_first, ("deconvolution", "placing", "moved-picture"))
    assert "8 bytes of options, 12 are the least" in damaged(
        replace(deconvolution, raw=deconvolution.raw[:8]), tmp_path
    )
    zero = replace(deconvolution, raw=struct.pack("<3i", 1, 0, 1))
    assert "strides [1, 0]" in damaged(zero, tmp_path)
    for end in range(len(placing.raw)):
        assert "is malformed" in damaged(replace(placing, raw=placing.raw[:end]), tmp_path)
    fields: Mapping[str, Any] = {"output_height": 5, "output_width": 6}
    other = replace(seen, raw=flexbuffer(fields))
    assert "a result of shape [1, 5, 7, 3]" in damaged(other, tmp_path)
    few = replace(placing, inputs={"x": placing.inputs["x"][:, :19]})
    assert "19 landmarks" in damaged(few, tmp_path)


def test_options_of_any_bytes_end_in_one_line(tmp_path: Path) -> None:
    """Bytes are changed at random: what is read or refused is so at once and in words."""
    drawn = np.random.default_rng(0)
    for kind in ("deconvolution", "pool", "unpool", "placing", "moved-picture"):
        case = _first(kind)
        for _ in range(30):
            raw = bytearray(case.raw)
            for _ in range(drawn.integers(1, 4)):
                raw[drawn.integers(len(raw))] = drawn.integers(256)
            path = replace(case, raw=bytes(raw)).write(tmp_path / "m.tflite")
            with contextlib.suppress(SourceError, UnsupportedError):
                read_file(path)


def test_tables_are_not_built_beyond_measure(tmp_path: Path) -> None:
    pool, seen = map(_first, ("pool", "moved-picture"))
    wide = replace(pool, raw=struct.pack("<6i", 1, 2, 2, 1 << 15, 1 << 15, 0))
    assert "windows of 1073741824 elements; 256 are the most" in refused(wide, tmp_path)
    large = {"output_height": 1 << 16, "output_width": 1 << 16}
    assert "4194304 are the most" in refused(replace(seen, raw=flexbuffer(large)), tmp_path)


def test_other_custom_operators_are_named_all_at_once(tmp_path: Path) -> None:
    steps = [
        Step("Convolution2D", ["x"], {"a": (1, 2)}),
        Step("RELU", ["a"], {"b": (1, 2)}),
        Step("Mixture", ["b"], {"c": (1, 2)}),
    ]
    path = write_steps(tmp_path / "m.tflite", {"x": floats(1, 2)}, steps)
    with pytest.raises(UnsupportedError) as caught:
        read_file(path)
    first, second = str(caught.value).splitlines()[1:]
    assert "Convolution2D 'a'" in first
    assert "Mixture 'c'" in second
    for line in (first, second):
        assert "of custom operators Convolution2DTransposeBias, " in line
        assert "convert the original model, without the custom operator" in line


def _xnnpack_takes(case: Case) -> bool:
    """It has transposed convolutions; padded ones whose strides are within the kernel."""
    if case.name != "Convolution2DTransposeBias":
        return False
    padding, right, down = struct.unpack("<3i", case.raw)
    kernel = case.constants[0].shape[1:3]
    return bool(padding == VALID or (down <= kernel[0] and right <= kernel[1]))


@pytest.mark.parametrize("case", [c for c in CASES.values() if _xnnpack_takes(c)], ids=str)
def test_xnnpack_sides_with_mediapipe(case: Case, tmp_path: Path) -> None:
    """A third witness: LiteRT's delegate knows the name."""
    engine = import_litert().Interpreter(str(case.write(tmp_path / "m.tflite")), num_threads=1)
    engine.allocate_tensors()
    engine.set_tensor(engine.get_input_details()[0]["index"], case.inputs["x"])
    engine.invoke()
    _near(engine.get_tensor(engine.get_output_details()[0]["index"]), _golden()[case.id][0])
