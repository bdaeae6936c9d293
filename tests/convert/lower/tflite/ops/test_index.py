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


@rows("sizes", ["3,4", "n,m"])
@rows("axis", [0, 1])
def test_gather_elements(axis: int, sizes: str) -> None:
    text = (
        f"g (float[{sizes}] x, int64[2,2] i) => (float[2,2] y) "
        f"{{ y = GatherElements<axis={axis}>(x, i) }}"
    )
    check(text, {"x": some(3, 4), "i": np.array([[0, -1], [2, 1]])})


@rows("sizes", ["2,3,4", "n,m,k"])
@rows("batch", [0, 1])
def test_gather_nd(batch: int, sizes: str) -> None:
    text = (
        f"g (float[{sizes}] x, int64[2,2] i) => (float[a{',b' * (not batch)}] y) "
        f"{{ y = GatherND<batch_dims={batch}>(x, i) }}"
    )
    check(text, {"x": some(2, 3, 4), "i": np.array([[0, -1], [1, 2]])})


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


@rows("how", ["add", "mul", "max", "min"])
@rows("constant", [False, True])
def test_scatter_twice_to_one_place(how: str, constant: bool) -> None:
    given = "<int64[5] i = {1, 1, 0, 1, 0}>" if constant else ""
    more = "" if constant else ", int64[5] i"
    text = (
        f"g (float[3] x, float[5] u{more}) => (float[3] y) {given} "
        f'{{ y = ScatterElements<reduction="{how}">(x, i, u) }}'
    )
    feeds = {"x": some(3), "u": some(5)}
    check(text, feeds if constant else {**feeds, "i": np.array([1, 1, 0, 1, 0])})


def test_scatter_at_open_sizes() -> None:
    text = (
        "g (float[n,m] x, int64[k,1] i, float[k,m] u) => (float[n,m] y) { y = ScatterND(x, i, u) }"
    )
    x = some(4, 3)
    x[0, 0] = np.nan
    check(text, {"x": x, "i": np.array([[2], [0]]), "u": some(2, 3)})


@rows("axis", [0, 1, -1])
@rows("depth", ["constant", "run time"])
def test_one_hot(axis: int, depth: str) -> None:
    head = "g (int64[n] i, float[2] v" + (", int64 d" if depth != "constant" else "")
    given = "<int64 d = {4}>" if depth == "constant" else ""
    text = f"{head}) => (float[a,b] y) {given} {{ y = OneHot<axis={axis}>(i, d, v) }}"
    feeds = {"i": np.array([0, 3, -1, 9, -4, -9]), "v": np.array([0.5, 2], np.float32)}
    check(text, feeds if depth == "constant" else {**feeds, "d": np.array(4)})


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
