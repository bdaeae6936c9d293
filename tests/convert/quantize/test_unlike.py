"""What is joined with one scale for all has ranges that one scale can serve."""

import re
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.convert.quantize.calibration import Quantizer, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.convert.quantize.conftest import graph

TARGETS = [
    ("onnxruntime", "onnx"),
    ("cpu", "openvino_ir"),
    ("rpi5", "tflite"),
    ("rpi4", "onnx"),
    ("android", "tflite"),
    ("ios", "mlprogram"),
    ("jetson", "onnx"),
]
"""Of every format that is quantized."""


def head(axis: int, inside: bool = False, scale: float = 640.0) -> ir.Model:
    """Coordinates in pixels and a clipped score, joined along an axis."""
    perm = "0,1" if axis == 1 else "1,0"
    joined, tail = ("j", "q = MatMul(j, v)  y = Erf(q)") if inside else ("y", "")
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[N,16] x) => (float[a,b] y)
        <float[16,4] wb, float[16,1] ws, {"float[5,4] v, " if inside else ""}float zero, float one,
         float k> {{
          b = MatMul(x, wb)  c = Mul(b, k)  box = Relu(c)
          s = MatMul(x, ws)  score = Clip(s, zero, one)
          tb = Transpose<perm=[{perm}]>(box)  ts = Transpose<perm=[{perm}]>(score)
          {joined} = Concat<axis={axis}>(tb, ts)
          {tail}
        }}""",
        wb=np.abs(RNG.normal(size=(16, 4))).astype(np.float32) / 16,
        ws=np.abs(RNG.normal(size=(16, 1))).astype(np.float32) / 16,
        **({"v": RNG.normal(size=(5, 4)).astype(np.float32)} if inside else {}),
        zero=np.array(0, np.float32),
        one=np.array(1, np.float32),
        k=np.array(scale, np.float32),
    )


RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.uniform(0, 1, (1, 16)).astype(np.float32)} for _ in range(32)]


def written(model: ir.Model, target: str, format: str) -> tuple[Quantizer, ir.Model]:
    kind = recipe("static_wi8_ai8")
    quantizer = Quantizer(model, kind)
    quantizer.settings = replace(quantizer.settings, equalise=False, round_weights=False)
    limits = limits_of(profiles.load(target), format)
    quantizer._look(lambda: iter(SAMPLES), [limits])
    return quantizer, quantizer.write(limits).model


def scores(model: ir.Model, axis: int) -> Array:
    evaluator = Evaluator(model, wide=False)
    found = [np.moveaxis(np.asarray(evaluator.run(s)["y"]), axis, 0)[4] for s in SAMPLES]
    return np.concatenate([f.ravel() for f in found])


@pytest.mark.sample(6)
@pytest.mark.parametrize(("target", "format"), TARGETS)
@pytest.mark.parametrize("axis", [0, 1])
def test_scores_beside_coordinates_keep_their_steps(target: str, format: str, axis: int) -> None:
    model = head(axis)
    _, made = written(model, target, format)
    right, found = scores(model, axis), scores(made, axis)
    assert np.abs(right - found).max() < 0.03
    assert len(np.unique(found)) > 16


@pytest.mark.parametrize(("target", "format"), TARGETS[:3])
def test_like_ranges_still_share_one(target: str, format: str) -> None:
    _, made = written(head(1, scale=1.0), target, format)
    (join,) = [n for n in made.graph if n.op_type == "Concat"]
    makers = {v.producer().op_type for v in join.inputs if v is not None and v.producer()}  # type: ignore[union-attr]
    assert makers == {"DequantizeLinear"}


def test_inside_a_model_more_may_go() -> None:
    quantizer, _ = written(head(1, inside=True, scale=20.0), "onnxruntime", "onnx")
    assert not any("stays float" in line for line in quantizer.notes)
    quantizer, _ = written(head(1, inside=True), "onnxruntime", "onnx")
    (line,) = [x for x in quantizer.notes if "stays float" in x]
    assert line.startswith("Concat 'Concat_")
    assert "one scale cannot serve both" in line


def test_what_was_written_is_what_is_measured() -> None:
    quantizer, _ = written(head(1), "onnxruntime", "onnx")
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    assert "Concat" not in {u.op for u in quantizer.units(limits)}


ALONE = {
    "one layer": "y = MatMul(x, w)",
    "offsets": "l = MatMul(x, s)  g = Sigmoid(l)  y = Add(g, o)",
    "sums of borders": (
        "b = MatMul(x, wb)  s1 = MatMul(x, ws)  p = Pad(b, pb)  q = Pad(s1, ps)  y = Add(p, q)"
    ),
}


@pytest.mark.parametrize("target", ["rpi5", "onnxruntime"])
@pytest.mark.parametrize("body", ALONE)
def test_a_score_that_is_never_alone_keeps_its_steps(body: str, target: str) -> None:
    """Nothing says which columns are coordinates; samples show which vary by less than a step."""
    wide, narrow = (
        640 * np.abs(RNG.normal(size=(16, 4))) / 16,
        np.abs(RNG.normal(size=(16, 1))) / 16,
    )
    known = {
        "w": np.concatenate([wide, narrow], 1).astype(np.float32),
        "wb": wide.astype(np.float32),
        "ws": narrow.astype(np.float32),
        "s": RNG.normal(size=(16, 5)).astype(np.float32),
        "o": np.array([0, 300, 900, 5, 0], np.float32),
        "pb": np.array([0, 0, 0, 1]),
        "ps": np.array([0, 4, 0, 0]),
    }
    words = set(re.findall(r"\w+", ALONE[body]))
    head = "float[16,5] w, float[16,4] wb, float[16,1] ws, float[16,5] s, float[5] o, int64[4] pb"
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[N,16] x) => (float[N,5] y) <{head}, int64[4] ps> {{ {ALONE[body]} }}""",
        **{name: value for name, value in known.items() if name in words},
    )
    format = "tflite" if target == "rpi5" else "onnx"
    quantizer, made = written(model, target, format)
    right, found = scores(model, 1), scores(made, 1)
    assert np.abs(right - found).max() < 0.03
    assert len(np.unique(found)) > 16
    if body == "one layer":
        # ONNX Runtime's products of integers give floats, of which each channel has its own scale.
        said = any("varies by" in line for line in quantizer.notes)
        assert said == (target == "rpi5")
