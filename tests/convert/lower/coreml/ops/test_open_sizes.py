"""Sizes, places and amounts known only at run time: of inputs, of results, and as values."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.types import Array
from tests.convert.lower.coreml.run import check, floats, refusal

OLDER = '<ir_version: 10, opset_import: ["": 21]> '


def _whole(*values: int) -> Array:
    return np.array(values, np.int64)


def _boxes(batch: int, count: int) -> Array:
    corner = floats(batch, count, 2, seed=count)
    return np.concatenate([corner, corner + np.abs(floats(batch, count, 2, seed=1)) * 2], 2)


_TOP = "(float[n,6] x, int64[1] k) => (float[a,b] v, int64[a,b] i) {v, i = TopK<%s>(x, k)}"
_BOXES = (
    "(float[b,n,4] x, float[b,2,n] s) => (int64[m,3] y) "
    "<int64[1] k = {%d}, float[1] o = {0.3}, float[1] t = {-0.5}> "
    "{y = NonMaxSuppression(x, s, k, o, t)}"
)
_PAD = "(float[1,2,h,w] x, int64[8] p) => (float[a,b,c,d] y) {y = Pad%s(x, p)}"
_PICTURES = (floats(1, 2, 5, 6), floats(1, 2, 7, 4))
_AMOUNTS = (_whole(0, 0, 1, 2, 0, 0, 3, 1), _whole(0, 0, 0, 3, 0, 0, 2, 0))

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

CASES: dict[str, tuple[str, list[dict[str, Array]]]] = {
    "best": (
        _TOP % "axis=-1",
        [{"x": floats(4, 6), "k": _whole(2)}, {"x": floats(3, 6), "k": _whole(6)}],
    ),
    "least of an open axis": (
        _TOP % "axis=0, largest=0",
        [{"x": floats(4, 6), "k": _whole(2)}, {"x": floats(7, 6), "k": _whole(7)}],
    ),
    "as many as there are, up to five": (
        "(float[n] x) => (float[m] v) <int64[1] most = {5}> "
        "{c = Shape(x) k = Min(c, most) v, i = TopK(x, k)}",
        [{"x": floats(9)}, {"x": floats(3)}],
    ),
    "boxes": (
        _BOXES % 4,
        [
            {"x": _boxes(1, 20), "s": floats(1, 2, 20)},
            {"x": _boxes(3, 7), "s": floats(3, 2, 7)},
            {"x": _boxes(1, 2), "s": floats(1, 2, 2)},
        ],
    ),
    "all boxes": (
        _BOXES % np.iinfo(np.int64).max,
        [{"x": _boxes(b, n), "s": floats(b, 2, n)} for b, n in ((1, 20), (2, 5))],
    ),
    "one hot": (
        "(int64[n] i, int64 d) => (float[n,m] y) <float[2] v = {0.0, 1.0}> {y = OneHot(i, d, v)}",
        [{"i": _whole(0, -1, 2), "d": np.array(5)}, {"i": _whole(1), "d": np.array(3)}],
    ),
    "parts of a run": (
        "(float[n,3] x, int64[2] s) => (float[a,3] y, float[b,3] z) {y, z = Split(x, s)}",
        [{"x": floats(6, 3), "s": _whole(2, 4)}, {"x": floats(4, 3), "s": _whole(3, 1)}],
    ),
    "equal parts": (
        "(float[2,n] x) => (float[2,a] y, float[2,b] z, float[2,c] w)"
        " {y, z, w = Split<axis=1, num_outputs=3>(x)}",
        [{"x": floats(2, 9)}, {"x": floats(2, 8)}],
    ),
    "backwards": (
        "(float[n,6] x) => (float[a,6] y) <int64[1] s = {-1}, int64[1] e = {-9223372036854775807},"
        " int64[1] a = {0}, int64[1] t = {-2}> {y = Slice(x, s, e, a, t)}",
        [{"x": floats(5, 6)}, {"x": floats(2, 6)}],
    ),
    "backwards between places": (
        "(float[n,6] x, int64[2] s, int64[2] e) => (float[a,b] y) <int64[2] a = {0, 1},"
        " int64[2] t = {-1, -3}> {y = Slice(x, s, e, a, t)}",
        [
            {"x": floats(5, 6), "s": _whole(3, -1), "e": _whole(0, -9)},
            {"x": floats(7, 6), "s": _whole(99, 4), "e": _whole(-3, 1)},
        ],
    ),
    "from the end up to a place": (
        "(float[n] x) => (float[m] y) <int64[1] s = {-3}, int64[1] e = {4}> {y = Slice(x, s, e)}",
        [{"x": floats(5)}, {"x": floats(2)}, {"x": floats(6)}],
    ),
    "lower triangle": (
        "(float[2,n,m] x, int64 k) => (float[2,n,m] y) {y = Trilu<upper=0>(x, k)}",
        [
            {"x": floats(2, 4, 5), "k": np.array(1)},
            {"x": floats(2, 3, 3), "k": np.array(-1)},
        ],
    ),
    "upper triangle": (
        "(bool[n,m] x) => (bool[n,m] y) {y = Trilu(x)}",
        [{"x": floats(4, 5) > 0}, {"x": floats(3, 2) > 0}],
    ),
    "diagonal": (
        "(float[n,m] x) => (int32[n,m] y) {y = EyeLike<k=1, dtype=6>(x)}",
        [{"x": floats(4, 5)}, {"x": floats(5, 2)}],
    ),
    "count of true": (
        "(bool[1,n] x) => (int64[1,n] y) <int64 a = {1}> {i = Cast<to=7>(x) y = CumSum(i, a)}",
        [{"x": floats(1, 6) > 0}, {"x": floats(1, 3) > 0}],
    ),
    "elements of a part": (
        "(float[n,m] x, int64[p,q] i) => (float[p,q] y) {y = GatherElements(x, i)}",
        [
            {"x": floats(5, 4), "i": _whole(0, 4, 2, -1, 1, 3).reshape(3, 2)},
            {"x": floats(2, 3), "i": _whole(1, 0).reshape(1, 2)},
        ],
    ),
    "elements into a part": (
        "(float[n,4] x, int64[m,q] i, float[m,q] u) => (float[n,4] y)"
        " {y = ScatterElements(x, i, u)}",
        [
            {"x": floats(5, 4), "i": _whole(4, 2, 1, -5).reshape(2, 2), "u": floats(2, 2)},
            {"x": floats(3, 4), "i": _whole(1, 0, 2).reshape(1, 3), "u": floats(1, 3)},
        ],
    ),
    "zeros around": (
        _PAD % "",
        [{"x": x, "p": p} for x, p in zip(_PICTURES, _AMOUNTS, strict=True)],
    ),
    "cuts and zeros": (
        _PAD % "",
        [{"x": _PICTURES[0], "p": _whole(0, 0, -1, 2, 0, 0, 3, -2)}],
    ),
    **{
        f"{mode} borders": (
            _PAD % f'<mode="{mode}">',
            [{"x": x, "p": p} for x, p in zip(_PICTURES, _AMOUNTS, strict=True)],
        )
        for mode in ("reflect", "edge", "wrap")
    },
    "borders of any integers": (
        '(int32[n] x) => (int32[m] y) <int64[2] p = {2, 1}> {y = Pad<mode="edge">(x, p)}',
        [{"x": np.array([2**31 - 1, -5, -(2**31)], np.int32)}],
    ),
    "filled with any integer": (
        "(int32[n,2] x) => (int32[m,2] y) <int64[4] p = {2, 0, 1, 0}, int32 v = {2147483647}>"
        " {y = Pad(x, p, v)}",
        [{"x": np.array([[2**31 - 1, -5], [0, 1]], np.int32)}],
    ),
    "filled with a number of a run": (
        "(float[n,3] x, float v) => (float[m,5] y) <int64[4] p = {1, 1, 0, 1}> {y = Pad(x, p, v)}",
        [
            {"x": floats(2, 3), "v": np.array(np.inf, np.float32)},
            {"x": floats(4, 3), "v": np.array(-2, np.float32)},
        ],
    ),
    "up to the next multiple": (
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) <int64[2] m = {4, 4}, int64[6] z = "
        '{0,0,0,0,0,0}> {s = Shape<start=2>(x) n = Neg(s) r = Mod(n, m) p = Concat<axis=0>(z, r)'
        ' y = Pad<mode="reflect">(x, p)}',
        [{"x": floats(1, 2, 5, 6)}, {"x": floats(1, 2, 8, 7)}],
    ),
    "dilated maxima": (
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) {y = MaxPool<kernel_shape=[2,3],"
        " dilations=[2,1], strides=[2,2], pads=[1,0,0,1]>(x)}",
        [{"x": floats(1, 2, 6, 8)}, {"x": floats(1, 2, 5, 7)}],
    ),
    "means rounded up": (
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) {y = AveragePool<kernel_shape=[2,2],"
        " strides=[2,2], ceil_mode=1>(x)}",
        [{"x": floats(1, 2, 5, 7)}, {"x": floats(1, 2, 6, 3)}],
    ),
    "regions": (
        "(float[1,3,h,w] x, float[r,4] r, int64[r] i) => (float[r,3,2,3] y) {y = RoiAlign<"
        "output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.5>(x, r, i)}",
        [
            {
                "x": floats(1, 3, h, w),
                "r": np.array([[0, 0, 30, 20], [-3, -3, 50, 44]], np.float32),
                "i": _whole(0, 0),
            }
            for h, w in ((16, 20), (9, 7))
        ],
    ),
    **{
        f"{mode} to a size of a run": (
            "(float[1,2,h,w] x, int64[2] s) => (float[1,2,a,b] y)"
            f" {{y = Resize<{about}>(x, , , s)}}",
            [
                {"x": _PICTURES[0], "s": _whole(9, 4)},
                {"x": _PICTURES[1], "s": _whole(3, 11)},
                {"x": _PICTURES[1], "s": _whole(1, 1)},
            ],
        )
        for mode, about in _RESIZES.items()
    },
    **{
        f"{mode} by a factor": (
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
    "open pictures to one size": (
        "(float[b,2,5,6] x) => (float[b,2,7,4] y) <int64[3] s = {2, 7, 4}> {b = Shape<end=1>(x)"
        ' z = Concat<axis=0>(b, s) y = Resize<mode="cubic">(x, , , z)}',
        [{"x": floats(1, 2, 5, 6)}, {"x": floats(3, 2, 5, 6)}],
    ),
    "nearest by a factor": (
        "(float[1,2,h,w] x) => (float[1,2,a,b] y) <float[4] s = {1.0, 1.0, 1.5, 0.4}>"
        " {y = Resize(x, , s)}",
        [{"x": x} for x in _PICTURES],
    ),
    "branches of other sizes": (
        "(bool c, float[n,3] x, float[2,3] z) => (float[m,3] y, float[2,k] w) {y, w = If(c) <"
        "then_branch = t () => (float[2,3] a, float[2,6] d) {a = Identity(z)"
        " d = Concat<axis=1>(z, z)}, else_branch = e () => (float[q,3] b, float[2,3] f)"
        " {b = Concat<axis=0>(x, z, x) f = Neg(z)}> }",
        [
            {"c": np.array(c), "x": floats(n, 3), "z": floats(2, 3)}
            for c in (True, False)
            for n in (1, 4)
        ],
    ),
    "cropped around the middle": (
        "(float[n,3] x, int64[1] s) => (float[m,3] y) <int64[1] two = {2}, int64[2] one = {1, 1},"
        " int64[1] z = {0}> {p = Pad(x, one, , z) h = Shape<end=1>(p) d = Sub(h, s) b = Div(d, two)"
        " e = Add(b, s) y = Slice(p, b, e)}",
        [{"x": floats(9, 3), "s": _whole(4)}, {"x": floats(5, 3), "s": _whole(5)}],
    ),
    "determinants": (
        "(float[b,3,3] x) => (float[b] y) {y = Det(x)}",
        [{"x": floats(2, 3, 3)}, {"x": floats(5, 3, 3)}],
    ),
    "distinct elements": (
        "(int64[n,m] x) => (int64[a] y, int64[a] i, int64[b] j, int64[a] k)"
        " {y, i, j, k = Unique(x)}",
        [{"x": _whole(3, 1, 3, 2, 1, 7).reshape(2, 3)}, {"x": _whole(5, 5).reshape(1, 2)}],
    ),
    "distinct elements and rows in their order": (
        "(int64[n,m] x) => (int64[a] y, int64[b] j, int64[c,m] z, int64[c] k)"
        " {y, i, j = Unique<sorted=0>(x) z, f, r, k = Unique<axis=0>(x)}",
        [{"x": _whole(3, 1, 0, 4, 3, 1, 3, 0).reshape(4, 2)}, {"x": _whole(5, 5).reshape(1, 2)}],
    ),
    "rows of open sizes from every turn": (
        "(float[n] s, float[t,n] x) => (float[n] y, float[t,n] z) {y, z = Scan<num_scan_inputs=1,"
        " body = b (float[n] a, float[n] r) => (float[n] c, float[n] o) {c = Add(a, r)"
        " o = Mul(c, r)}>(s, x)}",
        [{"s": floats(3), "x": floats(4, 3)}, {"s": floats(2), "x": floats(1, 2)}],
    ),
    **{
        f"six axes: {what}": (
            "(float[b,h,w,4] x, float[4,4] m) => (float[b,p,16] y) <int64[6] s = {0,-1,2,2,2,4},"
            " int64[3] t = {0,-1,16}, float[4] g = {1,2,3,4}, float[2,1,4] v = {1,2,3,4,5,6,7,8}>"
            f" {{r = Reshape(x, s) {call} y = Reshape(o, t)}}",
            [{"x": floats(b, h, 4, 4), "m": floats(4, 4)} for b, h in ((2, 4), (1, 2))],
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
    "windows": (
        "(float[b,h,w,3] x) => (float[m,4,3] y) <int64[1] two = {2}, int64[1] three = {3},"
        " int64[3] t = {-1, 4, 3}> {b = Shape<end=1>(x) s = Shape<start=1, end=3>(x)"
        " n = Div(s, two) h, w = Split<num_outputs=2>(n)"
        " q = Concat<axis=0>(b, h, two, w, two, three) r = Reshape(x, q)"
        " p = Transpose<perm=[0,1,3,2,4,5]>(r) y = Reshape(p, t)}",
        [{"x": floats(1, 4, 6, 3)}, {"x": floats(2, 2, 8, 3)}],
    ),
    "blocks of pixels": (
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
    "one of six axes": (
        "(float[n,12] x) => (float[n,a,b,c,d] y) <int64[6] s = {-1, 1, 3, 2, 2, 1}, int64 i = {1}>"
        " {r = Reshape(x, s) y = Gather<axis=3>(r, i)}",
        [{"x": floats(4, 12)}, {"x": floats(1, 12)}],
    ),
    "parts of six axes": (
        "(float[n,12] x) => (float[n,6] y, float[n,6] z) <int64[6] s = {-1, 1, 3, 2, 2, 1},"
        " int64[2] t = {-1, 6}> {r = Reshape(x, s) a, b = Split<axis=3, num_outputs=2>(r)"
        " c = Concat<axis=3>(b, a) e, f = Split<axis=3, num_outputs=2>(c)"
        " y = Reshape(e, t) z = Reshape(f, t)}",
        [{"x": floats(4, 12)}, {"x": floats(1, 12)}],
    ),
}  # fmt: skip


def _is_more_of_the_same(case: str) -> bool:
    """Say whether a resizing takes the way of the usual one, but for its positions."""
    usual = ("cubic half_pixel ", "linear half_pixel ", "linear align_corners ")
    return case.startswith(("cubic ", "linear ")) and not case.startswith(usual)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.sweep] * _is_more_of_the_same(c)) for c in CASES]
)
def test_sizes_that_only_a_run_knows(case: str) -> None:
    text, feeds = CASES[case]
    check(f"{OLDER} g {text}", *feeds, rtol=1e-5)


def test_what_lies_halfway_is_refused_where_only_a_run_knows_the_ratio() -> None:
    text = "g (float[1,2,h,w] x, int64[2] s) => (y) {y = Resize<axes=[2,3]>(x, , , s)}"
    (problem,) = refusal(text)
    assert "engines disagree on what lies halfway" in problem.detail
    assert "--input-shape" in problem.hint
