"""Element-wise operators, activations, reductions, norms and softmax on all targets.

Each is compared with its float64 definition, and with every other target, from 1e-40 to 1e30, at
zeros of both signs, infinities, NaN, equal values, large means, ends of integer types, without axes
and without elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edgeinfer.bundle.values import FINITE, KEY, NOT_NAN
from tests.conformance.everywhere import ORACLE, PLACES, Answers, lacking, run

Array = Any
"""What NumPy computes; its own types say little of it."""

Definition = Callable[..., Array]

PLACE = pytest.mark.parametrize("place", [*PLACES, ORACLE])

TINY = float(np.finfo(np.float32).tiny)
"""The least normal number: what is below may be zero, as operand and as result."""

FULL = float(np.finfo(np.float32).max) / 2
"""Half the largest number: what is above may be infinite or stay there."""

REFUSED: dict[str, set[str]] = {}
"""Operators that a target refuses by name; every other one must be there."""


# ---- definitions, in float64


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _softplus(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x < 0, alpha * np.expm1(x), x)


_erf, _erfc = np.vectorize(math.erf, otypes=[float]), np.vectorize(math.erfc, otypes=[float])
_F = {n: float(np.float32(v)) for n, v in {"leak": 0.01, "fifth": 0.2, "third": 0.3}.items()}
_SELU = 1.67326319217681884765625, 1.05070102214813232421875

UNARY: dict[str, Definition] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda x: 1 / x,
    "Exp": np.exp,
    "Log": np.log,
    "Erf": _erf,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Relu": lambda x: np.where(x < 0, 0, x),
    "LeakyRelu": lambda x: np.where(x < 0, _F["leak"] * x, x),
    "Elu": _elu,
    "Elu alpha=0.3": lambda x: _elu(x, _F["third"]),
    "Selu": lambda x: _SELU[1] * _elu(x, _SELU[0]),
    "Celu": _elu,
    "Celu alpha=2.0": lambda x: np.where(x < 0, 2 * np.expm1(x / 2), x),
    "HardSigmoid": lambda x: np.clip(_F["fifth"] * x + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Gelu": lambda x: 0.5 * x * _erfc(-x / math.sqrt(2)),
    "Gelu approximate=tanh": lambda x: (
        x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    ),
    "Swish": lambda x: x * _sigmoid(x),
    "Swish alpha=1.5": lambda x: x * _sigmoid(1.5 * x),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
    "Shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "Sigmoid": _sigmoid,
}

CANCELLING = {"Gelu": 3e-7, "Swish": 3e-38, "Mish": 3e-38, "Sigmoid": 3e-38}
"""What is lost far below zero, of one and of the operand: engines' own kernels of ``Gelu`` add to
one there, as ONNX's definitions do; exponentials of the others may end where normal numbers do, and
a product with the operand follows."""

WHOLE_TURNS = 1e11
"""Angles up to which a result is requested; beyond, one number is thousands of turns from the next,
and LiteRT gives none."""

LOGISTIC = 1e26
"""Finite operands of XNNPACK's logistic function up to which a result is requested: beyond, its
kernel for AVX-512 squares what is left of the operand's range, which overflows, and gives NaN; the
kernels of other processors give 0 and 1. Two more steps over every element would be the repair."""


def _ladder() -> Array:
    sizes = [0, 1e-40, 1e-30, 1e-21, 1e-12, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.25, 0.3]
    sizes += [0.499, 0.5, 0.7, 0.9, 0.999, 0.9999999, 1, 1.0000001, 1.001, 1.5, 2, 2.5, 3, 3.5, 4]
    sizes += [5, 6, 7, 8.5, 10, 15, 20, 30, 50, 80, 87, 88.5, 100, 1000, 8191.5, 1e5, 1e6, 16777217]
    sizes += [2.0**31, 1e10, 1e15, 1e20, 1e25, 1e30, np.inf]
    row = np.array([*sizes, *(-s for s in sizes), np.nan], np.float32)
    # Each in several places: kernels have another way for the last few elements.
    return np.stack([row, np.roll(row, 37), np.roll(row, 5)])


def _node(spec: str, inputs: list[str], output: str) -> onnx.NodeProto:
    op, *options = spec.split()
    attributes: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        value: Any = [int(part) for part in text.split(",")] if "," in text else text
        for kind in (int, float):
            try:
                value = kind(value)
                break
            except (TypeError, ValueError):
                continue
        attributes[name] = value
    return helper.make_node(op, inputs, [output], name=output, **attributes)


def _model(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], outputs: dict[str, Any], **known: Array
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, kind(v.dtype), v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, kind(np.dtype(d)), s) for k, (d, s) in outputs.items()],
        [onnx.numpy_helper.from_array(v, k) for k, v in known.items()],
    )
    opset = [helper.make_opsetid("", 24)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=10)
    )


def _label(spec: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in spec)


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < TINY, np.copysign(0, x), x)


def _wrong(got: Array, *wanted: Array, rtol: float, atol: Array | float = 0.0) -> Array:
    """Where no wanted value is met."""
    g = got.astype(np.float64)
    right = np.zeros(g.shape, bool)
    for w in wanted:
        right |= (g == w) | (np.isnan(g) & np.isnan(w))
        right |= np.isfinite(w) & (np.abs(g - w) <= rtol * np.abs(w) + 2 * TINY + atol)
        right |= (np.abs(w) > FULL) & (np.abs(g) >= FULL * 0.999) & (np.sign(g) == np.sign(w))
    return ~right


def _taken(answers: Answers, x: Array, place: str) -> Array:
    """Which operands the artifact takes."""
    level = answers.constraints.get(KEY)
    taken = np.isfinite(x) if level == FINITE else ~(np.isnan(x) & (level == NOT_NAN))
    if place == "litert-without-xnnpack":
        # Its kernels cut infinity to the largest number, and are only there to fall back on.
        taken &= np.isfinite(x)
    return taken


def _here(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)


# ---- functions of one float


@cache
def _unary(place: str) -> Answers:
    x = _ladder()
    nodes = [_node(spec, ["x"], _label(spec)) for spec in UNARY]
    outputs = {_label(spec): (np.float32, x.shape) for spec in UNARY}
    return run(place, _model(nodes, {"x": x}, outputs), {"x": x})


def _margin(spec: str, x: Array) -> Array | float:
    share = CANCELLING.get(spec.split()[0], 0.0)
    return share * np.minimum(1 + np.abs(x), 100) if share else 0.0


def _compared(spec: str, x: Array, *places: str) -> Array:
    """Which operands are asked about at all of the places."""
    if spec in ("Sin", "Cos", "Tan"):
        return np.abs(x) < WHOLE_TURNS
    logistic = spec.split()[0] in ("Sigmoid", "Swish") and "litert" in places
    return ~(np.abs(x) > LOGISTIC) | np.isinf(x) if logistic else np.ones(x.shape, bool)


@PLACE
def test_functions_are_their_definitions(place: str) -> None:
    _here(place)
    answers, x = _unary(place), _ladder().astype(np.float64)
    taken = _taken(answers, x, place)
    faults = []
    with np.errstate(all="ignore"):
        for spec, definition in UNARY.items():
            if _label(spec) in answers.refused:
                assert spec in REFUSED.get(place, set()), answers.refused[_label(spec)]
                continue
            got = answers.outputs[_label(spec)]
            wanted = definition(x), definition(_flushed(x))
            wrong = _wrong(got, *wanted, rtol=2e-5, atol=_margin(spec, x))
            wrong &= taken & _compared(spec, x, place)
            if place == "litert-without-xnnpack":
                wrong &= np.isfinite(wanted[0])
            faults += [
                f"{spec}({x[i]:.9g}) = {got[i]:.9g}" for i in zip(*np.nonzero(wrong), strict=True)
            ][:4]
    assert faults == []


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PLACES, 2)))
def test_targets_agree(one: str, other: str) -> None:
    _here(one)
    _here(other)
    x = _ladder().astype(np.float64)
    a, b = _unary(one), _unary(other)
    taken = _taken(a, x, one) & _taken(b, x, other) & (np.abs(x) >= TINY)
    with np.errstate(all="ignore"):
        for spec in UNARY:
            name = _label(spec)
            if name in a.refused or name in b.refused:
                continue
            first, second = a.outputs[name], b.outputs[name].astype(np.float64)
            wrong = _wrong(first, second, rtol=4e-5, atol=2 * _margin(spec, x))
            wrong &= taken & _compared(spec, x, one, other) & np.isfinite(UNARY[spec](x))
            wrong &= np.abs(first) < FULL
            assert not wrong.any(), (spec, x[wrong][:4], first[wrong][:4], second[wrong][:4])


# ---- rows


_WIDTH = 24
_SQUARING = {"LayerNormalization", "RMSNormalization", "InstanceNormalization"} | {
    "GroupNormalization",
    "MeanVarianceNormalization axes=1",
}
"""Their stages are float32 by definition, and squares leave it from 1e19 on."""

_ORDERED = {"ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Hardmax"}
"""The standard does not say what NaN is among the largest."""


@cache
def _rows() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    rows: dict[str, Array] = {}
    for scale in (1e-40, 1e-38, 1e-30, 1e-21, 1e-12, 1e-5, 1, 255, 1e5, 1e10, 1e18, 1e20, 1e30):
        rows[f"scale {scale:g}"] = rng.standard_normal(_WIDTH) * scale
    for mean in (255, 1000, 4096, 1e5):
        rows[f"mean {mean:g}"] = rng.standard_normal(_WIDTH) + mean
    for value in (0.0, -0.0, 3.25, -7.1, 255, 1e20, 1e-20, np.inf, -np.inf):
        rows[f"equal {value:g}"] = np.full(_WIDTH, value)
    for value in (np.inf, -np.inf, np.nan):
        rows[f"one {value:g}"] = rng.standard_normal(_WIDTH)
        rows[f"one {value:g}"][3] = value
    rows["tiny few"] = np.zeros(_WIDTH)
    rows["tiny few"][:3] = [1e-21, 2e-21, 1e-21]
    rows["one large"] = np.where(np.arange(_WIDTH) == 2, 1000, rng.standard_normal(_WIDTH) * 1e-3)
    rows["one less"] = np.where(np.arange(_WIDTH) == 5, 0.0, -100.0)
    rows["ties"] = np.round(rng.standard_normal(_WIDTH) * 2) / 2
    return {name: row.astype(np.float32) for name, row in rows.items()}


_EPSILON, _SCALE = float(np.float32(1e-5)), np.linspace(0.8, 1.2, _WIDTH).astype(np.float32)
_BIAS = np.linspace(-0.1, 0.1, _WIDTH).astype(np.float32)


def _moments(x: Array, term: float = _EPSILON) -> Array:
    rest = x - x.mean(-1, keepdims=True)
    return rest / np.sqrt((rest * rest).mean(-1, keepdims=True) + term)


def _log_sum_exp(x: Array) -> Array:
    top = x.max(-1, keepdims=True)
    finite = np.where(np.isfinite(top), top, 0)
    found = finite + np.log(np.exp(x - finite).sum(-1, keepdims=True))
    return np.where(np.isfinite(top), found, top)


def _log_softmax(x: Array) -> Array:
    moved = x - x.max(-1, keepdims=True)
    return moved - np.log(np.exp(moved).sum(-1, keepdims=True))


def _lengths(power: int) -> Definition:
    def divided(x: Array) -> Array:
        total = (np.abs(x) ** power).sum(-1, keepdims=True) ** (1 / power)
        return np.where(total == 0, 0, x / total)

    return divided


def _grouped(parts: int) -> Definition:
    def normalised(x: Array) -> Array:
        made = _moments(x.reshape(len(x), parts, -1)).reshape(len(x), 4, -1)
        made = made * _SCALE[:4, None].astype(np.float64) + _BIAS[:4, None].astype(np.float64)
        return made.reshape(len(x), -1)

    return normalised


def _lrn(x: Array) -> Array:
    channels = x.reshape(len(x), 4, -1)
    padded = np.pad(channels**2, ((0, 0), (1, 1), (0, 0)))
    total = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return (channels / (1 + float(np.float32(0.1)) / 3 * total) ** 0.75).reshape(len(x), -1)


def _pooled(power: int, width: int) -> Definition:
    def lengths(x: Array) -> Array:
        parts = np.abs(x).reshape(len(x), -1, width)
        largest = np.maximum(parts.max(-1, keepdims=True), 1e-300)
        held = np.where(np.isfinite(largest), largest, 1)
        return (((parts / held) ** power).sum(-1) ** (1 / power) * held[..., 0]).reshape(len(x), -1)

    return lengths


def _deviation(x: Array) -> Array:
    rest = x - x.mean(-1, keepdims=True)
    return rest / (np.sqrt((rest * rest).mean(-1, keepdims=True)) + 1e-9)


ROWS: dict[str, tuple[list[str], Definition]] = {
    "ReduceSum": (["x", "axes"], lambda x: x.sum(-1, keepdims=True)),
    "ReduceMean": (["x", "axes"], lambda x: x.mean(-1, keepdims=True)),
    "ReduceProd": (["x", "axes"], lambda x: x.prod(-1, keepdims=True)),
    "ReduceMax": (["x", "axes"], lambda x: x.max(-1, keepdims=True)),
    "ReduceMin": (["x", "axes"], lambda x: x.min(-1, keepdims=True)),
    "ReduceL1": (["x", "axes"], lambda x: np.abs(x).sum(-1, keepdims=True)),
    "ReduceL2": (["x", "axes"], lambda x: np.sqrt((x * x).sum(-1, keepdims=True))),
    "ReduceSumSquare": (["x", "axes"], lambda x: (x * x).sum(-1, keepdims=True)),
    "ReduceLogSum": (["x", "axes"], lambda x: np.log(x.sum(-1, keepdims=True))),
    "ReduceLogSumExp": (["x", "axes"], _log_sum_exp),
    "ArgMax axis=1": (["x"], lambda x: x.argmax(-1)[:, None]),
    "ArgMin axis=1": (["x"], lambda x: x.argmin(-1)[:, None]),
    "Softmax": (["x"], lambda x: np.exp(_log_softmax(x))),
    "LogSoftmax": (["x"], lambda x: _log_softmax(x)),
    "Hardmax": (["x"], lambda x: np.eye(_WIDTH)[x.argmax(-1)]),
    "LpNormalization": (["x"], _lengths(2)),
    "LpNormalization p=1": (["x"], _lengths(1)),
    "MeanVarianceNormalization axes=1": (["x"], _deviation),
    "LayerNormalization": (["x", "w", "b"], lambda x: _moments(x) * _SCALE + _BIAS),
    "RMSNormalization": (
        ["x", "w"],
        lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON) * _SCALE,
    ),
    "InstanceNormalization": (["x3", "w4", "b4"], _grouped(4)),
    "GroupNormalization num_groups=2": (["x3", "w4", "b4"], _grouped(2)),
    "LRN size=3 alpha=0.1": (["x4"], _lrn),
    **{f"LpPool p={p} kernel_shape=1,3 strides=1,3": (["x4"], _pooled(p, 3)) for p in (1, 2, 3, 9)},
    **{f"GlobalLpPool p={p}": (["x4"], _pooled(p, 6)) for p in (1, 2, 3, 9)},
}


@cache
def _reduced(place: str) -> Answers:
    x = np.stack(list(_rows().values()))
    count = len(x)
    nodes: list[onnx.NodeProto] = []
    outputs: dict[str, Any] = {}
    views = {"x3": [count, 4, 6], "x4": [count, 4, 2, 3]}
    nodes += [
        helper.make_node("Reshape", ["x", f"{name}_shape"], [name], name=name) for name in views
    ]
    for spec, (inputs, definition) in ROWS.items():
        node = _node(spec, inputs, _label(spec))
        if spec.startswith("MeanVariance"):
            node = helper.make_node(
                "MeanVarianceNormalization", ["x"], [_label(spec)], name=_label(spec), axes=[1]
            )
        nodes.append(node)
        with np.errstate(all="ignore"):
            width = definition(x.astype(np.float64)).shape[1]
        shape: Any = views.get(inputs[0], [count, width])
        if "Pool" in spec:
            shape = [count, 4, width // 4, 1]
        outputs[_label(spec)] = (np.int64 if spec.startswith("Arg") else np.float32, shape)
    known = {"axes": np.array([1]), "w": _SCALE, "b": _BIAS, "w4": _SCALE[:4], "b4": _BIAS[:4]}
    known |= {f"{name}_shape": np.array(shape) for name, shape in views.items()}
    return run(place, _model(nodes, {"x": x}, outputs, **known), {"x": x})


def _tolerance(spec: str, row: Array, wanted: Array) -> float:
    """Of a sum, a share of its terms; of what has its mean taken off, float32's step there."""
    finite = np.where(np.isfinite(row), row, 0)
    size = float(np.abs(np.where(np.isfinite(wanted), wanted, 0)).max())
    largest = float(np.abs(finite).max())
    if spec in ("ReduceSum", "ReduceMean", "ReduceLogSum", "LogSoftmax"):
        return 2e-6 * size + 3e-6 * largest
    if spec.split()[0] in {s.split()[0] for s in _SQUARING} - {"RMSNormalization"}:
        spread = float(finite.std()) or 1.0
        return size * (1e-5 + 6e-7 * abs(float(finite.mean())) / spread) + 1e-12
    return 2e-6 * size


def _is_compared(spec: str, name: str, row: Array) -> bool:
    op = spec.split()[0]
    large = bool(np.abs(np.where(np.isfinite(row), row, 0)).max() > 1e17)
    if spec in _SQUARING or op in {s.split()[0] for s in _SQUARING}:
        return not large and bool(np.isfinite(row).all())
    return not (op in _ORDERED and np.isnan(row).any())


@PLACE
def test_rows_are_their_definitions(place: str) -> None:
    _here(place)
    answers, faults = _reduced(place), []
    with np.errstate(all="ignore"):
        for (spec, (_, definition)), (index, (name, row)) in itertools.product(
            ROWS.items(), enumerate(_rows().items())
        ):
            if not _is_compared(spec, name, row) or not _taken(answers, row, place).all():
                continue
            if _label(spec) in answers.refused:
                assert spec in REFUSED.get(place, set()), answers.refused[_label(spec)]
                continue
            x = row[None].astype(np.float64)
            wanted = definition(x)[0], definition(_flushed(x))[0]
            got = answers.outputs[_label(spec)].reshape(len(_rows()), -1)[index]
            atol = _tolerance(spec, row, wanted[0])
            wrong = _wrong(got, *wanted, rtol=1e-3 if "Norm" in spec else 1e-4, atol=atol)
            if wrong.any():
                at = int(np.argmax(wrong))
                faults.append(f"{spec} of {name}: {got[at]:.6g}, right {wanted[0][at]:.6g}")
    assert faults == []


# ---- integers


def _ends(dtype: str) -> Array:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    values = [0, 1, 2, 3, 7, 10, 100, 127, 255, 1000, 32767, 65535, 16777216, 16777217, 33554433]
    values += [123456789, 1790000001, 1790000031, high - 1, high]
    values += [-v for v in values] + [low + 1, low]
    return np.array(sorted({v for v in values if low <= v <= high}), dtype)


def _cut(a: Array, b: Array) -> Array:
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    return np.array(
        [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs], a.dtype
    )


INTEGERS: dict[str, tuple[list[str], Definition]] = {
    "Add": (["a", "b"], lambda a, b, d: a + b),
    "Sub": (["a", "b"], lambda a, b, d: a - b),
    "Mul": (["a", "b"], lambda a, b, d: a * b),
    "Max": (["a", "b"], lambda a, b, d: np.maximum(a, b)),
    "Min": (["a", "b"], lambda a, b, d: np.minimum(a, b)),
    "Max of=3": (["a", "b", "seven"], lambda a, b, d: np.maximum(np.maximum(a, b), 7)),
    "Min of=3": (["a", "b", "seven"], lambda a, b, d: np.minimum(np.minimum(a, b), 7)),
    "Equal": (["a", "b"], lambda a, b, d: a == b),
    "Less": (["a", "b"], lambda a, b, d: a < b),
    "LessOrEqual": (["a", "b"], lambda a, b, d: a <= b),
    "Greater": (["a", "b"], lambda a, b, d: a > b),
    "GreaterOrEqual": (["a", "b"], lambda a, b, d: a >= b),
    "Div": (["a", "d"], lambda a, b, d: _cut(a, d)),
    "Mod": (["a", "d"], lambda a, b, d: np.mod(a, d)),
    "Mod fmod=1": (["a", "d"], lambda a, b, d: np.fmod(a, d)),
    "Abs": (["a"], lambda a, b, d: np.abs(a)),
    "Neg": (["a"], lambda a, b, d: -a),
    "Sign": (["a"], lambda a, b, d: np.sign(a)),
    "Relu": (["a"], lambda a, b, d: np.maximum(a, 0)),
    "Cast to=9": (["a"], lambda a, b, d: a != 0),
}


@pytest.mark.sample(each=("place", "dtype"))
@PLACE
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_are_exact(place: str, dtype: str) -> None:
    _here(place)
    values = _ends(dtype)
    if dtype == "int64" and place in ("openvino", "coreml"):
        # Computed in 32 bits, which inputs are held to at each run, and so are their products.
        values = values[(values > -30000) & (values < 30000)]
    a, b = (v.ravel() for v in np.meshgrid(values, values, indexing="ij"))
    divisor = np.where((b == 0) | ((b == -1) & (a == np.iinfo(dtype).min)), 3, b).astype(dtype)
    feeds = {"a": a, "b": b, "d": divisor}
    with np.errstate(all="ignore"):
        wanted = {_label(s): f(a, b, divisor) for s, (_, f) in INTEGERS.items()}
    nodes = [
        helper.make_node(spec.split()[0], inputs, [_label(spec)], name=_label(spec))
        if " of=" in spec
        else _node(spec, inputs, _label(spec))
        for spec, (inputs, _) in INTEGERS.items()
    ]
    outputs = {name: (w.dtype, w.shape) for name, w in wanted.items()}
    model = _model(nodes, feeds, outputs, seven=np.array(7, dtype))
    answers = run(place, model, feeds)
    faults = []
    for name, right in wanted.items():
        if name in answers.refused:
            # Core ML has int32 alone, and refuses what may leave it.
            assert place == "coreml", (name, answers.refused[name])
            continue
        got = answers.outputs[name]
        places = np.flatnonzero(got != right)[:3]
        faults += [f"{name}({a[i]}, {b[i]}, {divisor[i]}) = {got[i]}" for i in places]
    assert faults == []


NARROW = ["int8", "uint8", "int16", "uint16"]


@pytest.mark.sample(each=("place", "dtype"))
@PLACE
@pytest.mark.parametrize("dtype", [*NARROW, "int32", "int64", "uint32"])
def test_floats_inside_a_net_become_integers(place: str, dtype: str) -> None:
    """Cut toward zero, exact beyond 2^24; beyond a narrow type they wrap around everywhere."""
    _here(place)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    values = [0, 0.4, 1.5, 2.75, 100.2, 126.9, 127, 254, 255, 32766, 65534, 16777216, 33554434]
    values += [123456784, 1790000000, 2147483520]
    whole = np.array(sorted({*values, *(-v for v in values)}), np.float32)
    if dtype in NARROW:
        whole = whole[np.abs(whole) < 1 << 31]
    elif dtype in ("int64", "uint32") and place == "openvino":
        # Computed in 32 bits, which inputs are held to at each run.
        whole = whole[(np.abs(whole) < 1 << 28) & (whole >= max(low, -(1 << 28)))]
    else:
        whole = whole[(whole > low) & (whole < high) & (whole != 0.4)]
    feeds = {"x": whole / 2}
    to = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["y"], name="y", to=to),
    ]
    made = {"twice": (np.dtype(np.float32), whole.shape), "y": (np.dtype(dtype), whole.shape)}
    answers = run(place, _model(nodes, feeds, made), feeds)
    if "y" in answers.refused:
        assert place in ("coreml", "coreai"), answers.refused
        assert dtype in ("int64", "uint32"), answers.refused
        return
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(answers.outputs["y"], whole.astype(np.int64).astype(dtype))


# ---- no axes, no elements


@pytest.mark.sample(each=("place", "shape"))
@PLACE
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)], ids=str)
def test_scalars_and_nothing(place: str, shape: tuple[int, ...]) -> None:
    _here(place)
    if 0 in shape and place == "coreml":
        pytest.skip("Core ML has no tensors without elements")
    x = np.full(shape, -0.25, np.float32)
    specs = [s for s in UNARY if not s.startswith("Acosh")]
    nodes = [_node(spec, ["x"], _label(spec)) for spec in specs]
    outputs = {_label(spec): (np.float32, shape) for spec in specs}
    answers = run(place, _model(nodes, {"x": x}, outputs), {"x": x})
    for spec in specs:
        with np.errstate(all="ignore"):
            wanted = np.asarray(UNARY[spec](x.astype(np.float64)))
        got = answers.outputs[_label(spec)]
        assert got.shape == shape
        np.testing.assert_allclose(got, wanted.astype(np.float32), rtol=2e-5, atol=1e-6)
