"""What leaves half precision is found, stays in single precision, and is right on every target."""

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.quantize.half import ranges as half_ranges
from edgeinfer.convert.quantize.half.ranges import Inside, describe, outside
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import RunError
from tests.convert.quantize.conftest import graph

HEAD = '<ir_version: 10, opset_import: ["" : 24]> '

KINDS = {
    "square": ("c = Mul(b, b) r = Mul(c, small)", 500.0, {"c", "r"}),
    "product": ("c = Mul(b, large) r = Mul(c, small)", 2.0, {"c", "r"}),
    "pow": ("c = Pow(b, three) r = Mul(c, small)", 60.0, {"c", "r"}),
    "exp": ("c = Exp(b) d = Add(c, one) r = Log(d)", 12.0, {"c", "d", "r"}),
    "softplus": ("r = Softplus(b)", 20.0, {"r"}),
    "mish": ("r = Mish(b)", 20.0, {"r"}),
    "layer norm": ("r = LayerNormalization<axis=-1>(b, ones)", 400.0, {"r"}),
    "rms norm": ("r = RMSNormalization<axis=-1>(b, ones)", 400.0, {"r"}),
    "tiny": ("c = Mul(b, tiny) r = Div(c, tiny)", 1.0, {"c", "r"}),
    "sum": (
        "c = ReduceSum(b, last) d = Mul(c, small) r = Add(d, b)",
        8000.0,
        {"c", "d"},
    ),
    "mask": ("c = Mul(b, low) d = Add(c, b) r = Softmax<axis=-1>(d)", 1.0, set()),
}
TARGETS = {"onnxruntime": "onnx", "openvino": "openvino_ir", "rpi4": "tflite", "ios": "mlprogram"}


def network(kind: str) -> tuple[ir.Model, dict[str, np.ndarray], set[str]]:
    """A product, what is looked at, and a product; and an input that reaches its size."""
    rng = np.random.default_rng(0)
    body, size, found = KINDS[kind]
    model = graph(
        f"""{HEAD} g (float[2,16] x) => (float[2,8] y)
        <float[16,16] w, float[16,8] v, float[16] ones, float small, float large, float three,
         float one, float tiny, float low, int64[1] last> {{
          a = MatMul(x, w)
          b = Abs(a)
          {body}
          y = MatMul(r, v)
        }}""",
        w=(np.eye(16) * (0.0 if kind == "none" else 1.0)).astype(np.float32),
        v=(rng.normal(size=(16, 8)) * 0.2).astype(np.float32),
        **{
            name: np.asarray(array)
            for name, array in {
                "ones": np.ones(16, np.float32),
                "small": np.asarray(1e-4, np.float32),
                "large": np.asarray(60000.0, np.float32),
                "three": np.asarray(3, np.float32),
                "one": np.asarray(1, np.float32),
                "tiny": np.asarray(1e-6, np.float32),
                "low": np.asarray(-1e9, np.float32),
                "last": np.array([-1], np.int64),
            }.items()
            if re.search(rf"\b{name}\b", body)
        },
    )
    for value in list(model.graph.initializers.values()):
        if not value.uses():
            model.graph.initializers.pop(value.name or "")
    x = rng.uniform(0.3, 1.0, (2, 16)).astype(np.float32) * np.float32(size)
    if kind == "mask":
        x = np.concatenate([np.ones((1, 16)), rng.integers(0, 2, (1, 16))]).astype(np.float32)
    return model, {"x": x}, found


@pytest.mark.parametrize("kind", KINDS)
def test_what_leaves_half_precision_is_found(kind: str) -> None:
    model, feeds, found = network(kind)
    kept = outside(model, [feeds])
    assert set(kept) == found
    assert all(line.startswith("fp16: ") and "needs fp32" in line for line in describe(model, kept))


@pytest.mark.sample(14)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_target_is_right(kind: str, target: str, tmp_path: Path) -> None:
    model, feeds, _ = network(kind)
    normal = passes.normalise(model).model
    expected = Evaluator(normal, wide=True).run(feeds)["y"]
    options = LowerOptions("fp16", fp32_nodes=frozenset(outside(normal, [feeds])))
    profile = profiles.load(target)
    lowered = target_for(TARGETS[target]).lower(normal, profile, options, tmp_path)
    assert "fp16" in lowered.precision
    if TARGETS[target] == "onnx":
        actual = Evaluator(ir.load(lowered.files[0]), wide=False).run(feeds)["y"]
    else:
        specs = passes.input_specs(model), passes.output_specs(model)
        name = {"ios": "coreml-reference"}.get(target, lowered.engines[0].backend)
        backend = registry.get(name)
        if reason := backend.probe().reason:
            pytest.skip(reason)
        executable = backend.load(Artifact(lowered.format, lowered.files[0], *specs), LoadOptions())
        actual = executable.run(feeds)["y"]
        executable.close()
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual, expected, atol=5e-3 * float(np.abs(expected).max()))


@pytest.mark.parametrize("kind", ["square", "exp", "product", "tiny", "sum"])
def test_without_the_islands_the_numbers_are_lost(kind: str) -> None:
    """The arithmetic that is checked is really half precision: ONNX Runtime's CPU would pass."""
    model, feeds, _ = network(kind)
    expected = Evaluator(model, wide=True).run(feeds)["y"]
    actual = Evaluator(model, wide=False, halved="float16").run(feeds)["y"]
    with np.errstate(all="ignore"):
        error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert not error < 5e-3


def test_small_numbers_before_a_logarithm_are_kept_up_to_where_they_arise() -> None:
    """The power of a quiet sound: its square is below half precision, the sound is not."""
    rng = np.random.default_rng(0)
    model = graph(
        f"""{HEAD} g (float[4,64] x) => (float[4,64] y, float[4,64] z) <float[64,64] w, float e> {{
          a = MatMul(x, w)
          b = Mul(a, a)
          c = Add(b, e)
          y = Log(c)
          z = Relu(b)
        }}""",
        w=(rng.normal(size=(64, 64)) * 1e-3).astype(np.float32),
        e=np.asarray(1e-10, np.float32),
    )
    x = rng.normal(size=(4, 64)).astype(np.float32)
    kept = outside(model, [{"x": x}])
    assert set(kept) == {"b", "c"}
    assert "of its results are below the normal numbers, and Log follows" in kept["c"]
    # Loud enough, nothing is kept.
    assert outside(model, [{"x": x * 300}]) == {}


def test_no_samples_and_no_floats_find_nothing() -> None:
    model, _, _ = network("square")
    assert outside(model, []) == {}


def test_what_onnx_runtime_cannot_run_is_evaluated_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RunError("no kernel")

    model, feeds, found = network("square")
    monkeypatch.setattr(half_ranges, "watched", refuse)
    assert set(outside(model, [feeds])) == found


def test_a_model_that_nothing_runs_says_so() -> None:
    from edgeinfer.convert.quantize.half.stage import Halves

    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 24, "acme" : 1]> g (float[4] x) => (float[4] y)
        { y = acme.Unknown(x) }"""
    )
    halves = Halves("fp16")
    (line,) = halves.look(model, [{"x": np.ones(4, np.float32)}])
    assert line.startswith("fp16: ranges were not looked at: ONNX Runtime cannot run the float")


def test_sums_inside_of_an_operator_are_told_from_values() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]> g (float[2,8] x) => (float[2,8] y) {
          a = LayerNormalization(x, s)
          b = Mul(x, k)
          y = Add(a, b)
        }""",
        s=np.ones(8, np.float32),
        k=np.asarray(1e3, np.float32),
    )
    found = outside(model, [{"x": np.linspace(200, 400, 16, dtype=np.float32).reshape(2, 8)}])
    assert {name: type(why) is Inside for name, why in found.items()} == {
        "a": True,
        "b": False,
        "y": False,
    }
