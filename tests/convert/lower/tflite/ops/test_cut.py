"""Slices and pads, against ONNX Runtime and NumPy, at fixed, open and run-time sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.run import check
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
LOW, HIGH = -(2**63), 2**63 - 1
KINDS = {"float": np.float32, "int64": np.int64, "bool": np.bool_, "int8": np.int8}


def some(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.integers(0, 2 if dtype is np.bool_ else 90, shape).astype(dtype)


def ints(values: Any) -> str:
    return "{" + ",".join(map(str, values)) + "}"


@rows("kind", KINDS)
def test_slice_between_places_known_at_run_time(kind: str) -> None:
    text = (
        f"g ({kind}[n,4,m] x, int64[2] s, int64[2] e) => ({kind}[n,b,c] y) "
        "<int64[2] a = {2, 1}, int64[2] t = {-1, 1}> { y = Slice(x, s, e, a, t) }"
    )
    feeds = [
        {"x": some(2, 4, 5, dtype=KINDS[kind]), "s": np.array(s), "e": np.array(e)}
        for s, e in (([4, 0], [1, 2]), ([HIGH, 1], [LOW, HIGH]), ([-1, -2], [-4, -1]))
    ]
    check(text, *feeds)


@rows("kind", KINDS)
@rows("pads", [[1, 0, 2, 3], [-1, 2, 0, -1], [0, -2, 1, 1]])
def test_pad_with_a_constant(kind: str, pads: list[int]) -> None:
    value = "1" if kind != "float" else "1.5"
    text = (
        f"g ({kind}[n,4] x) => ({kind}[a,b] y, {kind}[c,d] z) <int64[4] p = {ints(pads)}, "
        f"{kind} v = {{{value}}}> {{ y = Pad(x, p) z = Pad(x, p, v) }}"
    )
    x = some(3, 4, dtype=KINDS[kind])
    begin, end = pads[:2], pads[2:]
    cut = x[max(-begin[0], 0) : 3 + min(end[0], 0), max(-begin[1], 0) : 4 + min(end[1], 0)]
    around = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    fill = x.dtype.type(float(value))
    want = {"y": np.pad(cut, around), "z": np.pad(cut, around, constant_values=fill)}
    check(text, {"x": x}, want=want)


def test_pad_of_six_axes() -> None:
    text = (
        "g (float[1,2,1,2,1,2] x) => (float[a,b,c,d,e,f] y) "
        "<int64[12] p = {0,1,0,0,0,1,0,0,0,2,0,0}, float v = {2.5}> { y = Pad(x, p, v) }"
    )
    check(text, {"x": some(1, 2, 1, 2, 1, 2)})


def test_reverse_sequence() -> None:
    for kind, dtype in KINDS.items():
        text = (
            f"g ({kind}[4,3] x, int64[3] l) => ({kind}[4,3] y) "
            "{ y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }"
        )
        x, want = some(4, 3, dtype=dtype), None
        lengths = np.array([4, 1, 2])
        want = x.copy()
        for i, n in enumerate(lengths):
            want[:n, i] = x[:n, i][::-1]
        check(text, {"x": x, "l": lengths}, want={"y": want})
