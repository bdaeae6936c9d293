"""What half-precision models add up and square is right where single precision is."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.widen_halves import WidenHalves
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.convert.lower.tvm import run as tvm

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
W = "float16[4] w, float16[4] b"

KINDS = {
    "instance": ("InstanceNormalization(x, w, b)", W),
    "group": ("GroupNormalization<num_groups=2>(x, w, b)", W),
    "layer": ("LayerNormalization<axis=-1>(x, s)", "float16[64] s"),
    "l2": ("LpNormalization<axis=-1, p=2>(x)", ""),
    "softmax": ("Softmax<axis=-1>(x)", ""),
    "log softmax": ("LogSoftmax<axis=-1>(x)", ""),
    "mean": ("GlobalAveragePool(x)", ""),
}
TARGETS = {"onnxruntime": "onnx", "openvino": "openvino_ir", "rpi4": "tflite", "ios": "mlprogram"}


def model(kind: str) -> ir.Model:
    body, inputs = KINDS[kind]
    more = f", {inputs}" if inputs else ""
    return ir.from_onnx_text(
        f"{HEAD} g (float16[1,4,64] x{more}) => (float16[1,4,n] y) {{ y = {body} }}"
    )


def feeds(kind: str, size: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.sign(rng.standard_normal((1, 4, 64))) * size + rng.standard_normal((1, 4, 64))
    found = {"x": x.astype(np.float16)}
    sizes = {"instance": "wb", "group": "wb", "layer": "s"}.get(kind, "")
    for name in sizes:
        value = np.full(64 if name == "s" else 4, 0.0 if name == "b" else 1.0)
        found[name] = value.astype(np.float16)
    return found


@pytest.mark.sample(12)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_inner_sums_do_not_leave_the_range(kind: str, target: str, tmp_path: Path) -> None:
    source = model(kind)
    given = feeds(kind, 300.0)
    right = Evaluator(source, wide=True).run(given)["y"]
    normal = passes.normalise(source).model
    profile = profiles.load(target)
    lowered = target_for(TARGETS[target]).lower(normal, profile, LowerOptions(), tmp_path)
    specs = passes.input_specs(normal), passes.output_specs(normal)
    artifact = Artifact(TARGETS[target], lowered.files[0], *specs)
    name = "coreml-reference" if target == "ios" else lowered.engines[0].backend
    executable = registry.get(name).load(artifact, LoadOptions())
    found = executable.run(given)["y"]
    executable.close()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), right, rtol=4e-3, atol=2e-3)


FORMULAS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "power": (
        "m = ReduceMean(x, last) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, last) "
        "e = Add(v, small) s = Sqrt(e) y = Div(d, s)",
        lambda x: centred(x, 2) / (variance(x, 2) + 1e-5) ** 0.5,
    ),
    "product": (
        "m = ReduceMean(x, channels) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, channels) "
        "e = Add(v, small) s = Sqrt(e) r = Reciprocal(s) n = Mul(d, r) y = Mul(n, two)",
        lambda x: 2 * centred(x, 1) / (variance(x, 1) + 1e-5) ** 0.5,
    ),
    "instance": (
        "m = GlobalAveragePool(x) d = Sub(x, m) d2 = Sub(x, m) q = Mul(d, d2) "
        "v = GlobalAveragePool(q) e = Add(v, small) s = Pow(e, root) y = Div(d, s)",
        lambda x: centred(x, 2) / (variance(x, 2) + 1e-5) ** 0.5,
    ),
    "root mean square": (
        "q = Mul(x, x) v = ReduceMean(q, channels) e = Add(v, small) s = Sqrt(e) "
        "r = Div(one, s) y = Mul(x, r)",
        lambda x: x / ((x**2).mean(1, keepdims=True) + 1e-5) ** 0.5,
    ),
    "difference to a scale": (
        "m = ReduceMean(x, last) d = Sub(x, m) h = Mul(d, root) q = Mul(h, h) "
        "v = ReduceMean(q, last) e = Add(v, small) s = Sqrt(e) y = Div(h, s)",
        lambda x: centred(x, 2) / (variance(x, 2) + 4e-5) ** 0.5,
    ),
    "sum of squares": (
        "q = ReduceSumSquare(x, last) v = Div(q, count) e = Add(v, small) i = Reciprocal(e) "
        "r = Sqrt(i) y = Mul(x, r)",
        lambda x: x / ((x**2).mean(2, keepdims=True) + 1e-5) ** 0.5,
    ),
    "length": (
        "n = ReduceL2(x, all) y = Div(x, n)",
        lambda x: x / ((x**2).sum(keepdims=True)) ** 0.5,
    ),
    "deviation": (
        "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) y = Sqrt(v)",
        lambda x: variance(x, 2) ** 0.5,
    ),
    "mean of a sum": (
        "s = ReduceSum(x, all) y = Mul(s, part)",
        lambda x: x.sum(keepdims=True) * np.float64(np.float16(1 / 512)),
    ),
}
"""What models write out, with what it means; a square, or a sum, is beyond half precision."""

EXPONENTIALS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "softmax": (
        "e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)",
        lambda x: np.exp(x) / np.exp(x).sum(2, keepdims=True),
    ),
    "softplus": ("e = Exp(x) p = Add(e, one) y = Log(p)", lambda x: np.log(np.exp(x) + 1)),
    "cast": (
        "e = Exp(x) f = Cast<to=1>(e) l = Log(f) y = Cast<to=10>(l)",
        lambda x: x,
    ),
}


def centred(x: Array, axis: int) -> Array:
    return np.asarray(x - x.mean(axis, keepdims=True))


def variance(x: Array, axis: int) -> Array:
    return np.asarray((centred(x, axis) ** 2).mean(axis, keepdims=True))


CONSTANTS = {
    **{"one": 1.0, "two": 2.0, "small": 1e-5, "root": 0.5, "count": 64.0, "part": 1 / 512},
    **{"last": [2], "channels": [1], "all": [0, 1, 2]},
}


def written(formulas: dict[str, tuple[str, Callable[[Array], Array]]]) -> ir.Model:
    """Return a model of half precision with an output for each formula."""
    body, outputs = [], []
    # Each formula has names of its own, but for the input and the constants.
    own = "|".join(rf"{n}\b" for n in ("x", "to", *CONSTANTS))
    for index, (text, _) in enumerate(formulas.values()):
        named = re.sub(rf"\b(?!{own})([a-z][a-z0-9]*)\b(?!\()", rf"\1_{index}", text)
        body.append(named)
        outputs.append(f"float16[a{index},b{index},c{index}] y_{index}")
    text = " ".join(body)
    needed = {n: v for n, v in CONSTANTS.items() if re.search(rf"\b{n}\b", text)}
    made = ir.from_onnx_text(
        f"{HEAD} g (float16[2,4,64] x) => ({', '.join(outputs)}) <"
        + ", ".join(
            f"int64[{len(v)}] {n} = {{{', '.join(map(str, v))}}}"
            if isinstance(v, list)
            else f"float {n} = {{{v}}}"
            for n, v in needed.items()
        )
        + f"> {{ {text} }}"
    )
    for value in made.graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            half = value.const_value.numpy().astype(np.float16)
            value.const_value = ir.tensor(half, name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT16)
    return made


def draws() -> dict[str, Array]:
    """Values whose squares half precision holds, and those whose squares it does not hold."""
    rng = np.random.default_rng(0)
    noise, sign = rng.standard_normal((2, 2, 4, 64))
    spread = {s: np.sign(sign) * s + noise for s in (1.0, 300.0, 3000.0)}
    drawn = {**{f"+-{s:g}": v for s, v in spread.items()}, "far mean": 1000.0 + noise}
    return {n: np.asarray(v.astype(np.float16)) for n, v in drawn.items()}


def same(found: Array, right: Array, what: str) -> None:
    assert found.dtype == np.float16
    most = np.abs(right).max()
    np.testing.assert_allclose(
        found.astype(np.float64) / most, right / most, rtol=2e-3, atol=1e-3, err_msg=what
    )


def outputs_on(target: str, source: ir.Model, folder: Path) -> Callable[[Array], list[Array]]:
    """Lower a model and return what runs it."""
    if target == "tvm":
        executable = tvm.load(source, folder)
    else:
        normal = passes.normalise(source).model
        profile = profiles.load(target)
        lowered = target_for(TARGETS[target]).lower(normal, profile, LowerOptions(), folder)
        specs = passes.input_specs(normal), passes.output_specs(normal)
        name = "coreml-reference" if target == "ios" else lowered.engines[0].backend
        artifact = Artifact(TARGETS[target], lowered.files[0], *specs)
        executable = registry.get(name).load(artifact, LoadOptions())

    def run(x: Array) -> list[Array]:
        return [np.array(y) for y in executable.run({"x": x}).values()]

    return run


@pytest.mark.sample(3)
@pytest.mark.parametrize("target", [*TARGETS, "tvm"])
def test_formulas_beyond_the_range_are_right(target: str, tmp_path: Path) -> None:
    for formulas in (FORMULAS, EXPONENTIALS):
        folder = tmp_path / str(len(formulas))
        folder.mkdir()
        run = outputs_on(target, written(formulas), folder)
        some = draws() if formulas is FORMULAS else {"exponents": draws()["+-1"] * np.float16(8)}
        for name, x in some.items():
            for (formula, (_, means)), found in zip(formulas.items(), run(x), strict=True):
                same(found, means(x.astype(np.float64)), f"{formula}, {name}")


def test_the_definition_says_so_too() -> None:
    for formulas in (FORMULAS, EXPONENTIALS):
        judge = Evaluator(written(formulas), wide=True)
        some = draws() if formulas is FORMULAS else {"exponents": draws()["+-1"] * np.float16(8)}
        for name, x in some.items():
            found = judge.run({"x": x}).values()
            for (formula, (_, means)), y in zip(formulas.items(), found, strict=True):
                same(y.astype(np.float16), means(x.astype(np.float64)), f"{formula}, {name}")


def test_a_formula_has_a_cast_at_each_end_alone() -> None:
    for name, (text, _) in FORMULAS.items():
        normal = passes.normalise(written({name: (text, np.abs)})).model
        casts = [n for n in normal.graph if n.op_type == "Cast"]
        assert len(casts) == 2, name


@pytest.mark.parametrize(
    ("body", "means"),
    [
        (
            "n = ReduceL2(x, last) t = Transpose(x) p = MatMul(x, t) u = Transpose(n) "
            "q = Mul(n, u) y = Div(p, q)",
            lambda x: x @ x.T / np.outer(*[(x**2).sum(1) ** 0.5] * 2),
        ),
        (
            "t = Transpose(x) p = MatMul(x, t) d = Mul(p, two) a = Mul(x, x) "
            "r = ReduceSum(a, last) u = Transpose(r) f = Add(r, u) g = Sub(f, d) h = Relu(g) "
            "y = Sqrt(h)",
            lambda x: ((x[:, None] - x[None]) ** 2).sum(-1) ** 0.5,
        ),
        (
            "a = Mul(x, x) m = MatMul(a, w) e = Add(m, two) y = Log(e)",
            lambda x: np.log((x * x) @ np.eye(4) + 2),
        ),
    ],
    ids=["likeness", "distance", "loudness"],
)
def test_products_that_come_back_are_wide(body: str, means: Callable[[Array], Array]) -> None:
    bits = {v: int(np.float16(v).view(np.uint16)) for v in (0, 1, 2)}
    eye = ", ".join(str(bits[int(v)]) for v in np.eye(4).ravel())
    m = ir.from_onnx_text(
        f"{HEAD} g (float16[4,4] x) => (float16[a,b] y) <int64[1] last = {{1}}, float16 two = "
        f"{{{bits[2]}}}, float16[4,4] w = {{{eye}}}> {{ {body} }}"
    )
    x = (np.random.default_rng(0).standard_normal((4, 4)) * 3000).astype(np.float16)
    judged = Evaluator(m, wide=True).run({"x": x})["y"].astype(np.float16)
    same(judged, means(x.astype(np.float64)), "definition")
    halved = Evaluator(passes.normalise(m).model, wide=False).run({"x": x})["y"]
    same(halved, means(x.astype(np.float64)), "normalised")


def test_what_is_no_such_formula_stays() -> None:
    """Layers, activations of elements and squares that nothing brings back are as they were."""
    for body in (
        "a = MatMul(x, w) y = Relu(a)",
        "a = Relu(x) q = Mul(a, a) y = MatMul(q, w)",
        "a = Sigmoid(x) y = Mul(x, a)",
        "a = Exp(x) y = MatMul(a, w)",
        "p = MatMul(x, w) y = Tanh(p)",
        "a = ReduceMax<keepdims=1>(x) y = Sub(x, a)",
    ):
        m = ir.from_onnx_text(
            f"{HEAD} g (float16[4,4] x, float16[4,4] w) => (float16[4,4] y) {{ {body} }}"
        )
        InferShapes()(m)
        assert not WidenHalves()(m).modified, body


def test_a_layer_between_a_square_and_a_norm_stays_half() -> None:
    m = ir.from_onnx_text(
        f"{HEAD} g (float16[4,4] x, float16[4] s) => (float16[4,4] y) <float16[4,4] w = "
        "{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> "
        "{ a = Relu(x) q = Mul(a, a) p = MatMul(q, w) r = Add(p, x) y = RMSNormalization(r, s) }"
    )
    InferShapes()(m)
    WidenHalves()(m)
    half = [n.op_type for n in m.graph if n.outputs[0].dtype == ir.DataType.FLOAT16]
    assert half == ["Relu", "Mul", "MatMul", "Add", "Cast"]


def test_bodies_are_widened_too() -> None:
    m = ir.from_onnx_text(
        f"{HEAD} g (float16[2,4] x, bool c) => (float16[2,4] y) {{ y = If (c) <"
        "then_branch = t () => (float16[2,4] z) "
        "{ q = Mul(x, x) v = ReduceMean(q) s = Sqrt(v) z = Div(x, s) },"
        "else_branch = e () => (float16[2,4] z) { z = Neg(x) }> }"
    )
    InferShapes()(m)
    WidenHalves()(m)
    (node,) = m.graph
    body = [n.op_type for n in node.attributes["then_branch"].as_graph()]
    assert body == ["Cast", "Mul", "ReduceMean", "Sqrt", "Div", "Cast"]
    onnx.checker.check_model(ir.to_proto(m), full_check=True)


def test_the_interface_stays() -> None:
    m = model("instance")
    WidenHalves()(m)
    assert [v.name for v in m.graph.outputs] == ["y"]
    assert m.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert [n.op_type for n in m.graph] == [*["Cast"] * 3, "InstanceNormalization", "Cast"]
    onnx.checker.check_model(ir.to_proto(m))


def test_constants_are_widened_and_not_cast() -> None:
    m = ir.from_onnx_text(
        f"{HEAD} g (float16[1,4,64] x) => (float16[1,4,64] z) "
        "<float16[64] s = {%s}> {{ y = LayerNormalization<axis=-1>(x, s) z = Neg(y) }}".replace(
            "%s", ", ".join(["1"] * 64)
        )
        .replace("{{", "{")
        .replace("}}", "}")
    )
    InferShapes()(m)
    WidenHalves()(m)
    assert [n.op_type for n in m.graph] == ["Cast", "LayerNormalization", "Cast", "Neg"]


def test_single_precision_and_single_elements_are_left_alone() -> None:
    for kind, op in (("float", "Softmax"), ("float16", "Exp")):
        m = ir.from_onnx_text(f"{HEAD} g ({kind}[1,4] x) => ({kind}[1,4] y) {{ y = {op}(x) }}")
        assert not WidenHalves()(m).modified
