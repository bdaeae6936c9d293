"""What detectors end in, on every format: boxes, regions, and sizes that the data decides."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each

HEAD = '<ir_version: 10, opset_import: ["": 21]> g '
_RNG = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def _boxes(count: int) -> Array:
    corner = _RNG.random((1, count, 2)) * 3
    return np.concatenate([corner, corner + _RNG.random((1, count, 2))], 2).astype(np.float32)


_ROIS = np.array(
    [
        [0, 0, 30, 20],
        [5, 5, 8, 9],
        [-3, -3, 50, 44],
        [2, 2, 38, 31],
        [9, 9, 9, 9],
        [60, 60, 70, 90],
    ],
    np.float32,
)


def _regions(options: str) -> str:
    return (
        "(float[2,3,16,20] x, float[6,4] r, int64[6] i) => (float[6,3,4,5] y) { y = RoiAlign<"
        f"output_height=4, output_width=5, spatial_scale=0.5, {options}>(x, r, i) }}"
    )


_PICTURES = {
    "x": _floats(2, 3, 16, 20),
    "r": _ROIS,
    "i": np.array([0, 1, 0, 1, 1, 0]),
}
_SUPPRESSED = (
    "(float[1,40,4] b, float[1,3,40] s, int64[1] k, float[1] o, float[1] t) => (int64[m,3] y)"
    " { y = NonMaxSuppression(b, s, k, o, t) }"
)
_NUMBERS = {
    "b": _boxes(40),
    "s": _RNG.random((1, 3, 40)).astype(np.float32),
    "o": np.array([0.4], np.float32),
    "t": np.array([0.3], np.float32),
}
_LOOP = (
    "(int64 n, float[3] x) => (float[3] y) <bool t = {1}> { y = Loop(n, t, x) <body = b (int64 i,"
    " bool c, float[3] v) => (bool d, float[3] w) <float k = {0.5}> { d = Identity(c)"
    " f = Cast<to=1>(i) a = Add(v, f) w = Mul(a, k) }> }"
)

CASES: dict[str, tuple[str, dict[str, Array]]] = {
    "adaptive": (_regions("sampling_ratio=0"), _PICTURES),
    "adaptive, whole pixels": (
        _regions('sampling_ratio=0, coordinate_transformation_mode="output_half_pixel"'),
        _PICTURES,
    ),
    "largest": (_regions('sampling_ratio=2, mode="max"'), _PICTURES),
    "limit of a run": (_SUPPRESSED, {**_NUMBERS, "k": np.array([3])}),
    "limit beyond all": (_SUPPRESSED, {**_NUMBERS, "k": np.array([np.iinfo(np.int32).max])}),
    "places": (
        "(float[3,4] x) => (int64[2,m] y) { y = NonZero(x) }",
        {"x": (_floats(3, 4) > 0).astype(np.float32)},
    ),
    "chosen rows": (
        "(float[3,4] x, bool[3] c) => (float[m,4] y) { y = Compress<axis=0>(x, c) }",
        {"x": _floats(3, 4), "c": np.array([True, False, True])},
    ),
    "distinct rows": (
        "(float[4,3] x) => (float[m,3] y) { y = Unique<axis=0>(x) }",
        {"x": np.array([[1, 2, 3], [0, 2, 3], [1, 2, 3], [0, 1, 9]], np.float32)},
    ),
    "in their order": (
        "(int64[6] x) => (int64[m] y, int64[m] i, int64[6] j, int64[m] k)"
        " { y, i, j, k = Unique<sorted=0>(x) }",
        {"x": np.array([3, 1, 3, 2, 1, 7])},
    ),
    "counted turns": (_LOOP, {"n": np.array(4), "x": _floats(3)}),
    "unpooled": (
        "(float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y)"
        " { y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }",
        {"x": _floats(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])},
    ),
}


@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
def test_what_one_format_takes_all_of_them_take(place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    models = {
        case: (onnx.parser.parse_model(HEAD + text), feeds) for case, (text, feeds) in CASES.items()
    }
    for case, found in run_each(place, models).items():
        model, feeds = models[case]
        assert not found.refused
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for output, wanted in zip(model.graph.output, session.run(None, feeds), strict=True):
            got = found.outputs[output.name]
            assert got.shape == wanted.shape, case
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=case)
