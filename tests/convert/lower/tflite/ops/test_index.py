"""Gathers and scatters, against ONNX Runtime, with constant and run-time indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
KINDS = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


def some(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.integers(0, 2 if dtype is np.bool_ else 90, shape).astype(dtype)


@rows("kind", KINDS)
@rows("axis", [0, 1, -1])
def test_gather(kind: str, axis: int) -> None:
    text = (
        f"g ({kind}[n,3,m] x, int64[p,2] i) => ({kind}[a,b,c,d] y, {kind}[e,f,g] z) "
        "<int64[3] c = {0, -1, 1}> "
        f"{{ y = Gather<axis={axis}>(x, i) z = Gather<axis={axis}>(x, c) }}"
    )
    x = some(3, 3, 3, dtype=KINDS[kind])
    check(text, {"x": x, "i": np.array([[0, -1], [2, -3]])})


def test_gather_of_neighbours_is_a_slice() -> None:
    text = (
        "g (float[2,5,3] x) => (float[2,3] y, float[2,2,3] z) <int64 i = {-5}, int64[2] j = {3,4}> "
        "{ y = Gather<axis=1>(x, i) z = Gather<axis=1>(x, j) }"
    )
    assert "GATHER" not in ops(check(text, {"x": some(2, 5, 3)}))


@rows("kind", ["float", "int64", "int32"])
@rows("how", ["none", "add", "mul", "max", "min"])
@rows("constant", [False, True])
def test_scatter(kind: str, how: str, constant: bool) -> None:
    head = f"g ({kind}[3,4] x, {kind}[2,4] u, {kind}[2,4] v"
    result = f"({kind}[3,4] y, {kind}[3,4] z)"
    body = (
        f'{{ y = ScatterElements<axis=0, reduction="{how}">(x, i, u) '
        f'z = ScatterND<reduction="{how}">(x, j, v) }}'
    )
    i, j = np.array([[0, 1, 2, 0], [1, -1, 0, 2]]), np.array([[2], [0]])
    dtype = KINDS[kind]
    feeds = {k: some(*s, dtype=dtype) for k, s in (("x", (3, 4)), ("u", (2, 4)), ("v", (2, 4)))}
    if constant:
        flat = ",".join(map(str, i.ravel()))
        given = f"<int64[2,4] i = {{{flat}}}, int64[2,1] j = {{2, 0}}>"
        check(f"{head}) => {result} {given} {body}", feeds)
    else:
        check(f"{head}, int64[2,4] i, int64[2,1] j) => {result} {body}", {**feeds, "i": i, "j": j})


def test_what_a_condition_picks() -> None:
    text = (
        "g (float[3,n] x, bool[2] c) => (float[a,n] y, float[b] z, int64[2,k] w) "
        "{ y = Compress<axis=0>(x, c) z = Compress(x, c) w = NonZero(x) }"
    )
    x = np.array([[0, 1], [2, 0], [3, 0]], np.float32)
    check(text, {"x": x, "c": np.array([False, True])}, {"x": 0 * x, "c": np.array([False, False])})


def test_large_masks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="indices known at run time"):
        lower(
            "g (float[4096] x, int64[4096] i, float[4096] u) => (float[4096] y) "
            '{ y = ScatterElements<reduction="max">(x, i, u) }'
        )
