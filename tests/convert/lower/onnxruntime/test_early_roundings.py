"""Roundings to bytes before values are moved: the same bits, and bytes in between."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer.convert.lower.onnxruntime.early_roundings import round_early
from edgeinfer.convert.lower.onnxruntime.quirks import FASTER
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, model, ops, run

JOINED = """g (float[1,4] x, float[1,3] v) => (float[1,7] y)
<float s = {0.05}, uint8 z = {128}> {
    c = Concat<axis=1>(x, v)
    q = QuantizeLinear(c, s, z)
    y = DequantizeLinear(q, s, z)
}"""


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ((), False),
        # Signed, the floats themselves are requested, and a scale that is not known.
        (("uint8 z = {128}", "int8 z = {3}"), True),
        (("(float[1,7] y)", "(float[1,7] y, float[1,7] c)"), True),
        (("float[1,3] v)", "float[1,3] v, float s)", "float s = {0.05}, ", ""), True),
    ],
)
def test_what_is_joined_to_be_made_integers_is_made_integers_first(
    changes: tuple[str, ...], kept: bool
) -> None:
    text = JOINED
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        text = text.replace(old, new)
    before, after = model(text), model(text)
    round_early(after, Remarks())
    RemoveUnusedNodesPass()(after)
    first = ["Concat", "QuantizeLinear"] if kept else ["QuantizeLinear", "QuantizeLinear", "Concat"]
    assert ops(after) == [*first, "DequantizeLinear"]
    check(after)
    feeds = {"x": [[-9.0, 0.024, 0.026, np.inf]], "v": [[0.1, -0.03, 5.0]], "s": 0.05}
    names = [v.name or "" for v in before.graph.inputs]
    named = {name: np.asarray(feeds[name], np.float32) for name in names}
    for got, want in zip(run(after, named), run(before, named), strict=True):
        np.testing.assert_array_equal(got, want)


POOLED = """g (float[1,2,6,6] x) => (float[1,2,6,6] y, float[1,2,6,6] u)
<float s = {0.05}, uint8 z = {128}> {
    a = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x)
    b = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(a)
    p = QuantizeLinear(a, s, z)
    q = QuantizeLinear(b, s, z)
    y = DequantizeLinear(p, s, z)
    u = DequantizeLinear(q, s, z)
}"""

GROWN = """g (float[1,2,6,6] x) => (float[1,2,12,12] y)
<float s = {0.05}, uint8 z = {128}, float[4] k = {1, 1, 2, 2}> {
    a = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(x, , k)
    q = QuantizeLinear(a, s, z)
    y = DequantizeLinear(q, s, z)
}"""


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (POOLED, (), ["QuantizeLinear", "MaxPool", "MaxPool"]),
        # Two scales, and floats that are wanted themselves.
        (
            POOLED,
            (
                "QuantizeLinear(b, s, z)",
                "QuantizeLinear(b, t, z)",
                "float s",
                "float t = {1}, float s",
            ),
            ["MaxPool", "MaxPool", "QuantizeLinear", "QuantizeLinear"],
        ),
        (
            POOLED,
            ("6] u)", "6] u, float[1,2,6,6] a)"),
            ["MaxPool", "QuantizeLinear", "MaxPool"],
        ),
        (GROWN, (), ["QuantizeLinear", "Resize"]),
        (GROWN, ("nearest", "linear"), ["Resize", "QuantizeLinear"]),
    ],
)
def test_what_is_chosen_among_values_is_chosen_among_integers(
    text: str, changes: tuple[str, ...], expected: list[str]
) -> None:
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        text = text.replace(old, new)
    before, after = model(text), model(text)
    round_early(after, Remarks())
    RemoveUnusedNodesPass()(after)
    made = [op for op in ops(after) if op != "DequantizeLinear"]
    assert sorted(made) == sorted(expected)
    check(after)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32) * 3}
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


SPLIT = """g (uint8[1,4,3] x) => (float[1,2,3] y, float[1,2,3] u, float[1,4,3] v)
<float r = {0.06}, float s = {0.03}, float t = {0.02}, uint8 z = {20}, int64[2] n = {2, 2}> {
    f = DequantizeLinear(x, r, z)
    a = Swish<alpha = 1.0>(f)
    b, c = Split<axis = 1>(a, n)
    p = QuantizeLinear(b, s, z)
    q = QuantizeLinear(c, t, z)
    o = QuantizeLinear(c, s, z)
    j = Concat<axis = 1>(p, o)
    y = DequantizeLinear(p, s, z)
    u = DequantizeLinear(q, t, z)
    v = DequantizeLinear(j, s, z)
}"""


def test_an_activation_that_is_split_is_made_of_integers_for_each_scale() -> None:
    before, after = model(SPLIT), model(SPLIT)
    round_early(after, Remarks())
    apply(after, FASTER, Remarks())
    RemoveUnusedNodesPass()(after)
    made = ops(after)
    assert (made.count("Sigmoid"), made.count("Mul"), made.count("Split")) == (1, 2, 2)
    check(after)
    # For the engine: a table of the sigmoid, and a product of bytes for each scale.
    feeds = {"x": np.arange(0, 252, 21, dtype=np.uint8).reshape(1, 4, 3)}
    for got, want, step in zip(
        run(after, feeds), run(before, feeds), (0.03, 0.02, 0.03), strict=True
    ):
        # The gate is rounded to 1/255, of values up to 14: at most one step and a half more.
        np.testing.assert_allclose(got, want, atol=14 / 510 + step)


def test_an_activation_behind_integers_is_one_kernel_on_floats() -> None:
    text = """g (uint8[1,4,3] x) => (float[1,4,3] y) <float r = {0.06}, uint8 z = {20}> {
        f = DequantizeLinear(x, r, z)
        a = Swish<alpha = 1.5>(f)
        y = Add(a, a)
    }"""
    before, after = model(text), model(text)
    apply(after, FASTER, Remarks())
    assert ops(after) == ["DequantizeLinear", "QuickGelu", "Add"]
    feeds = {"x": np.arange(0, 252, 21, dtype=np.uint8).reshape(1, 4, 3)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=1e-5, atol=1e-6)
