"""Draws become inputs, their mean or numbers of a seed; those without effect are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

import edgeinfer
from edgeinfer.convert import sources
from edgeinfer.convert.families import RANDOM
from edgeinfer.convert.pipeline.request import check_mode
from edgeinfer.errors import UsageError, VerifyError
from edgeinfer.types import Array

LIKE = """g (float[N,4] x) => (float[N,4] y) {
  n = RandomNormalLike<mean = 1.0, scale = 0.5>(x) y = Add(x, n) }"""
FIXED = """g (float[2,4] x) => (float[2,4] y) {
  n = RandomUniform<low = -1.0, high = 3.0, shape = [2, 4]>() y = Add(x, n) }"""
DROP = """g (float[2,4] x) => (float[2,4] y) <float[1] p = {0.8}> {
  s = Shape(x) q = Expand(p, s) b = Bernoulli(q) y = Mul(x, b) }"""


def read(text: str, mode: str, **shapes: list[int | None]) -> tuple[ir.Model, list[str]]:
    source = sources.read(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    )
    source.settle_noise(mode, shapes)
    return source.model, [line for line in source.notes.lines if "draws" in line]


def run(model: ir.Model, **feeds: Array) -> Array:
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


def draws(model: ir.Model) -> bool:
    return any(n.op_type in RANDOM for n in model.graph.all_nodes())


X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize(("text", "want"), [(LIKE, X + 1), (FIXED, X + 1), (DROP, X)])
def test_their_mean(text: str, want: Array) -> None:
    model, lines = read(text, "zero")
    assert not draws(model)
    assert len(lines) == 1
    np.testing.assert_allclose(run(model, x=X), want)


def test_an_input() -> None:
    noise = np.random.default_rng(0).random((2, 4)).astype(np.float32)
    for text, want in (
        (LIKE, X + 1 + noise / 2),
        (FIXED, X - 1 + 4 * noise),
        (DROP, X * (noise < 0.8)),
    ):
        model, lines = read(text, "input")
        assert not draws(model)
        assert "input 'noise'" in lines[0]
        assert [v.name for v in model.graph.inputs] == ["x", "noise"]
        np.testing.assert_allclose(run(model, x=X, noise=noise), want, rtol=1e-6)


def test_a_seed() -> None:
    first, again, other = (run(read(FIXED, seed)[0], x=X) for seed in ("7", "7", "8"))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert (first - X).min() >= -1
    assert (first - X).max() < 3


def test_a_seed_needs_sizes() -> None:
    with pytest.raises(UsageError, match="--input-shape"):
        read(LIKE, "7")
    model, _ = read(LIKE, "7", x=[2, 4])
    assert not draws(model)
    assert run(model, x=X).shape == (2, 4)


@pytest.mark.parametrize(
    "text",
    [
        "n = RandomNormalLike<mean = 2.0, scale = 0.0>(x) y = Add(x, n)",
        "n = RandomUniformLike<low = 2.0, high = 2.0>(x) y = Add(x, n)",
        "z = Constant<value_float = 0.0>() n = RandomNormalLike(x) m = Mul(n, z) "
        "t = Constant<value_float = 2.0>() s = Add(m, t) y = Add(x, s)",
    ],
)
def test_no_effect_needs_no_answer(text: str) -> None:
    model, lines = read(f"g (float[N,4] x) => (float[N,4] y) {{ {text} }}", "")
    assert not draws(model)
    assert len(lines) == 1
    np.testing.assert_allclose(run(model, x=X), X + 2)


def test_draws_with_an_effect_stay_until_somebody_says() -> None:
    model, lines = read(LIKE, "")
    assert draws(model)
    assert not lines


def test_indices_are_no_noise() -> None:
    text = "g (float[2,4] x) => (int32[2,3] y) { y = Multinomial<sample_size = 3>(x) }"
    with pytest.raises(UsageError, match="draws indices"):
        read(text, "input")


@pytest.mark.parametrize("mode", ["nought", "-1", "1.5"])
def test_what_says_nothing_is_refused(mode: str) -> None:
    with pytest.raises(UsageError, match="expected input, zero or a seed"):
        check_mode(mode)


def test_a_conversion(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {LIKE}'), path)
    asked: dict[str, Any] = {"targets": ["onnxruntime"], "overwrite": True}
    with pytest.raises(VerifyError, match="--random"):
        edgeinfer.export(path, tmp_path / "m.edge", **asked)
    edgeinfer.export(path, tmp_path / "m.edge", random="zero", **asked)
    with edgeinfer.load(tmp_path / "m.edge") as session:
        np.testing.assert_allclose(session.run({"x": X})["y"], X + 1)


TRAINED = """g (float[2,4] x) => (float[2,4] y, bool[2,4] m) <float p = {0.25}, bool on = {1}> {
  y, m = Dropout(x, p, on) }"""


def both(model: ir.Model, **feeds: Array) -> list[Array]:
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(v) for v in session.run(None, feeds)]


def test_a_dropout_of_training_takes_nothing_where_zero_is_asked_for() -> None:
    model, _ = read(TRAINED, "zero")
    y, mask = both(model, x=X)
    np.testing.assert_array_equal(y, X)
    assert mask.all()


def test_a_dropout_of_training_takes_what_an_input_says() -> None:
    model, lines = read(TRAINED, "input")
    noise = str(model.graph.inputs[-1].name)
    drawn = np.array([[0.1, 0.3, 0.24, 0.9], [0.0, 0.25, 0.26, 1.0]], np.float32)
    y, mask = both(model, **{"x": X, noise: drawn})
    np.testing.assert_array_equal(mask, drawn >= 0.25)
    np.testing.assert_allclose(y, np.where(drawn >= 0.25, X / 0.75, 0), rtol=1e-6)
    assert len(lines) == 1


def test_a_dropout_of_training_takes_the_same_by_a_seed() -> None:
    (first, _), (second, _) = (read(TRAINED, "3") for _ in range(2))
    np.testing.assert_array_equal(both(first, x=X)[0], both(second, x=X)[0])
    assert not any(n.op_type == "Dropout" for n in first.graph.all_nodes())


def test_a_dropout_of_training_is_named_until_somebody_says(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {TRAINED}'), path)
    with pytest.raises(VerifyError, match=r"random numbers \(Dropout\).*--random"):
        edgeinfer.export(path, tmp_path / "m.edge", targets=["onnxruntime"])


def test_a_dropout_of_no_elements_is_none() -> None:
    model, _ = read(TRAINED.replace("0.25", "0"), "")
    np.testing.assert_array_equal(both(model, x=X)[0], X)
    assert not any(n.op_type == "Dropout" for n in model.graph.all_nodes())
