"""Normalisations, against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.single import agree, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> Any:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def test_layer_normalization_far_from_zero() -> None:
    x = (normal(4, 32) + 1000).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    ones = np.ones(32, np.float32)
    agree("LayerNormalization", x, ones, want={"y0": exact.astype(np.float32)}, rtol=1e-4)


def test_layer_normalization_of_half_precision() -> None:
    parts = [normal(2, 8).astype(np.float16), normal(8).astype(np.float16)]
    types = [np.float16, np.float32, np.float32]
    agree("LayerNormalization", *parts, outputs=3, types=types, like="reference", rtol=2e-3)


@rows("sizes", [["h"], ["h", "w"], ["d", "h", "w"]])
@rows("groups", [1, 2, 4])
def test_group_normalization_at_two_sizes(groups: int, sizes: list[str]) -> None:
    # onnx 1.23 infers the shape of the scale for a result whose sizes are all known.
    shape = f"float[n, 4, {', '.join(sizes)}]"
    model = f"""g ({shape} x, float[4] s, float[4] b) => ({shape} y) {{
        y = GroupNormalization<num_groups={groups}>(x, s, b)}}"""
    feeds = [
        {"x": normal(n, 4, *(3, 5, 2)[: len(sizes)]), "s": normal(4), "b": normal(4)}
        for n in (2, 1)
    ]
    check(model, *feeds)


@rows("shape", [(3, 4), (2, 4, 5), (2, 4, 3, 5), (2, 4, 3, 5, 2)])
@rows("constants", [(), (1, 2, 3, 4)])
def test_batch_normalization(shape: tuple[int, ...], constants: tuple[int, ...]) -> None:
    parts = [normal(*shape), normal(4), normal(4), normal(4), positive(4)]
    agree("BatchNormalization", *parts, constants=constants, epsilon=1e-3)


def test_known_batch_statistics_cost_two_operators() -> None:
    parts = [normal(3, 4), normal(4), normal(4), normal(4), positive(4)]
    data = lower(single("BatchNormalization", parts, constants=(1, 2, 3, 4)))
    assert ops(data) == ["MUL", "ADD"]


def test_batch_normalization_in_training() -> None:
    parts = [normal(5, 4, 3), normal(4), normal(4), normal(4), positive(4)]
    agree("BatchNormalization", *parts, training_mode=1, outputs=3, momentum=0.7, like="reference")


@rows("size", [1, 2, 3, 4, 5, 9])
@rows("shape", [(2, 6, 3), (2, 6, 3, 4), (1, 6, 2, 3, 2)])
def test_local_response_normalization(size: int, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    total = np.zeros_like(x)
    for c in range(6):
        low, high = max(0, c - (size - 1) // 2), min(6, c + size // 2 + 1)
        total[:, c] = (x[:, low:high] ** 2).sum(1)
    want = {"y0": (x / (2 + 0.1 / size * total) ** 0.6).astype(np.float32)}
    agree("LRN", x, size=size, alpha=0.1, beta=0.6, bias=2.0, want=want, both=False)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="stash_type"):
        lower(single("LayerNormalization", [normal(2, 3), normal(3)], stash_type=11))
