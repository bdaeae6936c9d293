"""The largest, the distinct and the best elements, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.run import check
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
KINDS = {"float": np.float32, "int64": np.int64, "int32": np.int32, "int8": np.int8}


@rows("kind", KINDS)
@rows("largest", [0, 1])
@rows("axis", [0, -1])
def test_top_k(kind: str, axis: int, largest: int) -> None:
    text = (
        f"g ({kind}[n,5] x, int64[1] k) => ({kind}[a,b] y, int64[a,b] i) "
        f"{{ y, i = TopK<axis={axis}, largest={largest}>(x, k) }}"
    )
    x = RNG.integers(-5, 5, (4, 5)).astype(KINDS[kind])
    check(text, {"x": x, "k": np.array([3])}, {"x": x, "k": np.array([1])})


@rows("center", [0, 1])
@rows("most", [0, 3, 100])
@rows("sizes", ["2,20,4", "2,n,4"])
def test_non_max_suppression(sizes: str, most: int, center: int) -> None:
    n = sizes.split(",")[1]
    text = (
        f"g (float[{sizes}] b, float[2,3,{n}] s) => (int64[k,3] y) <int64 m = {{{most}}}, "
        "float iou = {0.5}, float low = {0.3}> "
        f"{{ y = NonMaxSuppression<center_point_box={center}>(b, s, m, iou, low) }}"
    )
    boxes: Any = RNG.random((2, 20, 4)).astype(np.float32)
    # Many ties: the lower index comes first.
    scores = (RNG.integers(0, 6, (2, 3, 20)) / 5).astype(np.float32)
    check(text, {"b": boxes, "s": scores})


@rows("thresholds", ["float[1] iou, float[1] low", "float iou, float low"])
def test_non_max_suppression_with_thresholds_of_a_run(thresholds: str) -> None:
    text = (
        f"g (float[1,20,4] b, float[1,2,20] s, {thresholds}) => (int64[k,3] y) <int64 m = {{7}}> "
        "{ y = NonMaxSuppression(b, s, m, iou, low) }"
    )
    boxes = RNG.random((1, 20, 4)).astype(np.float32)
    scores = RNG.random((1, 2, 20)).astype(np.float32)
    shape = (1,) if "[1]" in thresholds else ()
    runs = [(0.5, 0.3), (0.0, 0.0), (0.1, 0.6), (1.0, -1.0)]
    check(
        text,
        *(
            {
                "b": boxes,
                "s": scores,
                "iou": np.full(shape, iou, np.float32),
                "low": np.full(shape, low, np.float32),
            }
            for iou, low in runs
        ),
    )


@rows("is_sorted", [0, 1])
@rows("axis", [0, 1, -1])
@rows("dtype", ["float", "int64"])
def test_unique_slices(dtype: str, axis: int, is_sorted: int) -> None:
    kind = np.float32 if dtype == "float" else np.int64
    x = np.random.default_rng(0).integers(0, 2, (5, 4, 2)).astype(kind)
    sizes = "5,4,2" if dtype == "float" else "a,b,c"
    text = f"""g ({dtype}[{sizes}] x) => ({dtype} y, int64 f, int64 i, int64 c) {{
        y, f, i, c = Unique<axis={axis}, sorted={is_sorted}>(x) }}"""
    want = None
    if not is_sorted:
        y, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        order = np.argsort(first)
        place = np.argsort(order)
        want = {
            "y": np.take(y, order, axis),
            "f": first[order],
            "i": place[inverse.ravel()],
            "c": counts[order],
        }
    check(text, {"x": x}, want=want)
