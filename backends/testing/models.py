"""The kit's models, by name in ``CASES``."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.backends.testing.cases import CASES, Values, case, graph, normal, rename
from edgeinfer.types import Array

__all__ = ["CASES"]

Built = tuple[Any, list[tuple[Values, Values]]]


@case("float32")
def add() -> Built:
    """Two inputs, broadcast."""
    model = graph("(float[2,3] a, float[3] b) => (float[2,3] y) { y = Add(a, b) }")
    a, b = normal(2, 3), normal(3) * 4
    return model, [({"a": a, "b": b}, {"y": a + b})]


@case("float32")
def matmul() -> Built:
    """Long sums of products whose low bits TF32, bfloat16 and float16 would lose."""
    w = normal(256, 32)
    model = graph("(float[4,256] x) => (float[4,32] y) { y = MatMul(x, w) }", w=w)
    x = normal(4, 256) + 1
    exact = x.astype(np.float64) @ w.astype(np.float64)
    return model, [({"x": x}, {"y": exact.astype(np.float32)})]


@case("float32")
def conv() -> Built:
    """3x3, stride 2, padded, with bias."""
    w, b = normal(4, 3, 3, 3), normal(4)
    model = graph(
        "(float[1,3,9,9] x) => (float[1,4,5,5] y)"
        "{ y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b) }",
        w=w,
        b=b,
    )
    x = normal(1, 3, 9, 9)
    return model, [({"x": x}, {"y": _conv(x, w, b)})]


def _conv(x: Array, w: Array, b: Array) -> Array:
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y = np.einsum("nchwij,ocij->nohw", windows[:, :, ::2, ::2], w.astype(np.float64))
    biased: Array = y + b[:, None, None]
    return biased.astype(np.float32)


@case("float32")
def lstm() -> Built:
    """One direction, 5 steps, with all three outputs."""
    w, r, b = normal(1, 16, 3) * 0.4, normal(1, 16, 4) * 0.4, normal(1, 32) * 0.1
    model = graph(
        "(float[5,2,3] x) => (float[5,1,2,4] y, float[1,2,4] h, float[1,2,4] c)"
        "{ y, h, c = LSTM<hidden_size=4>(x, w, r, b) }",
        w=w,
        r=r,
        b=b,
    )
    x = normal(5, 2, 3)
    y, h, c = _lstm(x, w[0], r[0], b[0])
    return model, [({"x": x}, {"y": y, "h": h, "c": c})]


def _lstm(x: Array, w: Array, r: Array, b: Array) -> tuple[Array, Array, Array]:
    """Source: ONNX operator LSTM, default activations, gates in the order i, o, f, c."""
    h = c = np.zeros((x.shape[1], r.shape[1]))
    steps = []
    for step in x.astype(np.float64):
        gates = step @ w.T + h @ r.T + b[:16] + b[16:]
        i, o, f = (1 / (1 + np.exp(-g)) for g in np.split(gates, 4, axis=1)[:3])
        c = f * c + i * np.tanh(gates[:, 12:])
        h = o * np.tanh(c)
        steps.append(h)
    return (
        np.stack(steps)[:, None].astype(np.float32),
        h[None].astype(np.float32),
        c[None].astype(np.float32),
    )


@case("float32")
def dynamic_batch() -> Built:
    """One executable, batches that grow and shrink."""
    w = normal(8, 4)
    model = graph("(float[N,8] x) => (float[N,4] y) { y = MatMul(x, w) }", w=w)
    batches = [normal(n, 8) for n in (2, 7, 1, 3)]
    return model, [({"x": x}, {"y": x @ w}) for x in batches]


@case("float32", "int64")
def many_tensors() -> Built:
    """Inputs and outputs whose order is neither alphabetical nor that of their use."""
    model = graph(
        "(float[2] z, int64[2] k, float[2] a) => (float[2] s, int64[2] d, float[2] b)"
        "{ b = Mul(a, z)  d = Add(k, k)  s = Sub(z, a) }"
    )
    z, k, a = normal(2), np.array([3, -4]), np.array([5, 6], np.float32)
    return model, [({"z": z, "k": k, "a": a}, {"s": z - a, "d": k + k, "b": a * z})]


@case("int64")
def int64_values() -> Built:
    """Values that fit into 32 bits."""
    model = graph("(int64[4] x) => (int64[4] y) { y = Mul(x, x) }")
    x = np.array([0, -1, 46340, 1000])
    return model, [({"x": x}, {"y": x * x})]


@case("int64", may_refuse=True)
def int64_beyond_32_bits() -> Built:
    """The right numbers or a refusal; some engines compute in 32 bits."""
    model = graph("(int64[3] x) => (int64[3] y) { y = Add(x, x) }")
    x = np.array([2**40 + 1, -(2**35), 7])
    return model, [({"x": x}, {"y": x + x})]


@case("int32", "uint8")
def small_integers() -> Built:
    """A cast between integer types."""
    model = graph("(uint8[4] x, int32[4] k) => (int32[4] y){ w = Cast<to=6>(x)  y = Add(w, k) }")
    x, k = np.array([0, 1, 128, 255], np.uint8), np.array([1, -300, 7, 2**20], np.int32)
    return model, [({"x": x, "k": k}, {"y": x.astype(np.int32) + k})]


@case("bool", "float32")
def booleans() -> Built:
    """Booleans as input and as output."""
    model = graph(
        "(bool[3] m, float[3] x) => (bool[3] y, float[3] w)"
        "{ n = Greater(x, zero)  y = And(m, n)  w = Where(m, x, zero) }",
        zero=np.array(0, np.float32),
    )
    m, x = np.array([True, False, True]), np.array([1, 2, -3], np.float32)
    return model, [({"m": m, "x": x}, {"y": m & (x > 0), "w": np.where(m, x, np.float32(0))})]


@case("float16")
def float16_values() -> Built:
    """Half precision in and out."""
    model = graph("(float16[2,3] x) => (float16[2,3] y) { y = Mul(x, x) }")
    x = normal(2, 3, dtype="float16")
    return model, [({"x": x}, {"y": x * x})]


@case("float64")
def float64_values() -> Built:
    """Double precision, to the last bits."""
    model = graph("(double[3] x) => (double[3] y) { y = Add(x, x) }")
    x = np.array([1 / 3, 1e-200, 7.0])
    return model, [({"x": x}, {"y": x + x})]


@case("bfloat16")
def bfloat16_values() -> Built:
    """bfloat16 in and out, with a value that float16 does not have."""
    import ml_dtypes

    model = graph("(bfloat16[2,2] x) => (bfloat16[2,2] y) { y = Identity(x) }")
    x = np.array([[1.5, -2], [3e38, 0]], ml_dtypes.bfloat16)
    return model, [({"x": x}, {"y": x.copy()})]


@case("string")
def strings() -> Built:
    """Texts beyond ASCII."""
    model = graph("(string[2] x) => (string[2] y) { y = Identity(x) }")
    x = np.array(["straße", ""], object)
    return model, [({"x": x}, {"y": x.copy()})]


@case("float32")
def zero_dimensions() -> Built:
    """Tensors of shape ()."""
    model = graph("(float x) => (float y) { y = Exp(x) }")
    x = np.array(0.5, np.float32)
    return model, [({"x": x}, {"y": np.exp(x)[()].reshape(())})]


@case("float32")
def empty_tensors() -> Built:
    """No elements, then some, then none again."""
    model = graph("(float[N,3] x) => (float[N,3] y) { y = Add(x, x) }")
    runs = [normal(n, 3) for n in (0, 2, 0)]
    return model, [({"x": x}, {"y": x + x}) for x in runs]


@case("float32", "int64")
def size_from_data() -> Built:
    """An output whose size depends on values, down to nothing."""
    model = graph("(float[4] x) => (int64[1,N] y) { y = NonZero(x) }")
    runs = [
        np.array([0, 1, 0, 2], np.float32),
        np.array([0, 0, 0, 0], np.float32),
        np.array([1, 1, 1, 1], np.float32),
    ]
    return model, [({"x": x}, {"y": np.array(np.nonzero(x))}) for x in runs]


@case("float32")
def json_names() -> Built:
    """Names that are JSON, as some exporters write them."""
    model = graph("(float[2] x) => (float[2] y) { y = Neg(x) }")
    x, y = '{"class_name": "T", "config": {"shape": [null, 2]}}', '["out, 0", "a\\\\b"]'
    values = normal(2)
    return rename(model, {"x": x, "y": y}), [({x: values}, {y: -values})]


@case("float32")
def odd_names() -> Built:
    """Slashes, colons, spaces, marks of XML, letters beyond ASCII."""
    model = graph("(float[2] x, float[2] w) => (float[2] y) { y = Sub(x, w) }")
    names = {"x": "serving/ä:0", "w": '<in> & "b"', "y": "结果 'y'"}
    x, w = normal(2), np.array([3, 4], np.float32)
    return rename(model, names), [({names["x"]: x, names["w"]: w}, {names["y"]: x - w})]


@case("float32")
def passed_through() -> Built:
    """An output that is an input, and one that is a constant."""
    model = graph(
        "(float[2] x) => (float[2] same, float[2] fixed)"
        "{ same = Identity(x)  fixed = Identity(c) }",
        c=np.array([8, 9], np.float32),
    )
    x = normal(2)
    return model, [({"x": x}, {"same": x, "fixed": np.array([8, 9], np.float32)})]


@case("float32", "bool")
def special_values() -> Built:
    """Infinities, NaN and values below the normal range."""
    model = graph("(float[5] x) => (float[5] y, bool[5] n) { y = Add(x, x)  n = IsNaN(x) }")
    x = np.array([np.inf, -np.inf, np.nan, 1e-39, 3e38], np.float32)
    with np.errstate(over="ignore"):
        doubled = x + x
    return model, [({"x": x}, {"y": doubled, "n": np.isnan(x)})]


@case("uint8", "int32")
def int8_products() -> Built:
    """Products of 8-bit values whose pairs do not fit into 16 bits."""
    w = np.full((64, 8), 127, np.int8)
    model = graph("(uint8[2,64] x) => (int32[2,8] y) { y = MatMulInteger(x, w) }", w=w)
    x = np.full((2, 64), 255, np.uint8)
    return model, [({"x": x}, {"y": x.astype(np.int32) @ w.astype(np.int32)})]


@case("float32")
def in_place_bait() -> Built:
    """A chain that an engine may compute in its input's memory."""
    model = graph(
        "(float[2,3] x) => (float[6] y) { f = Reshape(x, s)  r = Relu(f)  y = Neg(r) }",
        s=np.array([6]),
    )
    x = normal(2, 3)
    return model, [({"x": x}, {"y": -np.maximum(x, 0).reshape(6)})]


@case("float32")
def two_sizes() -> Built:
    """Two inputs whose sizes must agree at run time; the kit runs it with ones that do not."""
    model = graph("(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    a = normal(3)
    return model, [({"a": a, "b": a * 2}, {"y": a * 3})]
