"""Products of matrices and means of integers are exact on every target, for open sizes too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.definitions import whole
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run

RNG = np.random.default_rng(0)
INT32 = np.iinfo(np.int32)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := lacking(name):
        pytest.skip(reason)
    return name


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> ' + text)


def wide(*shape: int) -> Array:
    """Integers of all of int32."""
    return RNG.integers(INT32.min, INT32.max, shape, endpoint=True).astype(np.int32)


def cut(total: Array, count: int) -> Array:
    """A quotient that is cut toward zero."""
    quotient: Array = np.sign(total) * (np.abs(total) // count)
    return quotient


W = wide(5, 4)


def test_integers_of_32_bits(place: str) -> None:
    q, u = wide(3, 5), wide(5, 3)
    text = f"""g (int32[N,5] a, int32[4,5] t, int32[2,K,3] b, int32[K] v, int32[3,M] x) =>
        (int32[N,4] w, int32[N,4] m, int32[2,3] r, int32 d, int32[N,4] s, int32[N,5] p,
         int32[3] e, int32 f, int32[3,M] same)
        <int32[5,4] k = {{{listed(W)}}}, int32[3,5] q = {{{listed(q)}}}, int64[1] axis = {{1}},
         int32[5,3] u = {{{listed(u)}}}, int32[5] z = {{1, -2, 3, {INT32.min}, 5}}> {{
        w = MatMul(a, k) tt = Transpose<perm = [1, 0]>(t) m = MatMul(a, tt)
        r = MatMul(v, b) d = MatMul(v, v) s = Gemm<transB = 1, alpha = 2.0>(a, t)
        o = MatMul(a, u) p = Gemm<beta = -3.0>(o, q, z)
        e = ReduceMean<keepdims = 0>(x, axis) f = ReduceMean<keepdims = 0>(x)
        same = ReduceMean<noop_with_empty_axes = 1>(x) }}"""
    z = np.array([1, -2, 3, INT32.min, 5], np.int32)
    for n, k, m in ((3, 6, 4), (1, 2, 3)):
        a, t, b, v = wide(n, 5), wide(4, 5), wide(2, k, 3), wide(k)
        x = RNG.integers(-(10**8), 10**8, (3, m)).astype(np.int32)
        right = {
            "w": a @ W, "m": a @ t.T, "r": v @ b, "d": np.asarray(v @ v), "s": 2 * (a @ t.T),
            "p": a @ u @ q - 3 * z, "same": x, "f": np.asarray(cut(x.sum(dtype=np.int64), 3 * m)),
            "e": cut(x.sum(1, dtype=np.int64), m),
        }  # fmt: skip
        found = run(place, model_of(text), {"a": a, "t": t, "b": b, "v": v, "x": x})
        assert not found.refused
        for name, value in right.items():
            np.testing.assert_array_equal(found.outputs[name], value.astype(np.int32), name)


def listed(values: Array) -> str:
    return ", ".join(map(str, values.ravel()))


def test_integers_of_64_bits_that_are_small(place: str) -> None:
    a, b = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((3, 600), (600, 700)))
    x = np.array([[-7, 2, 3], [-1, 0, 0]], np.int8)
    text = """g (int8[N,600] a, int8[600,700] b, int8[N,M] x) => (int64[N,700] m, int64[N,700] g,
        int64[N] e) <int64[1] axis = {-1}> {
        l = Cast<to = 7>(a) r = Cast<to = 7>(b) m = MatMul(l, r) g = Gemm(l, r, m)
        y = Cast<to = 7>(x) e = ReduceMean<keepdims = 0>(y, axis) }"""
    model = model_of(text)
    product = a.astype(np.int64) @ b
    feeds = {"a": a[:2], "b": b, "x": x}
    found = run(place, model, feeds)
    assert not found.refused
    np.testing.assert_array_equal(found.outputs["m"], product[:2])
    np.testing.assert_array_equal(found.outputs["g"], 2 * product[:2])
    np.testing.assert_array_equal(found.outputs["e"], [0, 0])


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("g (float[2,3] x) => (float[2,3] y) { y = MatMul(x, x) }", False),
        (
            "g (int32[99,999] x, int32[999,99] t) => (int32[99,99] y) { y = MatMul(x, t) }",
            False,
        ),
        ("g (int32[2,3] x, int32[3,2] t) => (int32[2,2] y) { y = Gemm<alpha = 0.5>(x, t) }", False),
        ("g (int32[2,3] x, int32[3,2] t) => (int32[2,2] y) { y = Gemm<alpha = 2.0>(x, t) }", True),
    ],
)
def test_what_has_a_definition(text: str, known: bool) -> None:
    node = next(iter(ir.from_onnx_text('<ir_version: 10, opset_import: ["": 21]>' + text).graph))
    defined = whole.matmul if node.op_type == "MatMul" else whole.gemm
    assert (defined(node) is not None) is known
