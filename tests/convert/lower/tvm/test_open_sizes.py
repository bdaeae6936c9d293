"""Sizes, places and amounts that a run decides, with changing ones in turn on one library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.backends.base import Executable
from edgeinfer.errors import RunError
from tests.convert.lower.tflite.together import joined, joined_feeds
from tests.convert.lower.tvm.run import Array, load

HEAD = '<ir_version: 10, opset_import: ["": 21]> g '
RANDOM = np.random.default_rng(0)
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
Feeds = dict[str, Array]


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def i(*values: int) -> Array:
    return np.array(values, np.int64)


def one(value: float, dtype: type = np.int64) -> Array:
    return np.array(value, dtype)


RIGHT: dict[str, tuple[str, list[Feeds]]] = {
    "sizes as values": (
        "(float[n,3] x, float[n,3] z) => (int64[2] y, int64 s) <int64[4] p = {1, 0, 2, 0}> "
        "{ u = Pad(x, p) t = Concat<axis=1>(u, u) y = Shape(t) s = Size(t) }",
        [{"x": f(k, 3), "z": f(k, 3)} for k in (2, 0)],
    ),
    "a constant before open rows": (
        "(float[n,3] x) => (float[a,3] y, float[b,3] p, int64[2,k] z) "
        "<float[1,3] t = {1, 2, 3}, int64[4] w = {1, 0, 2, 0}> "
        "{ c = Concat<axis=0>(t, x) y = Mul(c, c) p = Pad(c, w) z = NonZero(c) }",
        [{"x": f(k, 3)} for k in (2, 1, 5)],
    ),
    "unique": (
        "(int64[n] x) => (int64[u] y, int64[u] i, int64[n] v, int64[u] c) "
        "{ y, i, v, c = Unique<sorted=1>(x) }",
        [{"x": i(*v)} for v in ((3, 1, 3, 2), (5,), (7, 7, 7))],
    ),
    "unique rows": (
        "(int64[n,m] x) => (int64[c,m] z, int64[c] k) { z, f, r, k = Unique<axis=0>(x) }",
        [{"x": i(*v).reshape(-1, 2)} for v in ((3, 1, 0, 4, 3, 1, 3, 0), (5, 5))],
    ),
    "reshape": (
        "(float[n,6] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }",
        [{"x": f(2, 6), "s": s} for s in (i(3, 4), i(-1, 2), i(0, -1))],
    ),
    "reshape of known elements": (
        "(float[2,3,4] x, int64[1] s) => (float[k] y) { y = Reshape(x, s) }",
        [{"x": f(2, 3, 4), "s": i(24)}],
    ),
    "slice": (
        "(float[n,6] x, int64[1] s, int64[1] e) => (float[a,6] y) <int64[1] ax = {0}> "
        "{ y = Slice(x, s, e, ax) }",
        [{"x": f(5, 6), "s": i(a), "e": i(b)} for a, b in ((1, 3), (-3, MOST), (4, 2), (-9, -1))],
    ),
    "slice with steps": (
        "(float[n,6] x, int64[2] s, int64[2] e, int64[2] t) => (float[a,b] y) "
        "<int64[2] ax = {0, 1}> { y = Slice(x, s, e, ax, t) }",
        [
            {"x": f(5, 6), "s": i(-1, 0), "e": i(LEAST, 9), "t": i(-1, 2)},
            {"x": f(0, 6), "s": i(-1, 5), "e": i(-100, 0), "t": i(-1, -2)},
            {"x": f(7, 6), "s": i(6, 5), "e": i(0, -100), "t": i(-2, -1)},
        ],
    ),
    "neighbours in an open axis": (
        "(float[n,6] x) => (float[a,6] y) <int64[1] s = {1}, int64[1] z = {0}, "
        "int64[1] e = {-1}, int64[1] b = {99}> "
        "{ a = Slice(x, s, b, z) b2 = Slice(x, z, e, z) y = Sub(a, b2) }",
        [{"x": f(k, 6)} for k in (5, 1, 0)],
    ),
    "expand": (
        "(float[1,n] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }",
        [
            {"x": f(1, 3), "s": i(4, 3)},
            {"x": f(1, 3), "s": i(4, 1)},
            {"x": f(1, 1), "s": i(2, 5)},
        ],
    ),
    "expand like another": (
        "(float[n,m] x, float[1,k] c) => (float[n,k] y) <int64[1] z = {0}, int64[1] o = {1}> "
        "{ s = Shape(x) n1 = Gather(s, z) t = Shape(c) k1 = Gather(t, o) "
        "w = Concat<axis=0>(n1, k1) y = Expand(c, w) }",
        [{"x": f(5, 3), "c": f(1, 4)}],
    ),
    "filled": (
        "(int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }",
        [{"s": i(2, 3)}, {"s": i(0, 3)}],
    ),
    "range": (
        "(int64 a, int64 b, int64 c) => (int64[n] y) { y = Range(a, b, c) }",
        [
            {"a": one(a), "b": one(b), "c": one(c)}
            for a, b, c in ((1, 10, 3), (1, -10, -3), (5, 1, 1))
        ],
    ),
    "range of floats": (
        "(float a, float b, float c) => (float[n] y) { y = Range(a, b, c) }",
        [{"a": one(1, np.float32), "b": one(2, np.float32), "c": one(0.3, np.float32)}],
    ),
    "mask of lengths": (
        "(int64[n] l, float[n,t] x) => (float[n,t] y) <int64 z = {0}, int64 o = {1}, "
        "int64[1] a = {1}> { s = Shape(x) t1 = Gather(s, o) r = Range(z, t1, o) "
        "u = Unsqueeze(l, a) m = Less(r, u) c = Cast<to=1>(m) y = Mul(x, c) }",
        [{"l": i(2, 0, 4), "x": f(3, 4)}, {"l": i(1), "x": f(1, 2)}],
    ),
    "tile": (
        "(float[n,2] x, int64[2] r) => (float[a,b] y) { y = Tile(x, r) }",
        [{"x": f(3, 2), "r": i(2, 3)}, {"x": f(3, 2), "r": i(0, 1)}],
    ),
    "split": (
        "(float[n,6] x, int64[2] s) => (float[n,a] y, float[n,b] z) { y, z = Split<axis=1>(x, s) }",
        [{"x": f(3, 6), "s": s} for s in (i(2, 4), i(6, 0))],
    ),
    "split an open axis": (
        "(float[n,2] x) => (float[a,2] y, float[b,2] z, float[c,2] w) "
        "{ y, z, w = Split<axis=0, num_outputs=3>(x) }",
        [{"x": f(k, 2)} for k in (7, 6, 9)],
    ),
    "pad": (
        "(float[n,3] x, int64[4] p) => (float[a,b] y) { y = Pad(x, p) }",
        [{"x": f(2, 3), "p": i(1, 0, 2, 3)}, {"x": f(4, 3), "p": i(-1, 0, -2, 3)}],
    ),
    "pad by edges": (
        '(float[n,3] x) => (float[a,b] y) <int64[4] p = {1, 0, 2, 1}> '
        '{ y = Pad<mode="edge">(x, p) }',
        [{"x": f(2, 3)}, {"x": f(1, 3)}],
    ),
    "pad by a mirror": (
        '(float[n,3] x, int64[4] p) => (float[a,b] y) { y = Pad<mode="reflect">(x, p) }',
        [{"x": f(5, 3), "p": i(2, 0, 1, 2)}],
    ),
    "best": (
        "(float[n,6] x, int64[1] k) => (float[n,a] y, int64[n,a] z) { y, z = TopK(x, k) }",
        [{"x": f(3, 6), "k": i(k)} for k in (2, 0, 6)],
    ),
    "best of an open axis": (
        "(float[n] x) => (float[a] y, int64[a] z) <int64[1] k = {4}> "
        "{ s = Shape(x) m = Min(s, k) y, z = TopK(x, m) }",
        [{"x": f(9)}, {"x": f(2)}],
    ),
    "one hot": (
        "(int64[n] x, int64 d) => (float[n,d] y) <float[2] v = {0, 1}> { y = OneHot(x, d, v) }",
        [{"x": i(1, 0, 3), "d": one(4)}],
    ),
    "a side of a diagonal": (
        "(float[n,n] x, int64 k) => (float[n,n] y) { y = Trilu(x, k) }",
        [{"x": f(4, 4), "k": one(1)}, {"x": f(3, 3), "k": one(-1)}],
    ),
    "diagonal": (
        "(float[n,m] x) => (float[n,m] y) { y = EyeLike<k=1>(x) }",
        [{"x": f(5, 3)}],
    ),
    "running sums": (
        "(float[n,3] x) => (float[n,3] y, float[n,3] z) <int64 a = {0}> "
        "{ y = CumSum(x, a) z = CumSum<exclusive=1, reverse=1>(x, a) }",
        [{"x": f(9, 3)}, {"x": f(0, 3)}],
    ),
    "broadcast": (
        "(float[n,3] x, float[m,3] z) => (float[k,3] y) { y = Add(x, z) }",
        [{"x": f(a, 3), "z": f(b, 3)} for a, b in ((4, 4), (1, 4), (4, 1), (0, 1))],
    ),
    "broadcast to a known size": (
        "(float[n,3] x, float[5,3] z) => (float[k,3] y) { y = Add(x, z) }",
        [{"x": f(a, 3), "z": f(5, 3)} for a in (5, 1)],
    ),
    "scattered rows": (
        "(float[n,3] x, int64[k,1] p, float[k,3] u) => (float[n,3] y) { y = ScatterND(x, p, u) }",
        [{"x": f(5, 3), "p": i(1, -1).reshape(2, 1), "u": f(2, 3)}],
    ),
    "products": (
        "(float[n,k] x, float[j,m] z) => (float[n,m] y) { y = MatMul(x, z) }",
        [{"x": f(5, 3), "z": f(3, 2)}],
    ),
    "linear": (
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 1.5}> "
        '{ y = Resize<mode="linear">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}, {"x": f(1, 1, 3, 1)}],
    ),
    "cubic": (
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 0.6}> "
        '{ y = Resize<mode="cubic">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}],
    ),
    "nearest": (
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 3}> "
        '{ y = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}],
    ),
    "sizes of a picture": (
        "(float[n,1,h,w] x, int64[4] s) => (float[n,1,a,b] y) "
        '{ y = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">'
        "(x, , , s) }",
        [{"x": f(2, 1, 4, 5), "s": s} for s in (i(2, 1, 7, 3), i(2, 1, 1, 1))],
    ),
    "corners": (
        "(float[n,1,h,w] x, int64[4] s) => (float[n,1,a,b] y) { y = Resize<mode=\"cubic\", "
        'exclude_outside=1, coordinate_transformation_mode="align_corners">(x, , , s) }',
        [{"x": f(2, 1, 4, 5), "s": i(2, 1, 7, 3)}],
    ),
    "as large as another picture": (
        "(float[n,1,h,w] x, float[n,2,a,b] l) => (float[n,1,a,b] y) <int64[1] z = {0}, "
        "int64[1] t = {2}, int64[1] e = {4}, int64[1] ax = {1}> "
        "{ p = Shape(x) q = Shape(l) p0 = Slice(p, z, t) q0 = Slice(q, t, e) "
        "s = Concat<axis=0>(p0, q0) r = Resize<coordinate_transformation_mode=\"asymmetric\", "
        'nearest_mode="floor">(x, , , s) c = Concat<axis=1>(r, l) y = ReduceMax(c, ax) }',
        [{"x": f(2, 1, 2, 3), "l": f(2, 2, 4, 6)}],
    ),
    "cut from a picture": (
        "(float[1,1,4,5] x) => (float[1,1,3,3] y) <float[8] r = {0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3}, "
        'int64[4] s = {1, 1, 3, 3}> { y = Resize<mode="linear", extrapolation_value=7.0, '
        'coordinate_transformation_mode="tf_crop_and_resize">(x, r, , s) }',
        [{"x": f(1, 1, 4, 5)}],
    ),
    "growing state": (
        "(int64 n, float[k,2] x) => (float[m,2] y) <bool t = {1}> { y = Loop(n, t, x) <body = "
        "b (int64 j, bool c, float[p,2] v) => (bool d, float[q,2] w) "
        "{ d = Identity(c) w = Concat<axis=0>(v, x) }> }",
        [{"n": one(n), "x": f(k, 2)} for n, k in ((3, 2), (0, 2), (2, 1))],
    ),
    "growing from nothing": (
        "(int64 n, float[2] x) => (float[m] y) <bool t = {1}, float[0] e = {}> "
        "{ y = Loop(n, t, e) <body = b (int64 j, bool c, float[p] v) => (bool d, float[q] w) "
        "{ d = Identity(c) w = Concat<axis=0>(v, x) }> }",
        [{"n": one(n), "x": f(2)} for n in (3, 0)],
    ),
    "rows of open sizes": (
        "(int64 n, float[k,2] x) => (float[k,2] y, float[m,k,2] z) <bool t = {1}> "
        "{ y, z = Loop(n, t, x) <body = b (int64 j, bool c, float[k,2] v) => "
        "(bool d, float[k,2] w, float[k,2] o) <float h = {0.5}> "
        "{ d = Identity(c) w = Mul(v, h) o = Add(w, x) }> }",
        [{"n": one(n), "x": f(k, 2)} for n, k in ((3, 2), (1, 4))],
    ),
    "rows of sizes that the data decides": (
        "(int64 n, float[6] x) => (float[m,k] z) <bool t = {1}> { z = Loop(n, t) <body = "
        "b (int64 j, bool c) => (bool d, float[q] o) <int64[1] r = {-1}> { d = Identity(c) "
        "a = NonZero(x) s = Reshape(a, r) o = Gather(x, s) }> }",
        [{"n": one(n), "x": np.array(x, np.float32)}
         for n, x in ((3, [1, 0, 2, 0, 0, 3]), (2, [0, 0, 2, 0, 0, 3]))],
    ),
    "open number of rows": (
        "(float[2,n,3] x, float[2,3] s) => (float[2,3] y, float[2,n,3] z) "
        "{ y, z = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1], "
        "scan_input_directions=[1], scan_output_directions=[1], body = "
        "b (float[2,3] v, float[2,3] r) => (float[2,3] w, float[2,3] o) <float h = {0.5}> "
        "{ a = Mul(v, h) w = Add(a, r) o = Tanh(w) }>(s, x) }",
        [{"x": f(2, k, 3), "s": f(2, 3)} for k in (4, 1)],
    ),
    "many rows": (
        "(float[3000] x, float s) => (float y, float[3000] z) { y, z = Scan<num_scan_inputs=1, "
        "body = b (float v, float r) => (float w, float o) <float h = {0.9}> "
        "{ a = Mul(v, h) w = Add(a, r) o = Tanh(w) }>(s, x) }",
        [{"x": f(3000), "s": one(0.5, np.float32)}],
    ),
    "branches of an open size": (
        "(bool c, float[n,3] x) => (float[m,3] y) { y = If(c) <then_branch = a () => "
        "(float[p,3] u) <int64[1] s = {1}, int64[1] e = {99}, int64[1] z = {0}> "
        "{ u = Slice(x, s, e, z) }, else_branch = b () => (float[q,3] v) "
        "{ v = Concat<axis=0>(x, x) }> }",
        [{"c": one(c, np.bool_), "x": f(4, 3)} for c in (True, False)],
    ),
    "computed weights": (
        "(float[t,n,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b) => "
        "(float[t,1,n,2] y, float[1,n,2] h, float[1,n,2] c) "
        "{ y, h, c = LSTM<hidden_size=2>(x, w, r, b) }",
        [{"x": f(t, n, 3), "w": f(1, 8, 3), "r": f(1, 8, 2), "b": f(1, 16)}
         for t, n in ((4, 2), (7, 1))],
    ),
    "open sequences with lengths": (
        "(float[t,n,3] x, float[2,6,3] w, float[2,6,2] r, int32[n] l) => "
        "(float[t,2,n,2] y, float[2,n,2] h) { y, h = GRU<hidden_size=2, "
        'direction="bidirectional", linear_before_reset=1>(x, w, r, , l) }',
        [{"x": f(t, 2, 3), "w": f(2, 6, 3), "r": f(2, 6, 2), "l": np.array(own, np.int32)}
         for t, own in ((4, [4, 2]), (1, [1, 0]))],
    ),
    "a long sequence": (
        "(float[129,1,3] x, float[1,2,3] w, float[1,2,2] r) => "
        "(float[129,1,1,2] y, float[1,1,2] h) "
        "{ y, h = RNN<hidden_size=2>(x, w, r) }",
        [{"x": f(129, 1, 3), "w": f(1, 2, 3), "r": f(1, 2, 2)}],
    ),
}  # fmt: skip

REFUSED: dict[str, list[Feeds]] = {
    "best": [{"x": f(3, 6), "k": i(k)} for k in (7, -1)],
    "filled": [{"s": i(-1, 3)}],
    "reshape": [{"x": f(2, 6), "s": s} for s in (i(5, -1), i(4, 4), i(-1, -1))],
    "split": [{"x": f(3, 6), "s": s} for s in (i(2, 5), i(7, -1))],
    "broadcast": [{"x": f(a, 3), "z": f(4, 3)} for a in (3, 0)],
    "broadcast to a known size": [{"x": f(a, 3), "z": f(5, 3)} for a in (4, 0, 6)],
    "products": [{"x": f(5, 3), "z": f(4, 2)}],
    "pad by edges": [{"x": f(0, 3)}],
    "range": [{"a": one(1), "b": one(9), "c": one(0)}],
    "expand": [{"x": f(1, 3), "s": i(4, 2)}],
    "slice with steps": [{"x": f(5, 6), "s": i(-1, 0), "e": i(0, 9), "t": i(0, 2)}],
}


def _opened(name: str, folder: Path) -> tuple[onnx.ModelProto, Executable]:
    model = onnx.parser.parse_model(HEAD + RIGHT[name][0])
    return model, load(model, folder)


SLOWER = [
    *("linear", "cubic", "corners", "as large as another picture", "a long sequence"),
    *("open sequences with lengths", "sizes of a picture", "growing from nothing"),
    *("rows of sizes that the data decides", "unique rows", "expand like another", "filled"),
]
"""Other resizings, loops and recurrent layers take the same way."""

USUAL = [name for name in RIGHT if name not in SLOWER]
FAMILIES = [
    *(USUAL[first : first + 14] for first in range(0, len(USUAL), 14)),
    *(pytest.param(part, marks=pytest.mark.sweep) for part in (SLOWER[:6], SLOWER[6:])),
]
"""What is one library, which takes less than one for each."""


@pytest.mark.parametrize("names", FAMILIES, ids=lambda names: names[0])
def test_a_run_decides(names: list[str], tmp_path: Path) -> None:
    model = joined([onnx.parser.parse_model(HEAD + RIGHT[name][0]) for name in names])
    ready, session = load(model, tmp_path), onnxruntime.InferenceSession(model.SerializeToString())
    for turn in range(max(len(RIGHT[name][1]) for name in names)):
        runs = [RIGHT[name][1][turn % len(RIGHT[name][1])] for name in names]
        feeds = joined_feeds(runs)
        found = ready.run(feeds)
        for out, wanted in zip(model.graph.output, session.run(None, feeds), strict=True):
            got = np.asarray(found[out.name])
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), (names, out.name)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=out.name)
    ready.close()


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_there_are_not_end_the_run_and_no_later_one(name: str, tmp_path: Path) -> None:
    _, ready = _opened(name, tmp_path)
    usual = RIGHT[name][1][0]
    before = {k: np.array(v) for k, v in ready.run(usual).items()}
    for feeds in REFUSED[name]:
        with pytest.raises(RunError, match=r"impossible size|Mismatched"):
            ready.run(feeds)
    for key, value in ready.run(usual).items():
        np.testing.assert_array_equal(value, before[key])
    ready.close()
