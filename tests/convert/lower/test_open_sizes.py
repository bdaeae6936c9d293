"""Sizes, places and amounts that a run decides, with changing ones in turn, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.types import Array
from tests.convert.lower.forms import FORMATS, LEAST, MOST, Form, check, f, i, one

FORMS = {
    "sizes as values": Form(
        "(float[n,3] x, float[n,3] z) => (int64[2] y, int64 s) <int64[4] p = {1, 0, 2, 0}> "
        "{ u = Pad(x, p) t = Concat<axis=1>(u, u) y = Shape(t) s = Size(t) }",
        [{"x": f(k, 3), "z": f(k, 3)} for k in (2, 0)],
    ),
    "a constant before open rows": Form(
        "(float[n,3] x) => (float[a,3] y, float[b,3] p, int64[2,k] z) "
        "<float[1,3] t = {1, 2, 3}, int64[4] w = {1, 0, 2, 0}> "
        "{ c = Concat<axis=0>(t, x) y = Mul(c, c) p = Pad(c, w) z = NonZero(c) }",
        [{"x": f(k, 3)} for k in (2, 1, 5)],
    ),
    "unique": Form(
        "(int64[n] x) => (int64[u] y, int64[u] i, int64[n] v, int64[u] c) "
        "{ y, i, v, c = Unique<sorted=1>(x) }",
        [{"x": i(*v)} for v in ((3, 1, 3, 2), (5,), (7, 7, 7))],
    ),
    "unique rows": Form(
        "(int64[n,m] x) => (int64[c,m] z, int64[c] k) { z, f, r, k = Unique<axis=0>(x) }",
        [{"x": i(*v).reshape(-1, 2)} for v in ((3, 1, 0, 4, 3, 1, 3, 0), (5, 5))],
    ),
    "reshape": Form(
        "(float[n,6] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }",
        [{"x": f(2, 6), "s": s} for s in (i(3, 4), i(-1, 2), i(0, -1))],
    ),
    "reshape of known elements": Form(
        "(float[2,3,4] x, int64[1] s) => (float[k] y) { y = Reshape(x, s) }",
        [{"x": f(2, 3, 4), "s": i(24)}],
    ),
    "slice": Form(
        "(float[n,6] x, int64[1] s, int64[1] e) => (float[a,6] y) <int64[1] ax = {0}> "
        "{ y = Slice(x, s, e, ax) }",
        [{"x": f(5, 6), "s": i(a), "e": i(b)} for a, b in ((1, 3), (-3, MOST), (4, 2), (-9, -1))],
    ),
    "slice with steps": Form(
        "(float[n,6] x, int64[2] s, int64[2] e, int64[2] t) => (float[a,b] y) "
        "<int64[2] ax = {0, 1}> { y = Slice(x, s, e, ax, t) }",
        [
            {"x": f(5, 6), "s": i(-1, 0), "e": i(LEAST, 9), "t": i(-1, 2)},
            {"x": f(0, 6), "s": i(-1, 5), "e": i(-100, 0), "t": i(-1, -2)},
            {"x": f(7, 6), "s": i(6, 5), "e": i(0, -100), "t": i(-2, -1)},
        ],
    ),
    "neighbours in an open axis": Form(
        "(float[n,6] x) => (float[a,6] y) <int64[1] s = {1}, int64[1] z = {0}, "
        "int64[1] e = {-1}, int64[1] b = {99}> "
        "{ a = Slice(x, s, b, z) b2 = Slice(x, z, e, z) y = Sub(a, b2) }",
        [{"x": f(k, 6)} for k in (5, 1, 0)],
    ),
    "expand": Form(
        "(float[1,n] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }",
        [
            {"x": f(1, 3), "s": i(4, 3)},
            {"x": f(1, 3), "s": i(4, 1)},
            {"x": f(1, 1), "s": i(2, 5)},
        ],
    ),
    "expand like another": Form(
        "(float[n,m] x, float[1,k] c) => (float[n,k] y) <int64[1] z = {0}, int64[1] o = {1}> "
        "{ s = Shape(x) n1 = Gather(s, z) t = Shape(c) k1 = Gather(t, o) "
        "w = Concat<axis=0>(n1, k1) y = Expand(c, w) }",
        [{"x": f(5, 3), "c": f(1, 4)}],
    ),
    "filled": Form(
        "(int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }",
        [{"s": i(2, 3)}, {"s": i(0, 3)}],
    ),
    "range": Form(
        "(int64 a, int64 b, int64 c) => (int64[n] y) { y = Range(a, b, c) }",
        [
            {"a": one(a), "b": one(b), "c": one(c)}
            for a, b, c in ((1, 10, 3), (1, -10, -3), (5, 1, 1))
        ],
    ),
    "range of floats": Form(
        "(float a, float b, float c) => (float[n] y) { y = Range(a, b, c) }",
        [{"a": one(1, np.float32), "b": one(2, np.float32), "c": one(0.3, np.float32)}],
    ),
    "mask of lengths": Form(
        "(int64[n] l, float[n,t] x) => (float[n,t] y) <int64 z = {0}, int64 o = {1}, "
        "int64[1] a = {1}> { s = Shape(x) t1 = Gather(s, o) r = Range(z, t1, o) "
        "u = Unsqueeze(l, a) m = Less(r, u) c = Cast<to=1>(m) y = Mul(x, c) }",
        [{"l": i(2, 0, 4), "x": f(3, 4)}, {"l": i(1), "x": f(1, 2)}],
    ),
    "tile": Form(
        "(float[n,2] x, int64[2] r) => (float[a,b] y) { y = Tile(x, r) }",
        [{"x": f(3, 2), "r": i(2, 3)}, {"x": f(3, 2), "r": i(0, 1)}],
    ),
    "split": Form(
        "(float[n,6] x, int64[2] s) => (float[n,a] y, float[n,b] z) { y, z = Split<axis=1>(x, s) }",
        [{"x": f(3, 6), "s": s} for s in (i(2, 4), i(6, 0))],
    ),
    "split an open axis": Form(
        "(float[n,2] x) => (float[a,2] y, float[b,2] z, float[c,2] w) "
        "{ y, z, w = Split<axis=0, num_outputs=3>(x) }",
        [{"x": f(k, 2)} for k in (7, 6, 9)],
    ),
    "pad": Form(
        "(float[n,3] x, int64[4] p) => (float[a,b] y) { y = Pad(x, p) }",
        [{"x": f(2, 3), "p": i(1, 0, 2, 3)}, {"x": f(4, 3), "p": i(-1, 0, -2, 3)}],
    ),
    "pad by edges": Form(
        '(float[n,3] x) => (float[a,b] y) <int64[4] p = {1, 0, 2, 1}> '
        '{ y = Pad<mode="edge">(x, p) }',
        [{"x": f(2, 3)}, {"x": f(1, 3)}],
    ),
    "pad by a mirror": Form(
        '(float[n,3] x, int64[4] p) => (float[a,b] y) { y = Pad<mode="reflect">(x, p) }',
        [{"x": f(5, 3), "p": i(2, 0, 1, 2)}],
    ),
    "best": Form(
        "(float[n,6] x, int64[1] k) => (float[n,a] y, int64[n,a] z) { y, z = TopK(x, k) }",
        [{"x": f(3, 6), "k": i(k)} for k in (2, 0, 6)],
    ),
    "best of an open axis": Form(
        "(float[n] x) => (float[a] y, int64[a] z) <int64[1] k = {4}> "
        "{ s = Shape(x) m = Min(s, k) y, z = TopK(x, m) }",
        [{"x": f(9)}, {"x": f(2)}],
    ),
    "one hot": Form(
        "(int64[n] x, int64 d) => (float[n,d] y) <float[2] v = {0, 1}> { y = OneHot(x, d, v) }",
        [{"x": i(1, 0, 3), "d": one(4)}],
    ),
    "a side of a diagonal": Form(
        "(float[n,n] x, int64 k) => (float[n,n] y) { y = Trilu(x, k) }",
        [{"x": f(4, 4), "k": one(1)}, {"x": f(3, 3), "k": one(-1)}],
    ),
    "diagonal": Form(
        "(float[n,m] x) => (float[n,m] y) { y = EyeLike<k=1>(x) }",
        [{"x": f(5, 3)}],
    ),
    "running sums": Form(
        "(float[n,3] x) => (float[n,3] y, float[n,3] z) <int64 a = {0}> "
        "{ y = CumSum(x, a) z = CumSum<exclusive=1, reverse=1>(x, a) }",
        [{"x": f(9, 3)}, {"x": f(0, 3)}],
    ),
    "broadcast": Form(
        "(float[n,3] x, float[m,3] z) => (float[k,3] y) { y = Add(x, z) }",
        [{"x": f(a, 3), "z": f(b, 3)} for a, b in ((4, 4), (1, 4), (4, 1), (0, 1))],
    ),
    "broadcast to a known size": Form(
        "(float[n,3] x, float[5,3] z) => (float[k,3] y) { y = Add(x, z) }",
        [{"x": f(a, 3), "z": f(5, 3)} for a in (5, 1)],
    ),
    "scattered rows": Form(
        "(float[n,3] x, int64[k,1] p, float[k,3] u) => (float[n,3] y) { y = ScatterND(x, p, u) }",
        [{"x": f(5, 3), "p": i(1, -1).reshape(2, 1), "u": f(2, 3)}],
    ),
    "products": Form(
        "(float[n,k] x, float[j,m] z) => (float[n,m] y) { y = MatMul(x, z) }",
        [{"x": f(5, 3), "z": f(3, 2)}],
    ),
    "linear": Form(
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 1.5}> "
        '{ y = Resize<mode="linear">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}, {"x": f(1, 1, 3, 1)}],
    ),
    "cubic": Form(
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 0.6}> "
        '{ y = Resize<mode="cubic">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}],
    ),
    "nearest": Form(
        "(float[n,1,h,w] x) => (float[n,1,a,b] y) <float[4] s = {1, 1, 2, 3}> "
        '{ y = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s) }',
        [{"x": f(2, 1, 4, 5)}],
    ),
    "sizes of a picture": Form(
        "(float[n,1,h,w] x, int64[4] s) => (float[n,1,a,b] y) "
        '{ y = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">'
        "(x, , , s) }",
        [{"x": f(2, 1, 4, 5), "s": s} for s in (i(2, 1, 7, 3), i(2, 1, 1, 1))],
    ),
    "corners": Form(
        "(float[n,1,h,w] x, int64[4] s) => (float[n,1,a,b] y) { y = Resize<mode=\"cubic\", "
        'exclude_outside=1, coordinate_transformation_mode="align_corners">(x, , , s) }',
        [{"x": f(2, 1, 4, 5), "s": i(2, 1, 7, 3)}],
    ),
    "as large as another picture": Form(
        "(float[n,1,h,w] x, float[n,2,a,b] l) => (float[n,1,a,b] y) <int64[1] z = {0}, "
        "int64[1] t = {2}, int64[1] e = {4}, int64[1] ax = {1}> "
        "{ p = Shape(x) q = Shape(l) p0 = Slice(p, z, t) q0 = Slice(q, t, e) "
        "s = Concat<axis=0>(p0, q0) r = Resize<coordinate_transformation_mode=\"asymmetric\", "
        'nearest_mode="floor">(x, , , s) c = Concat<axis=1>(r, l) y = ReduceMax(c, ax) }',
        [{"x": f(2, 1, 2, 3), "l": f(2, 2, 4, 6)}],
    ),
    "cut from a picture": Form(
        "(float[1,1,4,5] x) => (float[1,1,3,3] y) <float[8] r = {0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3}, "
        'int64[4] s = {1, 1, 3, 3}> { y = Resize<mode="linear", extrapolation_value=7.0, '
        'coordinate_transformation_mode="tf_crop_and_resize">(x, r, , s) }',
        [{"x": f(1, 1, 4, 5)}],
    ),
    "growing state": Form(
        "(int64 n, float[k,2] x) => (float[m,2] y) <bool t = {1}> { y = Loop(n, t, x) <body = "
        "b (int64 j, bool c, float[p,2] v) => (bool d, float[q,2] w) "
        "{ d = Identity(c) w = Concat<axis=0>(v, x) }> }",
        [{"n": one(n), "x": f(k, 2)} for n, k in ((3, 2), (0, 2), (2, 1))],
    ),
    "growing from nothing": Form(
        "(int64 n, float[2] x) => (float[m] y) <bool t = {1}, float[0] e = {}> "
        "{ y = Loop(n, t, e) <body = b (int64 j, bool c, float[p] v) => (bool d, float[q] w) "
        "{ d = Identity(c) w = Concat<axis=0>(v, x) }> }",
        [{"n": one(n), "x": f(2)} for n in (3, 0)],
    ),
    "rows of open sizes": Form(
        "(int64 n, float[k,2] x) => (float[k,2] y, float[m,k,2] z) <bool t = {1}> "
        "{ y, z = Loop(n, t, x) <body = b (int64 j, bool c, float[k,2] v) => "
        "(bool d, float[k,2] w, float[k,2] o) <float h = {0.5}> "
        "{ d = Identity(c) w = Mul(v, h) o = Add(w, x) }> }",
        [{"n": one(n), "x": f(k, 2)} for n, k in ((3, 2), (1, 4))],
    ),
    "rows of sizes that the data decides": Form(
        "(int64 n, float[6] x) => (float[m,k] z) <bool t = {1}> { z = Loop(n, t) <body = "
        "b (int64 j, bool c) => (bool d, float[q] o) <int64[1] r = {-1}> { d = Identity(c) "
        "a = NonZero(x) s = Reshape(a, r) o = Gather(x, s) }> }",
        [{"n": one(n), "x": np.array(x, np.float32)}
         for n, x in ((3, [1, 0, 2, 0, 0, 3]), (2, [0, 0, 2, 0, 0, 3]))],
    ),
    "open number of rows": Form(
        "(float[2,n,3] x, float[2,3] s) => (float[2,3] y, float[2,n,3] z) "
        "{ y, z = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1], "
        "scan_input_directions=[1], scan_output_directions=[1], body = "
        "b (float[2,3] v, float[2,3] r) => (float[2,3] w, float[2,3] o) <float h = {0.5}> "
        "{ a = Mul(v, h) w = Add(a, r) o = Tanh(w) }>(s, x) }",
        [{"x": f(2, k, 3), "s": f(2, 3)} for k in (4, 1)],
    ),
    "many rows": Form(
        "(float[3000] x, float s) => (float y, float[3000] z) { y, z = Scan<num_scan_inputs=1, "
        "body = b (float v, float r) => (float w, float o) <float h = {0.9}> "
        "{ a = Mul(v, h) w = Add(a, r) o = Tanh(w) }>(s, x) }",
        [{"x": f(3000), "s": one(0.5, np.float32)}],
    ),
    "branches of an open size": Form(
        "(bool c, float[n,3] x) => (float[m,3] y) { y = If(c) <then_branch = a () => "
        "(float[p,3] u) <int64[1] s = {1}, int64[1] e = {99}, int64[1] z = {0}> "
        "{ u = Slice(x, s, e, z) }, else_branch = b () => (float[q,3] v) "
        "{ v = Concat<axis=0>(x, x) }> }",
        [{"c": one(c, np.bool_), "x": f(4, 3)} for c in (True, False)],
    ),
    "transposed convolution": Form(
        "(float[n,2,h,w] x) => (float[n,1,a,b] y) <float[2,1,2,3] k = {1,2,3,4,5,6,7,8,9,8,7,6}> "
        "{ y = ConvTranspose<kernel_shape=[2,3], strides=[2,1], pads=[1,0,0,1], "
        "output_padding=[1,0]>(x, k) }",
        [{"x": f(1, 2, 3, 4)}, {"x": f(2, 2, 1, 5)}],
    ),
    "computed weights": Form(
        "(float[t,n,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b) => "
        "(float[t,1,n,2] y, float[1,n,2] h, float[1,n,2] c) "
        "{ y, h, c = LSTM<hidden_size=2>(x, w, r, b) }",
        [{"x": f(t, n, 3), "w": f(1, 8, 3), "r": f(1, 8, 2), "b": f(1, 16)}
         for t, n in ((4, 2), (7, 1))],
    ),
    "open sequences with lengths": Form(
        "(float[t,n,3] x, float[2,6,3] w, float[2,6,2] r, int32[n] l) => "
        "(float[t,2,n,2] y, float[2,n,2] h) { y, h = GRU<hidden_size=2, "
        'direction="bidirectional", linear_before_reset=1>(x, w, r, , l) }',
        [{"x": f(t, 2, 3), "w": f(2, 6, 3), "r": f(2, 6, 2), "l": np.array(own, np.int32)}
         for t, own in ((4, [4, 2]), (1, [1, 0]))],
    ),
    "a long sequence": Form(
        "(float[129,1,3] x, float[1,2,3] w, float[1,2,2] r) => "
        "(float[129,1,1,2] y, float[1,1,2] h) "
        "{ y, h = RNN<hidden_size=2>(x, w, r) }",
        [{"x": f(129, 1, 3), "w": f(1, 2, 3), "r": f(1, 2, 2)}],
    ),
}  # fmt: skip


def _boxes(batch: int, count: int) -> Array:
    corner = f(batch, count, 2)
    return np.concatenate([corner, corner + np.abs(f(batch, count, 2)) * 2], 2)


_TOP = "(float[n,6] x, int64[1] k) => (float[a,b] v, int64[a,b] i) {v, i = TopK<%s>(x, k)}"
_BOXES = (
    "(float[b,n,4] x, float[b,2,n] s) => (int64[m,3] y) "
    "<int64[1] k = {%d}, float[1] o = {0.3}, float[1] t = {-0.5}> "
    "{y = NonMaxSuppression(x, s, k, o, t)}"
)
_PAD = "(float[1,2,h,w] x, int64[8] p) => (float[a,b,c,d] y) {y = Pad%s(x, p)}"
_PICTURES = (f(1, 2, 5, 6), f(1, 2, 7, 4))
_AMOUNTS = (i(0, 0, 1, 2, 0, 0, 3, 1), i(0, 0, 0, 3, 0, 0, 2, 0))

_TRANSFORMS = ("half_pixel", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
_RESIZES = {
    **{
        f"{mode} {transform}": f'axes=[2,3], mode="{mode}", '
        f'coordinate_transformation_mode="{transform}"'
        for mode in ("linear", "cubic")
        for transform in (*_TRANSFORMS, "asymmetric")
    },
    **{
        f"nearest {way}": f'axes=[2,3], nearest_mode="{way}", '
        'coordinate_transformation_mode="asymmetric"'
        for way in ("floor", "ceil")
    },
    "cubic inside": 'axes=[2,3], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5',
    "larger": 'axes=[2,3], mode="linear", keep_aspect_ratio_policy="not_smaller"',
    "smaller": 'axes=[2,3], mode="linear", keep_aspect_ratio_policy="not_larger"',
}

MORE = {
    "least of an open axis": Form(
        _TOP % "axis=0, largest=0",
        [{"x": f(4, 6), "k": i(2)}, {"x": f(7, 6), "k": i(7)}],
    ),
    "boxes": Form(
        _BOXES % 4,
        [
            {"x": _boxes(1, 20), "s": f(1, 2, 20)},
            {"x": _boxes(3, 7), "s": f(3, 2, 7)},
            {"x": _boxes(1, 2), "s": f(1, 2, 2)},
        ],
    ),
    "all boxes": Form(
        _BOXES % np.iinfo(np.int64).max,
        [{"x": _boxes(b, n), "s": f(b, 2, n)} for b, n in ((1, 20), (2, 5))],
    ),
    "backwards": Form(
        "(float[n,6] x) => (float[a,6] y) <int64[1] s = {-1}, int64[1] e = {-9223372036854775807},"
        " int64[1] a = {0}, int64[1] t = {-2}> {y = Slice(x, s, e, a, t)}",
        [{"x": f(5, 6)}, {"x": f(2, 6)}],
    ),
    "backwards between places": Form(
        "(float[n,6] x, int64[2] s, int64[2] e) => (float[a,b] y) <int64[2] a = {0, 1},"
        " int64[2] t = {-1, -3}> {y = Slice(x, s, e, a, t)}",
        [
            {"x": f(5, 6), "s": i(3, -1), "e": i(0, -9)},
            {"x": f(7, 6), "s": i(99, 4), "e": i(-3, 1)},
        ],
    ),
    "from the end up to a place": Form(
        "(float[n] x) => (float[m] y) <int64[1] s = {-3}, int64[1] e = {4}> {y = Slice(x, s, e)}",
        [{"x": f(5)}, {"x": f(2)}, {"x": f(6)}],
    ),
    "upper triangle": Form(
        "(bool[n,m] x) => (bool[n,m] y) {y = Trilu(x)}",
        [{"x": f(4, 5) > 0}, {"x": f(3, 2) > 0}],
    ),
    "count of true": Form(
        "(bool[1,n] x) => (int64[1,n] y) <int64 a = {1}> {i = Cast<to=7>(x) y = CumSum(i, a)}",
        [{"x": f(1, 6) > 0}, {"x": f(1, 3) > 0}],
    ),
    "elements of a part": Form(
        "(float[n,m] x, int64[p,q] i) => (float[p,q] y) {y = GatherElements(x, i)}",
        [
            {"x": f(5, 4), "i": i(0, 4, 2, -1, 1, 3).reshape(3, 2)},
            {"x": f(2, 3), "i": i(1, 0).reshape(1, 2)},
        ],
    ),
    "elements into a part": Form(
        "(float[n,4] x, int64[m,q] i, float[m,q] u) => (float[n,4] y)"
        " {y = ScatterElements(x, i, u)}",
        [
            {"x": f(5, 4), "i": i(4, 2, 1, -5).reshape(2, 2), "u": f(2, 2)},
            {"x": f(3, 4), "i": i(1, 0, 2).reshape(1, 3), "u": f(1, 3)},
        ],
    ),
    "zeros around": Form(
        _PAD % "",
        [{"x": x, "p": p} for x, p in zip(_PICTURES, _AMOUNTS, strict=True)],
    ),
    "cuts and zeros": Form(
        _PAD % "",
        [{"x": _PICTURES[0], "p": i(0, 0, -1, 2, 0, 0, 3, -2)}],
    ),
    **{
        f"{mode} borders": Form(
            _PAD % f'<mode="{mode}">',
            [{"x": x, "p": p} for x, p in zip(_PICTURES, _AMOUNTS, strict=True)],
        )
        for mode in ("reflect", "edge", "wrap")
    },
    "borders of any integers": Form(
        '(int32[n] x) => (int32[m] y) <int64[2] p = {2, 1}> {y = Pad<mode="edge">(x, p)}',
        [{"x": np.array([2**31 - 1, -5, -(2**31)], np.int32)}],
    ),
    "filled with any integer": Form(
        "(int32[n,2] x) => (int32[m,2] y) <int64[4] p = {2, 0, 1, 0}, int32 v = {2147483647}>"
        " {y = Pad(x, p, v)}",
        [{"x": np.array([[2**31 - 1, -5], [0, 1]], np.int32)}],
    ),
    "filled with a number of a run": Form(
        "(float[n,3] x, float v) => (float[m,5] y) <int64[4] p = {1, 1, 0, 1}> {y = Pad(x, p, v)}",
        [
            {"x": f(2, 3), "v": np.array(np.inf, np.float32)},
            {"x": f(4, 3), "v": np.array(-2, np.float32)},
        ],
    ),
    "up to the next multiple": Form(
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) <int64[2] m = {4, 4}, int64[6] z = "
        '{0,0,0,0,0,0}> {s = Shape<start=2>(x) n = Neg(s) r = Mod(n, m) p = Concat<axis=0>(z, r)'
        ' y = Pad<mode="reflect">(x, p)}',
        [{"x": f(1, 2, 5, 6)}, {"x": f(1, 2, 8, 7)}],
    ),
    "dilated maxima": Form(
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) {y = MaxPool<kernel_shape=[2,3],"
        " dilations=[2,1], strides=[2,2], pads=[1,0,0,1]>(x)}",
        [{"x": f(1, 2, 6, 8)}, {"x": f(1, 2, 5, 7)}],
    ),
    "means rounded up": Form(
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) {y = AveragePool<kernel_shape=[2,2],"
        " strides=[2,2], ceil_mode=1>(x)}",
        [{"x": f(1, 2, 5, 7)}, {"x": f(1, 2, 6, 3)}],
    ),
    "regions": Form(
        "(float[1,3,h,w] x, float[r,4] r, int64[r] i) => (float[r,3,2,3] y) {y = RoiAlign<"
        "output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.5>(x, r, i)}",
        [
            {
                "x": f(1, 3, h, w),
                "r": np.array([[0, 0, 30, 20], [-3, -3, 50, 44]], np.float32),
                "i": i(0, 0),
            }
            for h, w in ((16, 20), (9, 7))
        ],
    ),
    **{
        f"{mode} to a size of a run": Form(
            "(float[1,2,h,w] x, int64[2] s) => (float[1,2,a,b] y)"
            f" {{y = Resize<{about}>(x, , , s)}}",
            [
                {"x": _PICTURES[0], "s": i(9, 4)},
                {"x": _PICTURES[1], "s": i(3, 11)},
                {"x": _PICTURES[1], "s": i(1, 1)},
            ],
        )
        for mode, about in _RESIZES.items()
    },
    **{
        f"{mode} by a factor": Form(
            "(float[1,2,h,w] x, float[2] s) => (float[1,2,a,b] y)"
            f" {{y = Resize<{about}>(x, , s)}}",
            [
                {"x": _PICTURES[0], "s": np.array([1.5, 0.75], np.float32)},
                {"x": _PICTURES[1], "s": np.array([2, 3], np.float32)},
            ],
        )
        for mode, about in _RESIZES.items()
        if "align_corners" not in mode and "aspect" not in about
    },
    "open pictures to one size": Form(
        "(float[b,2,5,6] x) => (float[b,2,7,4] y) <int64[3] s = {2, 7, 4}> {b = Shape<end=1>(x)"
        ' z = Concat<axis=0>(b, s) y = Resize<mode="cubic">(x, , , z)}',
        [{"x": f(1, 2, 5, 6)}, {"x": f(3, 2, 5, 6)}],
    ),
    "nearest by a factor": Form(
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) <float[4] s = {1.0, 1.0, 1.5, 0.4}>"
        " {y = Resize(x, , s)}",
        [{"x": x} for x in _PICTURES],
    ),
    "cropped around the middle": Form(
        "(float[n,3] x, int64[1] s) => (float[m,3] y) <int64[1] two = {2}, int64[2] one = {1, 1},"
        " int64[1] z = {0}> {p = Pad(x, one, , z) h = Shape<end=1>(p) d = Sub(h, s) b = Div(d, two)"
        " e = Add(b, s) y = Slice(p, b, e)}",
        [{"x": f(9, 3), "s": i(4)}, {"x": f(5, 3), "s": i(5)}],
    ),
    "determinants": Form(
        "(float[b,3,3] x) => (float[b] y) {y = Det(x)}",
        [{"x": f(2, 3, 3)}, {"x": f(5, 3, 3)}],
    ),
    "distinct elements and rows in their order": Form(
        "(int64[n,m] x) => (int64[a] y, int64[b] j, int64[c,m] z, int64[c] k)"
        " {y, i, j = Unique<sorted=0>(x) z, f, r, k = Unique<axis=0>(x)}",
        [{"x": i(3, 1, 0, 4, 3, 1, 3, 0).reshape(4, 2)}, {"x": i(5, 5).reshape(1, 2)}],
    ),
    "rows of open sizes from every turn": Form(
        "(float[n] s, float[t,n] x) => (float[n] y, float[t,n] z) {y, z = Scan<num_scan_inputs=1,"
        " body = b (float[n] a, float[n] r) => (float[n] c, float[n] o) {c = Add(a, r)"
        " o = Mul(c, r)}>(s, x)}",
        [{"s": f(3), "x": f(4, 3)}, {"s": f(2), "x": f(1, 2)}],
    ),
    **{
        f"six axes: {what}": Form(
            "(float[b,h,w,4] x, float[4,4] m) => (float[b,p,16] y) <int64[6] s = {0,-1,2,2,2,4},"
            " int64[3] t = {0,-1,16}, float[4] g = {1,2,3,4}, float[2,1,4] v = {1,2,3,4,5,6,7,8}>"
            f" {{r = Reshape(x, s) {call} y = Reshape(o, t)}}",
            [{"x": f(b, h, 4, 4), "m": f(4, 4)} for b, h in ((2, 4), (1, 2))],
        )
        for what, call in {
            "softmax": "o = Softmax(r)",
            "product": "o = MatMul(r, m)",
            "attention": "k = Transpose<perm=[0,1,2,3,5,4]>(r) a = MatMul(r, k) o = MatMul(a, r)",
            "norm": "o = LayerNormalization(r, g)",
            "mean": "q = Constant<value_ints=[2,4]>() n = ReduceMean(r, q) o = Sub(r, n)",
            "sum": "o = Add(r, v)",
        }.items()
    },
    "windows": Form(
        "(float[b,h,w,3] x) => (float[m,4,3] y) <int64[1] two = {2}, int64[1] three = {3},"
        " int64[3] t = {-1, 4, 3}> {b = Shape<end=1>(x) s = Shape<start=1, end=3>(x)"
        " n = Div(s, two) h, w = Split<num_outputs=2>(n)"
        " q = Concat<axis=0>(b, h, two, w, two, three) r = Reshape(x, q)"
        " p = Transpose<perm=[0,1,3,2,4,5]>(r) y = Reshape(p, t)}",
        [{"x": f(1, 4, 6, 3)}, {"x": f(2, 2, 8, 3)}],
    ),
    "blocks of pixels": Form(
        "(int32[1,h,w] x) => (int32[1,a,b,4] y) <int64[6] s = {1, 1, -1, 2, 3, 2},"
        " int64[4] t = {1, -1, 3, 4}, int32[3,2] v = {1, 2, 3, 4, 5, 6},"
        " int64[1] d = {0}> {r = Reshape(x, s)"
        " u = Mul(r, r) w = Unsqueeze(v, d) e = Add(r, w) n = Sub(u, e)"
        " p = Transpose<perm=[0,1,2,4,3,5]>(n) y = Reshape(p, t)}",
        [
            {"x": np.arange(24, dtype=np.int32).reshape(1, 4, 6)},
            {"x": np.arange(12, dtype=np.int32).reshape(1, 2, 6)},
        ],
    ),
    "one of six axes": Form(
        "(float[n,12] x) => (float[n,a,b,c,d] y) <int64[6] s = {-1, 1, 3, 2, 2, 1}, int64 i = {1}>"
        " {r = Reshape(x, s) y = Gather<axis=3>(r, i)}",
        [{"x": f(4, 12)}, {"x": f(1, 12)}],
    ),
    "parts of six axes": Form(
        "(float[n,12] x) => (float[n,6] y, float[n,6] z) <int64[6] s = {-1, 1, 3, 2, 2, 1},"
        " int64[2] t = {-1, 6}> {r = Reshape(x, s) a, b = Split<axis=3, num_outputs=2>(r)"
        " c = Concat<axis=3>(b, a) e, f = Split<axis=3, num_outputs=2>(c)"
        " y = Reshape(e, t) z = Reshape(f, t)}",
        [{"x": f(4, 12)}, {"x": f(1, 12)}],
    ),
}  # fmt: skip

REFUSED: dict[str, dict[str, str]] = {
    "tflite": {
        "rows of open sizes": "slices of dynamic size",
        "rows of sizes that the data decides": "slices of dynamic size",
    },
    "mlprogram": {
        "slice with steps": "'steps' must be constant",
        "growing from nothing": "tensors without elements do not exist",
        "rows of open sizes": "has dynamic sizes",
        "rows of sizes that the data decides": "has dynamic sizes",
    },
    "aimodel": {
        **dict.fromkeys(("unique", "unique rows"), "indices of unknown size"),
        "slice with steps": "'steps' must be constant",
        "split": "'split' must be constant",
        "split an open axis": "only known to a run",
        "pad by a mirror": "must be constant",
        "one hot": "'depth' must be constant",
        "diagonal": "a dynamic size",
        "running sums": "a dynamic size",
        **dict.fromkeys(("linear", "cubic"), "no whole factor"),
        **dict.fromkeys(
            ("sizes of a picture", "corners", "as large as another picture"),
            "'sizes' must be constant",
        ),
        **dict.fromkeys(
            ("growing state", "growing from nothing", "rows of open sizes"), "no known shape"
        ),
        "rows of sizes that the data decides": "of unknown size",
    },
}
"""Forms that a format refuses, and what it says."""


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[pytest.mark.sweep] * (form == "tvm")) for form in FORMATS],
)
def test_a_run_decides(form: str) -> None:
    check(form, FORMS, REFUSED.get(form, {}))


@pytest.mark.parametrize(
    ("form", "refused"),
    [
        pytest.param("tflite", 6, marks=pytest.mark.sweep),
        ("aimodel", 36),
        pytest.param("tvm", 0, marks=pytest.mark.sweep),
    ],
)
def test_a_run_decides_more(form: str, refused: int) -> None:
    check(form, MORE, refused)


@pytest.mark.parametrize("name", MORE)
def test_a_package_holds_integers_to_what_each_form_needs(name: str) -> None:
    check("mlprogram", {name: MORE[name]}, {})
