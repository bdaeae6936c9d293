"""Comparisons with NaN, and what is chosen by them, on every target.

A compiler that takes "not greater" for "less or equal" has NaN be a number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.bundle.values import FINITE, KEY, NOT_NAN
from edgeinfer.convert.lower.nan import keep
from edgeinfer.errors import Remarks
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run, run_each

NAN, INF = np.nan, np.inf
X = np.array([NAN, INF, -INF, 0.5, -2, 0, NAN, 3], np.float32)
Y = np.array([0, NAN, 1, NAN, -2, 0, NAN, 1], np.float32)

Definition = Callable[[Array, Array], Array]

TRUTHS: dict[str, Definition] = {
    "a = Greater(x, y) o = Not(a)": lambda x, y: ~(x > y),
    "a = Less(x, y) o = Not(a)": lambda x, y: ~(x < y),
    "a = GreaterOrEqual(x, y) o = Not(a)": lambda x, y: ~(x >= y),
    "a = LessOrEqual(x, y) o = Not(a)": lambda x, y: ~(x <= y),
    "a = Equal(x, y) o = Not(a)": lambda x, y: ~(x == y),
    "a = Greater(x, zero) o = Not(a)": lambda x, y: ~(x > 0),
    "a = Less(x, x) o = Not(a)": lambda x, y: np.ones(x.shape, bool),
    "a = Less(x, one) b = Greater(x, zero) c = And(a, b) o = Not(c)": lambda x, y: (
        ~((x < 1) & (x > 0))
    ),
    "a = Less(x, zero) b = Greater(x, zero) c = Or(a, b) o = Not(c)": lambda x, y: (
        ~((x < 0) | (x > 0))
    ),
    "a = Less(x, y) b = GreaterOrEqual(x, y) o = Or(a, b)": lambda x, y: (x < y) | (x >= y),
    "a = Less(x, zero) b = GreaterOrEqual(x, zero) o = Xor(a, b)": lambda x, y: (x < 0) ^ (x >= 0),
    "a = Sub(x, y) b = Greater(a, zero) o = Not(b)": lambda x, y: ~((x - y) > 0),
}

NUMBERS: dict[str, Definition] = {
    "a = Less(x, y) b = Not(a) o = Where(b, x, y)": lambda x, y: np.where(~(x < y), x, y),
    "a = Greater(x, y) o = Where(a, x, y)": lambda x, y: np.where(x > y, x, y),
    "a = Greater(x, y) o = Where(a, y, x)": lambda x, y: np.where(x > y, y, x),
    "a = Greater(x, zero) o = Where(a, x, zero)": lambda x, y: np.where(x > 0, x, 0),
    "a = LessOrEqual(x, zero) o = Where(a, zero, x)": lambda x, y: np.where(x <= 0, 0, x),
    "a = Less(x, zero) n = Neg(x) o = Where(a, n, x)": lambda x, y: np.where(x < 0, -x, x),
    "a = Less(x, zero) b = GreaterOrEqual(x, zero) c = Where(b, one, y) o = Where(a, zero, c)": (
        lambda x, y: np.where(x < 0, 0, np.where(x >= 0, 1, y))
    ),
    "a = Less(x, zero) b = Not(a) c = Where(b, one, y) d = GreaterOrEqual(x, zero) "
    "o = Where(d, zero, c)": lambda x, y: np.where(x >= 0, 0, np.where(~(x < 0), 1, y)),
    "a = Equal(x, x) b = Not(a) o = Where(b, zero, x)": lambda x, y: np.where(x != x, 0, x),
    "a = Greater(x, y) b = Not(a) o = Cast<to = 1>(b)": lambda x, y: (~(x > y)) * 1.0,
    "o = Max(x, y)": np.maximum,
    "o = Min(x, y)": np.minimum,
    "o = Clip(x, zero, one)": lambda x, y: np.clip(x, 0, 1),
    "o = Sub(x, x)": lambda x, y: x - x,
    "o = Mul(x, zero)": lambda x, y: x * 0,
}


HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x, float[8] y)'


def _case(text: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    kind = "bool" if text in TRUTHS else "float"
    model = onnx.parser.parse_model(
        f"{HEAD} => ({kind}[8] o) <float zero = {{0}}, float one = {{1}}> {{ {text} }}"
    )
    return model, {"x": X, "y": Y}


@pytest.mark.parametrize("place", PLACES)
@np.errstate(invalid="ignore")
def test_what_is_no_number_compares_with_none(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    definitions = TRUTHS | NUMBERS
    found = run_each(place, {text: _case(text) for text in definitions})
    for text, answers in found.items():
        if KEY in answers.constraints:
            # What one of them loses says nothing of the others.
            answers = run(place, *_case(text))
        taken = np.ones(X.shape, bool)
        # Sessions refuse what the artifact says that it would lose.
        if answers.constraints.get(KEY) in (NOT_NAN, FINITE):
            taken &= ~(np.isnan(X) | np.isnan(Y))
        if answers.constraints.get(KEY) == FINITE:
            taken &= ~(np.isinf(X) | np.isinf(Y))
        right = definitions[text](X, Y)
        np.testing.assert_array_equal(answers.outputs["o"][taken], right[taken], err_msg=text)


def _windows(x: Array, size: int, step: int = 1, pad: int = 0) -> Array:
    """Maxima of squares, over one axis less for each of both."""
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    seen = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (2, 3))
    return np.asarray(seen.max((-1, -2))[:, :, ::step, ::step])


EXTREMES: dict[str, Callable[[Array], Array]] = {
    "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)": lambda a: _windows(a, 2, 2),
    "MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)": lambda a: _windows(a, 3, 1, 1),
    "MaxPool<kernel_shape = [4, 4]>(a)": lambda a: _windows(a, 4),
    "GlobalMaxPool(a)": lambda a: np.asarray(a.max((2, 3), keepdims=True)),
    "ReduceMax(a, last)": lambda a: np.asarray(a.max(3, keepdims=True)),
    "ReduceMin<keepdims = 0>(a, first)": lambda a: np.asarray(a.min(1)),
    "Max(one, a)": lambda a: np.maximum(a, np.float32(1)),
    "Max(a, one)": lambda a: np.maximum(a, np.float32(1)),
    "Min(a, b)": lambda a: np.minimum(a, _b(a)),
    "Clip(a, half, one)": lambda a: np.clip(a, np.float32(0.5), np.float32(1)),
    "Relu(a)": lambda a: np.maximum(a, np.float32(0)),
}
"""What there is of ``a``, a (1, 3, 4, 4); b is its last axis the other way round."""

ARISING: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "input": ("a = Neg(x)", np.negative),
    "log": ("a = Log(x)", np.log),
    "zeros": ("p = Relu(x) n = Add(p, p) a = Div(p, n)", lambda x: np.maximum(x, 0) / (x + abs(x))),
    "bound": (
        "p = Relu(x) n = Max(p, minus) a = Div(p, n)",
        lambda x: np.maximum(x, 0) / np.maximum(x, 0),
    ),
    "chosen": ("c = Less(x, zero) a = Where(c, none, x)", lambda x: np.where(x < 0, NAN, x)),
}


def _b(a: Array) -> Array:
    return a[..., ::-1]


def _net(source: str, node: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,3,4,4] x) => (float[N] y)
        <float zero = {{0}}, float one = {{1}}, float half = {{0.5}}, float none = {{nan}},
        float minus = {{-5}},
        int64[1] last = {{3}}, int64[1] first = {{1}}, int64[4] back = {{3, 2, 1, 0}}>
        {{ {source} b = Gather<axis = 3>(a, back) y = {node} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("place", PLACES)
@np.errstate(all="ignore")
def test_extremes_keep_what_is_no_number(place: str) -> None:
    """Of an input it stays, or the artifact takes none; what arises inside stays in any case."""
    if reason := lacking(place):
        pytest.skip(reason)
    x = np.random.default_rng(0).uniform(0.1, 2, (1, 3, 4, 4)).astype(np.float32)
    x[0, 0, 1, 1] = x[0, 1, 3, 2] = x[0, 2, 0, 0] = x[0, 2, 1, 3] = -1
    inside = {
        (source, node): (_net(text, node), {"x": x})
        for source, (text, _) in ARISING.items()
        for node in EXTREMES
        if source != "input"
    }
    found = run_each(place, {" ".join(names): case for names, case in inside.items()})
    given = x.copy()
    given[given < 0] = NAN
    alone = {n: (_net("a = Neg(x)", n), {"x": given}) for n in EXTREMES}
    taken = run_each(place, alone)
    if KEY in next(iter(taken.values())).constraints:
        # Each may be the one that takes none.
        taken = {n: run(place, *case) for n, case in alone.items()}
    for node, right in EXTREMES.items():
        for source, (_, definition) in ARISING.items():
            if source == "input" and taken[node].constraints.get(KEY) in (NOT_NAN, FINITE):
                continue
            answers = taken[node] if source == "input" else found[f"{source} {node}"]
            expected = right(definition(given if source == "input" else x))
            assert not answers.refused
            np.testing.assert_allclose(
                answers.outputs["y"], expected, rtol=1e-6, err_msg=f"{source} {node}"
            )


def test_numbers_cost_nothing_to_look_for() -> None:
    """A quotient by what is above zero, and a root of squares, are numbers."""
    quiet = """g (float[1,3,4,4] x) => (float[1,3,1,1] y)
        <float e = {1e-5}, int64[2] over = {2, 3}>
        { m = ReduceMean(x, over) d = Sub(x, m) s = Mul(d, d) v = ReduceMean(s, over)
        w = Add(v, e) r = Sqrt(w) n = Div(d, r) t = Exp(n) u = ReduceSum(t, over) p = Div(t, u)
        l = Log(p) y = GlobalMaxPool(l) }"""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {quiet}')
    before = [n.op_type for n in model.graph]
    keep(model, lambda _: True, Remarks())
    assert [n.op_type for n in model.graph] == before
