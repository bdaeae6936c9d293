"""Resize against ONNX Runtime: every mode and coordinate, at fixed and open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
PLACES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]


def some(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(sizes: str, given: str, call: str, **attributes: str) -> str:
    said = ", ".join(f'{k}="{v}"' for k, v in attributes.items())
    rank = len(sizes.split(","))
    out = ",".join("abcde"[:rank])
    return f"g (float[{sizes}] x) => (float[{out}] y) <{given}> {{ y = Resize<{said}>({call}) }}"


@pytest.mark.parametrize("factors", ["2, 3", "0.5, 0.5", "1.7, 2.3"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_by_scales(mode: str, place: str, factors: str) -> None:
    if place == "align_corners" and factors == "1.7, 2.3":
        pytest.skip("engines disagree; refused")
    given = f"float[4] s = {{1, 1, {factors}}}"
    how = {"mode": mode, "coordinate_transformation_mode": place}
    check(graph("1,3,8,6", given, "x, , s", **how), {"x": some(1, 3, 8, 6)})


@rows("place", PLACES)
@rows("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_to_sizes(rounding: str, place: str) -> None:
    how = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
    text = graph("1,2,5,6", "int64[4] z = {1, 2, 9, 4}", "x, , , z", **how)
    check(text, {"x": some(1, 2, 5, 6)})


@rows("mode", ["nearest", "linear"])
@rows("place", PLACES)
@rows("given", ["float[4] s = {1, 1, 2, 2}", "int64[4] z = {1, 2, 9, 4}"])
def test_open_sizes(given: str, place: str, mode: str) -> None:
    call = "x, , s" if given.startswith("float") else "x, , , z"
    how = {"mode": mode, "coordinate_transformation_mode": place}
    if not given.startswith("float"):
        how["nearest_mode"] = "floor"
    text = graph("1,2,n,m", given, call, **how)
    check(text, {"x": some(1, 2, 5, 7)}, {"x": some(1, 2, 3, 4)})


@rows("mode", ["nearest", "linear"])
def test_to_sizes_known_at_run_time(mode: str) -> None:
    text = (
        "g (float[1,2,n,m] x, int64[4] z) => (float[1,2,a,b] y) "
        f'{{ y = Resize<mode="{mode}", nearest_mode="floor">(x, , , z) }}'
    )
    feeds = [
        {"x": some(1, 2, *size), "z": np.array([1, 2, *out])}
        for size, out in (((5, 7), (10, 3)), ((4, 4), (4, 9)), ((3, 2), (1, 1)))
    ]
    check(text, *feeds)


@rows("policy", ["stretch", "not_larger"])
@rows("mode", ["linear", "cubic"])
def test_to_sizes_of_a_run_by_places_and_weights(mode: str, policy: str) -> None:
    text = (
        "g (float[1,2,n,m] x, int64[2] z) => (float[1,2,a,b] y) "
        f'{{ y = Resize<axes=[2,3], mode="{mode}", keep_aspect_ratio_policy="{policy}">'
        "(x, , , z) }"
    )
    check(
        text,
        {"x": some(1, 2, 5, 7), "z": np.array([10, 3])},
        {"x": some(1, 2, 3, 4), "z": np.array([1, 9])},
    )


def test_by_a_factor_of_a_run() -> None:
    text = (
        "g (float[1,2,n,m] x, float[4] s) => (float[1,2,a,b] y) "
        '{ y = Resize<mode="linear">(x, , s) }'
    )
    check(text, {"x": some(1, 2, 5, 7), "s": np.array([1, 1, 1.5, 0.5], np.float32)})


def test_ties_that_only_a_run_knows_are_refused() -> None:
    text = graph("1,2,n,m", "int64[4] z = {1, 2, 9, 4}", "x, , , z", mode="nearest")
    with pytest.raises(UnsupportedError, match="round_prefer_floor"):
        lower(text)


@rows(("sizes", "factors"), [("2,3,6", "1, 1, 1.5"), ("1,2,3,4,5", "1,1,2,2,2")])
@rows("mode", ["nearest", "linear"])
def test_lines_and_volumes(mode: str, sizes: str, factors: str) -> None:
    shape = [int(s) for s in sizes.split(",")]
    given = f"float[{len(shape)}] s = {{{factors}}}"
    check(graph(sizes, given, "x, , s", mode=mode), {"x": some(*shape)})


@rows("mode", ["linear", "cubic"])
def test_antialias(mode: str) -> None:
    text = graph("1,1,9,8", "float[4] s = {1, 1, 0.4, 0.6}", "x, , s", mode=mode)
    text = text.replace("Resize<", "Resize<antialias=1, ")
    check(text, {"x": some(1, 1, 9, 8)})


def test_kernels_are_used_where_they_agree() -> None:
    given = "float[4] s = {1, 1, 2, 2}"
    x = {"x": some(1, 3, 4, 4)}
    near = ops(check(graph("1,3,4,4", given, "x, , s", mode="nearest"), x))
    even = ops(check(graph("1,3,4,4", given, "x, , s", mode="linear"), x))
    assert "RESIZE_NEAREST_NEIGHBOR" in near
    assert "GATHER" not in near
    assert "RESIZE_BILINEAR" in even
    assert "GATHER" not in even


def test_what_engines_disagree_on_is_refused() -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    with pytest.raises(UnsupportedError, match="engines disagree"):
        lower(graph("1,1,2,4", "float[4] s = {1, 1, 0.6, 0.6}", "x, , s", **how))
    how = {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "asymmetric"}
    with pytest.raises(UnsupportedError, match="equally near"):
        lower(graph("1,1,1,7", "int64[4] z = {1, 1, 1, 4}", "x, , , z", **how))
