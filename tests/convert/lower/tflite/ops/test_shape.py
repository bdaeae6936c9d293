"""Shapes, against ONNX Runtime, at fixed and open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
KINDS = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
ODD_KINDS = {"int8": np.int8, "uint8": np.uint8, "int16": np.int16, "uint32": np.uint32}


def some(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.integers(0, 2 if dtype is np.bool_ else 90, shape).astype(dtype)


def test_squeeze_and_unsqueeze_of_open_sizes() -> None:
    text = (
        "g (float[n,1,m,1] x) => (float[n,m] y, float[1,n,1,m,1,1] z) <int64[2] a = {1, -1}, "
        "int64[2] b = {0, -1}> { y = Squeeze(x, a) z = Unsqueeze(x, b) }"
    )
    check(text, {"x": some(2, 1, 3, 1)}, {"x": some(4, 1, 5, 1)})


@rows("perm", [[2, 0, 1], [0, 2, 1], None])
@rows("kind", [*KINDS, *ODD_KINDS])
def test_transpose(kind: str, perm: list[int] | None) -> None:
    dtype = (KINDS | ODD_KINDS)[kind]
    order = "" if perm is None else f"<perm={perm}>"
    text = f"g ({kind}[n,3,4] x) => ({kind}[a,b,c] y) {{ y = Transpose{order}(x) }}"
    check(text, {"x": some(2, 3, 4, dtype=dtype)}, {"x": some(5, 3, 4, dtype=dtype)})


def test_transpose_of_eight_axes() -> None:
    perm = [7, 0, 5, 2, 3, 1, 6, 4]
    text = (
        "g (float[2,1,3,2,1,2,2,3] x) => (float[a,b,c,d,e,f,g,h] y) "
        f"{{ y = Transpose<perm={perm}>(x) }}"
    )
    check(text, {"x": some(2, 1, 3, 2, 1, 2, 2, 3)})


@rows("kind", [*KINDS, *ODD_KINDS])
def test_concat(kind: str) -> None:
    dtype = (KINDS | ODD_KINDS)[kind]
    text = f"g ({kind}[n,3] x, {kind}[n,m] y) => ({kind}[n,k] z) {{ z = Concat<axis=-1>(x, y, x) }}"
    check(text, {"x": some(2, 3, dtype=dtype), "y": some(2, 4, dtype=dtype)})


def test_concat_and_split_beyond_the_rank_of_the_delegate() -> None:
    text = (
        "g (float[2,1,3,2,1,2,4] x) => (float[2,1,6,2,1,2,4] y, float[2,1,3,2,1,2,1] p, "
        "float[2,1,3,2,1,2,3] q) <int64[2] s = {1, 3}> "
        "{ y = Concat<axis=2>(x, x) p, q = Split<axis=6>(x, s) }"
    )
    check(text, {"x": some(2, 1, 3, 2, 1, 2, 4)})


@rows("kind", [*KINDS, *ODD_KINDS])
def test_split(kind: str) -> None:
    dtype = (KINDS | ODD_KINDS)[kind]
    text = (
        f"g ({kind}[n,7] x) => ({kind}[n,3] a, {kind}[n,3] b, {kind}[n,1] c, {kind}[n,2] d, "
        f"{kind}[n,5] e) <int64[2] s = {{2, 5}}> "
        "{ a, b, c = Split<axis=1, num_outputs=3>(x) d, e = Split<axis=-1>(x, s) }"
    )
    check(text, {"x": some(2, 7, dtype=dtype)}, {"x": some(4, 7, dtype=dtype)})


def test_equal_parts_are_one_operator() -> None:
    text = (
        "g (float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split<axis=1,num_outputs=2>(x) }"
    )
    assert ops(check(text, {"x": some(2, 6)})) == ["SPLIT"]


@rows("kind", [*KINDS, *ODD_KINDS])
def test_expand_and_tile(kind: str) -> None:
    dtype = (KINDS | ODD_KINDS)[kind]
    text = (
        f"g ({kind}[n,1,3] x) => ({kind}[2,n,4,3] y, {kind}[n,2,9] z) <int64[4] s = {{2,1,4,1}}, "
        "int64[3] r = {1,2,3}> { y = Expand(x, s) z = Tile(x, r) }"
    )
    check(text, {"x": some(2, 1, 3, dtype=dtype)}, {"x": some(3, 1, 3, dtype=dtype)})


def test_shape_and_size_of_open_sizes() -> None:
    text = (
        "g (float[n,3,m] x) => (int64[3] a, int64[2] b, int64[1] c, int64 d) "
        "{ a = Shape(x) b = Shape<start=-2>(x) c = Shape<start=0, end=1>(x) d = Size(x) }"
    )
    check(text, {"x": some(2, 3, 4)}, {"x": some(5, 3, 1)})


@rows("mode", ["DCR", "CRD"])
@rows("kind", ["float", "int64", "int8", "bool"])
def test_depth_and_space(kind: str, mode: str) -> None:
    dtype = (KINDS | ODD_KINDS)[kind]
    text = (
        f"g ({kind}[1,8,2,3] x) => ({kind}[1,2,4,6] y, {kind}[1,32,1,1] z) "
        "<int64[1] one = {0}, int64[1] two = {2}, int64[1] three = {3}> "
        f'{{ y = DepthToSpace<blocksize=2, mode="{mode}">(x) s = Slice(x, one, two, three) '
        "z = SpaceToDepth<blocksize=2>(s) }"
    )
    x = some(1, 8, 2, 3, dtype=dtype)
    want = _depth_to_space(x, mode), _space_to_depth(x[..., :2])
    check(text, {"x": x}, want=dict(zip("yz", want, strict=True)))


def _depth_to_space(x: Any, mode: str) -> Any:
    n, c, h, w = x.shape
    if mode == "DCR":
        return (
            x.reshape(n, 2, 2, c // 4, h, w)
            .transpose(0, 3, 4, 1, 5, 2)
            .reshape(n, c // 4, 2 * h, 2 * w)
        )
    return (
        x.reshape(n, c // 4, 2, 2, h, w)
        .transpose(0, 1, 4, 2, 5, 3)
        .reshape(n, c // 4, 2 * h, 2 * w)
    )


def _space_to_depth(x: Any) -> Any:
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4)
    return y.reshape(n, 4 * c, h // 2, w // 2)


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="rank of the result"):
        lower("g (float[2,3] x, int64[n] s) => (float y) { y = Reshape(x, s) }")
    with pytest.raises(UnsupportedError, match="random"):
        lower(
            "g (float[2] x) => (float[2] y) <float r = {0.5}, bool t = {1}> "
            "{ y = Dropout(x, r, t) }"
        )


def test_axes_of_size_one_are_added_without_asking_for_open_sizes() -> None:
    text = """g (float[n,t,3] x) => (float[a,b,c,d] y)
        <int64[4] s = {0, 0, 1, 3}> { h = Reshape(x, s) y = Relu(h) }"""
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    data = check(text, {"x": x}, {"x": x[:1, :3]})
    assert ops(data) == ["EXPAND_DIMS", "RELU"]
