"""Integers at the borders of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.litert.backend import LitertBackend
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.errors import InputError, UsageError
from edgeinfer.types import Stored
from tests.convert.lower.tflite.run import expected, lower, model_of, ops, outputs, profile

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3)).astype(np.float32)
Q = """<float s = {0.03}, int8 z = {5}, float t = {0.05}, int8 u = {-7}, int16 zero = {0}>"""
INT8 = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
OUT = "p = QuantizeLinear(r, t, u) y = DequantizeLinear(p, t, u)"
NET = f"{INT8} r = Add(d, d) {OUT}"


def written(folder: Path, body: str, **asked: str) -> Any:
    model = normalise(model_of(f"g (float[2,3] x) => (float[2,3] y) {Q} {{ {body} }}")).model
    kinds = {"" if name == "every" else name: kind for name, kind in asked.items()}
    options = LowerOptions(io_dtypes=kinds)
    lowered = TfliteTarget().lower(model, profile(), options, folder)
    artifact = Artifact("tflite", lowered.files[0], input_specs(model), output_specs(model))
    return model, lowered, artifact


def plain(path: Path) -> Any:
    """What the file itself takes and gives."""
    return LitertBackend().load(Artifact("tflite", path, (), ()), LoadOptions())


@pytest.mark.parametrize(
    ("kind", "zeros", "found"),
    [
        ("int8", (5, -7), ["ADD"]),
        ("uint8", (133, 121), ["QUANTIZE", "ADD", "QUANTIZE"]),
    ],
)
def test_the_file_has_integers_and_the_numbers_stay(
    tmp_path: Path, kind: str, zeros: tuple[int, int], found: list[str]
) -> None:
    model, lowered, artifact = written(tmp_path, NET, every=kind)
    data = lowered.files[0].read_bytes()
    assert ops(data) == found
    scales = float(np.float32(0.03)), float(np.float32(0.05))
    assert lowered.stored == {
        name: Stored(kind, scale, zero)
        for name, scale, zero in zip(("x", "y"), scales, zeros, strict=True)
    }
    own = plain(lowered.files[0])
    assert [spec.dtype for spec in (*own.inputs, *own.outputs)] == [kind, kind]
    executable = LitertBackend().load(artifact, LoadOptions())
    float_file = lower(model)
    np.testing.assert_array_equal(executable.run({"x": X})["y"], outputs(float_file, {"x": X})["y"])
    assert np.abs(executable.run({"x": X})["y"] - expected(model, {"x": X})["y"]).max() < 0.051
    assert [n for n in executable.notes if f"stored as {kind}" in n] == list(executable.notes)
    assert len(executable.notes) == 2


def test_bound_buffers_are_floats_too(tmp_path: Path) -> None:
    _, _, artifact = written(tmp_path, NET, every="int8")
    executable = LitertBackend().load(artifact, LoadOptions())
    buffers = {"x": X.copy()}, {"y": np.zeros((2, 3), np.float32)}
    executable.bind(*buffers)()
    np.testing.assert_array_equal(buffers[1]["y"], executable.run({"x": X})["y"])


def test_one_border_only(tmp_path: Path) -> None:
    _, lowered, _ = written(tmp_path, NET, x="int8")
    assert ops(lowered.files[0].read_bytes()) == ["ADD", "DEQUANTIZE"]
    assert list(lowered.stored) == ["x"]


def test_all_but_one(tmp_path: Path) -> None:
    _, lowered, _ = written(tmp_path, NET, every="int8", x="float32")
    assert list(lowered.stored) == ["y"]


def test_sixteen_bits(tmp_path: Path) -> None:
    body = "q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) y = Relu(d)"
    _, lowered, artifact = written(tmp_path, body, x="int16")
    assert lowered.stored["x"].dtype == "int16"
    got = LitertBackend().load(artifact, LoadOptions()).run({"x": X})["y"]
    assert np.abs(got - np.maximum(X, 0)).max() <= 0.0151


def test_shares_of_one_have_a_known_scale(tmp_path: Path) -> None:
    _, lowered, artifact = written(tmp_path, f"{INT8} y = Softmax(d)", y="int8")
    assert lowered.stored["y"] == Stored("int8", 1 / 256, -128)
    got = LitertBackend().load(artifact, LoadOptions()).run({"x": X})["y"]
    want = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    assert np.abs(got - want).max() < 0.01


def test_floats_beside_the_integers_are_what_these_stand_for(tmp_path: Path) -> None:
    body = f"{INT8} n = Neg(x) y = Mul(d, n)"
    _, _, artifact = written(tmp_path, body, x="int8")
    got = LitertBackend().load(artifact, LoadOptions()).run({"x": X})["y"]
    rounded = np.clip(np.rint(X / np.float32(0.03)) + 5, -128, 127) - 5
    rounded = (rounded * 0.03).astype(np.float32)
    np.testing.assert_allclose(got, -rounded * rounded, rtol=1e-5, atol=1e-6)


def test_an_output_that_is_read_on_and_one_given_twice(tmp_path: Path) -> None:
    text = f"""g (float[2,3] x) => (float[2,3] y, float[2,3] w, float[2,3] v) {Q} {{ {NET}
        w = Add(y, y) v = DequantizeLinear(p, t, u) }}"""
    model = normalise(model_of(text)).model
    options = LowerOptions(io_dtypes={"y": "int8", "v": "int8"})
    lowered = TfliteTarget().lower(model, profile(), options, tmp_path)
    artifact = Artifact("tflite", lowered.files[0], input_specs(model), output_specs(model))
    got = LitertBackend().load(artifact, LoadOptions()).run({"x": X})
    np.testing.assert_array_equal(got["y"], got["v"])
    np.testing.assert_allclose(got["w"], 2 * got["y"], rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "asked", "said"),
    [
        (NET, {"nope": "int8"}, r"no input or output \['nope'\]"),
        (NET, {"x": "int16"}, "quantized to int8, int16 would be rounded twice"),
        (NET, {"y": "int16"}, "made of int8, int16 would be rounded twice"),
        (
            "y = Relu(x)",
            {"every": "int8"},
            "nothing quantizes it; output 'y': is computed",
        ),
        (
            f"{INT8} m = QuantizeLinear(x, t, u) e = DequantizeLinear(m, t, u) y = Mul(d, e)",
            {"x": "int8"},
            "several scales",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    tmp_path: Path, body: str, asked: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        written(tmp_path, body, **asked)


def test_integers_of_the_model_are_left(tmp_path: Path) -> None:
    text = "g (int64[2] x) => (int64[2] y) { y = Add(x, x) }"
    model = normalise(model_of(text)).model
    options = LowerOptions(io_dtypes={"": "int8"})
    lowered = TfliteTarget().lower(model, profile(), options, tmp_path)
    assert lowered.stored == {}
    options = LowerOptions(io_dtypes={"x": "int8"})
    with pytest.raises(UsageError, match="is int64 already"):
        TfliteTarget().lower(model, profile(), options, tmp_path)


def test_no_integer_stands_for_nan(tmp_path: Path) -> None:
    _, _, artifact = written(tmp_path, NET, every="int8")
    executable = LitertBackend().load(artifact, LoadOptions())
    with pytest.raises(InputError, match="no NaN, for which the file's int8 has no value"):
        executable.run({"x": np.full((2, 3), np.nan, np.float32)})
    ends = executable.run({"x": np.array([[np.inf, -np.inf, 1e30]] * 2, np.float32)})["y"]
    assert np.isfinite(ends).all()


def test_from_a_calibrated_model_to_a_verified_session(tmp_path: Path) -> None:
    weights = ", ".join(f"{v:.4f}" for v in RNG.normal(size=216) * 0.3)
    text = f"""g (float[1,3,8,8] image) => (float[1,8] scores) <float[8,3,3,3] w = {{{weights}}}> {{
        c = Conv<pads=[1,1,1,1]>(image, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
        scores = Softmax(f) }}"""
    ir.save(model_of(text), tmp_path / "net.onnx")
    samples = RNG.normal(size=(12, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", image=samples)
    made = edgeinfer.export(
        tmp_path / "net.onnx",
        tmp_path / "net.edge",
        targets=["rpi5"],
        precision="static_wi8_ai8",
        calibration=tmp_path / "samples.npz",
        force=True,
        io_dtypes="int8",
    )
    stored = {v.format: v.stored for v in made.manifest.variants}
    assert {n: s.dtype for n, s in stored["tflite"].items()} == {"image": "int8", "scores": "int8"}
    # ONNX Runtime before 1.32 gets the Softmax of integers wrong: it is left out there.
    assert stored.get("onnx", {}) == {}
    with Bundle.open(made.path) as opened:
        assert opened.manifest == made.manifest
    with edgeinfer.load(made.path, backend="litert") as session:
        assert session.verify().passed
        assert any("'image' is stored as int8" in n for n in session.report().notes)
        got = session.run({"image": samples[:1]})["scores"]
    want = expected(tmp_path / "net.onnx", {"image": samples[:1]})["scores"]
    assert got.dtype == np.float32
    assert np.abs(got - want).max() < 0.02


def test_only_files_that_hold_integers_can(tmp_path: Path) -> None:
    ir.save(model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "net.onnx")
    for asked, said in (("int8", "only .tflite"), ("int4", "none of float32"), ({"x": "f"}, "'x'")):
        with pytest.raises(UsageError, match=said):
            edgeinfer.export(
                tmp_path / "net.onnx", tmp_path / "n.edge", targets=["cpu"], io_dtypes=asked
            )
