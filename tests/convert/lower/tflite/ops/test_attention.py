"""Attention in every form, against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.convert.lower.tflite.run import lower, ops, outputs
from tests.convert.lower.tflite.single import agree, feeds_of, reference, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 4, 3, 5, 8


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def qkv(heads: int = HEADS, keys: int = KEYS, size: int = SIZE) -> list[Any]:
    return [
        normal(BATCH, HEADS, QUERIES, SIZE),
        normal(BATCH, heads, keys, SIZE),
        normal(BATCH, heads, keys, size),
    ]


def bools(*shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(bool)


@rows("heads", [4, 2, 1])
@rows("causal", [0, 1])
@rows("options", [{}, {"scale": 0.3}, {"softcap": 2.0}])
def test_four_axes(heads: int, causal: int, options: dict[str, Any]) -> None:
    parts = qkv(heads, size=6)
    agree("Attention", *parts, is_causal=causal, like="reference", both=False, **options)


@rows("heads", [4, 2])
def test_three_axes(heads: int) -> None:
    parts = [normal(BATCH, QUERIES, 4 * SIZE), *(normal(BATCH, KEYS, heads * SIZE) for _ in "kv")]
    options: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": heads, "is_causal": 1}
    agree("Attention", *parts, like="reference", both=False, **options)


@rows("causal", [0, 1])
@rows("constants", [(), (3,)])
@rows("shape", [(3, 5), (4, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5), (3, 4)])
@rows("kind", ["bool", "float"])
def test_masks(kind: str, shape: tuple[int, ...], constants: tuple[int, ...], causal: int) -> None:
    mask = bools(*shape)
    # One row that sees nothing: zeros, not NaN.
    mask[..., 1, :] = False
    if kind == "float":
        mask = np.where(mask, normal(*shape), -np.inf).astype(np.float32)
    for heads in (4, 2):
        for mode in (0, 2, 3):
            agree(
                *("Attention", *qkv(heads), mask),
                constants=constants, like="reference", both=False, is_causal=causal,
                outputs=4, qk_matmul_output_mode=mode,
            )  # fmt: skip


def test_mask_of_lowest_numbers() -> None:
    mask = np.where(bools(2, 1, 3, 5), 0, np.finfo(np.float32).min).astype(np.float32)
    mask[:, :, 0] = 0
    agree("Attention", *qkv(), mask, like="reference", both=False)


@rows("causal", [0, 1])
@rows("heads", [4, 2])
def test_cache(causal: int, heads: int) -> None:
    past = [normal(BATCH, heads, 7, SIZE) for _ in "kv"]
    mask = normal(QUERIES, KEYS + 7)
    for given in (None, mask):
        parts = [*qkv(heads), given, *past]
        agree("Attention", *parts, is_causal=causal, outputs=3, like="reference", both=False)


@rows("causal", [0, 1])
def test_filled_lengths(causal: int) -> None:
    lengths = np.array([3, 5], np.int64)
    parts = [*qkv(), None, None, None, lengths]
    agree("Attention", *parts, is_causal=causal, like="reference", both=False)


@pytest.mark.parametrize("mask", ["", "float[n, m] mask", "bool[b, 1, n, m] mask"])
@pytest.mark.parametrize("causal", [0, 1])
def test_sizes_change(mask: str, causal: int) -> None:
    inputs = ["float[b, n, 32] q", "float[b, m, 16] k", "float[b, m, 16] v", *[mask][: bool(mask)]]
    head = f"g ({', '.join(inputs)})"
    attributes = f"q_num_heads=4, kv_num_heads=2, is_causal={causal}"
    operands = "q, k, v" + (", mask" if mask else "")
    model = f"{head} => (float[b, n, 32] y) {{y = Attention<{attributes}>({operands})}}"
    data = lower(model)
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 24]> {model}')
    for b, n, m in ((2, 3, 5), (1, 4, 4), (3, 1, 6)):
        feeds = {"q": normal(b, n, 32), "k": normal(b, m, 16), "v": normal(b, m, 16)}
        if mask:
            feeds["mask"] = normal(n, m) if "float" in mask else bools(b, 1, n, m)
        want = ReferenceEvaluator(proto).run(None, feeds)[0]
        for xnnpack in (True, False):
            got = outputs(data, feeds, xnnpack=xnnpack)["y"]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_plain_attention_is_four_operators() -> None:
    data = lower(single("Attention", qkv()))
    assert ops(data) == ["MUL", "BATCH_MATMUL", "SOFTMAX", "BATCH_MATMUL"]


@rows("window", [(2, -1), (1, 1), (-1, 2), (0, 0)])
@rows("causal", [0, 1])
def test_windows(window: tuple[int, int], causal: int) -> None:
    options: dict[str, Any] = {"left_window_size": window[0], "right_window_size": window[1]}
    agree(
        *("Attention", *qkv()),
        opset=25, is_causal=causal, like="reference", both=False, **options,
    )  # fmt: skip


def test_large_scores_do_not_overflow() -> None:
    q, k, v = qkv()
    agree("Attention", q * 1e4, k * 1e4, v, bools(3, 5) | True, like="reference", both=False)


@rows("interleaved", [0, 1])
@rows("turned", [0, 4])
@rows("positions", [True, False])
@rows("rank", [3, 4])
def test_rotary_embedding(interleaved: int, turned: int, positions: bool, rank: int) -> None:
    half = (turned or SIZE) // 2
    x = normal(2, 4, 3, SIZE) if rank == 4 else normal(2, 3, 4 * SIZE)
    shape = (50, half) if positions else (2, 3, half)
    places = RNG.integers(0, 50, (2, 3)) if positions else None
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": turned}
    if rank == 3:
        options["num_heads"] = 4
    inputs = [x, normal(*shape), normal(*shape), places]
    agree("RotaryEmbedding", *inputs, like="reference", both=False, **options)
    agree("RotaryEmbedding", *inputs, constants=(1, 2), like="reference", both=False, **options)


@pytest.mark.parametrize("heads", [4, 2])
def test_every_size_is_open(heads: int) -> None:
    parts = qkv(heads, size=6)
    model = single("Attention", parts, dynamic=True, is_causal=1)
    feeds = feeds_of(model, parts)
    want = reference(model, feeds)["y0"]
    for xnnpack in (True, False):
        got = outputs(lower(model), feeds, xnnpack=xnnpack)["y0"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_size_of_a_head_comes_with_a_run() -> None:
    model = """g (float[b, n, d] q, float[b, m, e] k) => (float[b, n, d] y) {
        y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, k)}"""
    for size in (4, 6):
        feeds = {"q": normal(2, 3, 2 * size), "k": normal(2, 5, 2 * size)}
        q, k = (
            np.swapaxes(x.astype(np.float64).reshape(2, -1, 2, size), 1, 2) for x in feeds.values()
        )
        power = np.exp(q @ np.swapaxes(k, 2, 3) / np.sqrt(size))
        found = power / power.sum(axis=-1, keepdims=True) @ k
        want = np.swapaxes(found, 1, 2).reshape(2, 3, 2 * size)
        for xnnpack in (True, False):
            got = outputs(lower(model), feeds, xnnpack=xnnpack)["y"]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
