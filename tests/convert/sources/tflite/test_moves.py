"""Readers of shapes, parts, indices, reductions, order and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.lower.tflite.graph import Graph, Tensor
from tests.convert.sources.tflite.reading import floats, ops, rng, same


def test_reshape_takes_the_operand_or_the_option() -> None:
    same(lambda g, x: g.emit("RESHAPE", [x], (6, 2), new_shape=[6, 2]), x=floats(3, 4))
    same(
        lambda g, x: g.emit("RESHAPE", [x, g.const([2, -1], np.int32)], (2, 6)),
        x=floats(3, 4),
    )
    same(
        lambda g, x, s: g.emit("RESHAPE", [x, s], (None, None)),
        {"x": floats(3, 4), "s": np.array([4, 3], np.int32)},
        x=floats(3, 4),
        s=np.array([2, 6], np.int32),
    )


def test_axes_come_and_go() -> None:
    same(lambda g, x: g.emit("SQUEEZE", [x], (3, 4), squeeze_dims=[0, -2]), x=floats(1, 3, 1, 4))
    same(lambda g, x: g.emit("SQUEEZE", [x], (3, 4), squeeze_dims=[]), x=floats(1, 3, 1, 4))
    same(
        lambda g, x: g.emit("EXPAND_DIMS", [x, g.const(-1, np.int32)], (3, 4, 1)),
        x=floats(3, 4),
    )
    same(
        lambda g, x: g.emit("TRANSPOSE", [x, g.const([2, 0, 1], np.int32)], (4, 2, 3)),
        x=floats(2, 3, 4),
    )
    same(
        lambda g, x: g.emit("SHAPE", [x], (2,), np.int32, out_type=np.dtype(np.int32)),
        x=floats(3, 4),
    )


def test_joining_and_parting() -> None:
    same(
        lambda g, a, b: g.emit(
            "CONCATENATION", [a, b], (2, 5), axis=-1, fused_activation_function=0
        ),
        a=floats(2, 3),
        b=floats(2, 2),
    )
    same(
        lambda g, a, b: g.emit("PACK", [a, b], (2, 2, 3), axis=1, values_count=2),
        a=floats(2, 3),
        b=-floats(2, 3),
    )

    def unpack(g: Graph, x: Tensor) -> list[Tensor]:
        parts = [g.tensor((2, 4), x.dtype) for _ in range(3)]
        g.add("UNPACK", [x], parts, num=3, axis=1)
        return parts

    def split(g: Graph, x: Tensor) -> list[Tensor]:
        halves = [g.tensor((2, 3, 2), x.dtype) for _ in range(2)]
        g.add("SPLIT", [g.const(-1, np.int32), x], halves, num_splits=2)
        rest = [g.tensor((2, n, 4), x.dtype) for n in (1, 2)]
        sizes = g.const([1, -1], np.int32)
        g.add("SPLIT_V", [x, sizes, g.const(1, np.int32)], rest, num_splits=2)
        return [*halves, *rest]

    same(unpack, x=floats(2, 3, 4))
    same(split, x=floats(2, 3, 4))


@pytest.mark.parametrize(
    ("begin", "end", "step", "masks", "shape"),
    [
        ([0, 1], [2, 4], [1, 2], {}, (2, 2, 6)),
        ([0, -1], [2, -6], [1, -1], {"end_mask": 2}, (2, 5, 6)),
        ([1, 2], [2, 3], [1, 1], {"shrink_axis_mask": 3}, (6,)),
        ([-1, 0], [0, 5], [1, 1], {"shrink_axis_mask": 1, "end_mask": 2}, (5, 6)),
        ([1, 0, 2], [3, 0, 4], [1, 1, 1], {"ellipsis_mask": 2}, (1, 5, 2)),
        ([0, 0, 1], [0, 0, 2], [1, 1, 1], {"new_axis_mask": 1, "begin_mask": 2, "end_mask": 2},
         (1, 2, 1, 6)),
    ],
)  # fmt: skip
def test_strided_slices(
    begin: list[int], end: list[int], step: list[int], masks: dict[str, Any], shape: tuple[int, ...]
) -> None:
    zero = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"), 0)
    options = {**zero, "shrink_axis_mask": 0, "offset": False, **masks}

    def build(g: Graph, x: Tensor) -> Tensor:
        bounds = [g.const(v, np.int32) for v in (begin, end, step)]
        return g.emit("STRIDED_SLICE", [x, *bounds], shape, **options)

    same(build, x=floats(2, 5, 6))


def test_slices_whose_bounds_a_run_decides() -> None:
    zero = dict.fromkeys(("ellipsis_mask", "new_axis_mask", "begin_mask"), 0)
    options = {**zero, "end_mask": 2, "shrink_axis_mask": 1, "offset": False}

    def strided(g: Graph, x: Tensor, b: Tensor, e: Tensor) -> Tensor:
        step = g.const([1, 1], np.int32)
        return g.emit("STRIDED_SLICE", [x, b, e, step], (None,), **options)

    begin, end = np.array([-1, 2], np.int32), np.array([0, 3], np.int32)
    x = floats(4, 5)
    same(strided, {"x": x, "b": end, "e": begin}, x=x, b=begin, e=end)

    def plain(g: Graph, x: Tensor, b: Tensor, n: Tensor) -> Tensor:
        return g.emit("SLICE", [x, b, n], (None, None))

    same(plain, x=floats(4, 5), b=np.array([1, 2], np.int32), n=np.array([-1, 2], np.int32))


def test_reversing() -> None:
    same(lambda g, x: g.emit("REVERSE_V2", [x, g.const([1], np.int32)], x.shape), x=floats(2, 3, 4))
    same(
        lambda g, x, n: g.emit("REVERSE_SEQUENCE", [x, n], x.shape, seq_dim=1, batch_dim=0),
        x=floats(2, 3, 4),
        n=np.array([2, 3], np.int32),
    )


def test_padding_and_filling() -> None:
    def build(g: Graph, x: Tensor) -> list[Tensor]:
        amounts = g.const([[1, 0], [2, 1]], np.int32)
        return [
            g.emit("PAD", [x, amounts], (4, 7)),
            g.emit("PADV2", [x, amounts, g.const(np.float32(7))], (4, 7)),
            g.emit("MIRROR_PAD", [x, amounts], (4, 7), mode=0),
            g.emit("MIRROR_PAD", [x, amounts], (4, 7), mode=1),
            g.emit("TILE", [x, g.const([2, 3], np.int32)], (6, 12)),
            g.emit("BROADCAST_TO", [x, g.const([2, 3, 4], np.int32)], (2, 3, 4)),
        ]

    same(build, x=floats(3, 4))
    same(
        lambda g, s, v: g.emit("FILL", [s, v], (None, None), np.float32),
        s=np.array([2, 3], np.int32),
        v=np.array(1.5, np.float32),
    )
    same(
        lambda g, a, b, c: g.emit("RANGE", [a, b, c], (None,)),
        a=np.array(1, np.int32),
        b=np.array(8, np.int32),
        c=np.array(3, np.int32),
    )
    same(
        lambda g, a, b: g.emit("BROADCAST_ARGS", [a, b], (3,)),
        a=np.array([2, 1, 4], np.int32),
        b=np.array([3, 1], np.int32),
    )


@pytest.mark.parametrize("code", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions(code: str, keep: bool) -> None:
    shape = (2, 1, 1) if keep else (2,)
    same(
        lambda g, x: g.emit(code, [x, g.const([1, -1], np.int32)], shape, keep_dims=keep),
        x=floats(2, 3, 4),
    )


def test_truth_of_any_and_of_all() -> None:
    x = np.array([[True, False], [True, True], [False, False]])
    for code in ("REDUCE_ANY", "REDUCE_ALL"):
        same(
            lambda g, x, code=code: g.emit(
                code, [x, g.const([1], np.int32)], (3,), keep_dims=False
            ),
            x=x,
        )


def test_places_of_extremes_and_running_sums() -> None:
    x = rng().integers(0, 4, (3, 9)).astype(np.float32)
    for code in ("ARG_MAX", "ARG_MIN"):
        same(
            lambda g, x, code=code: g.emit(
                code, [x, g.const(1, np.int32)], (3,), np.int32, output_type=np.dtype(np.int32)
            ),
            x=x,
        )
    for exclusive, reverse in ((False, False), (True, False), (False, True)):
        flags = {"exclusive": exclusive, "reverse": reverse}
        same(
            lambda g, x, flags=flags: g.emit("CUMSUM", [x, g.const(1, np.int32)], x.shape, **flags),
            x=x,
        )


def test_the_largest_come_first() -> None:
    def build(g: Graph, x: Tensor) -> list[Tensor]:
        parts = [g.tensor((2, 3), x.dtype), g.tensor((2, 3), np.int32)]
        g.add("TOPK_V2", [x, g.const(3, np.int32)], parts)
        return parts

    same(build, x=np.array([[1, 5, 5, 2, 9], [4, 4, 4, 4, 4]], np.float32))


def test_reading_by_index() -> None:
    rows = np.array([[2, 0], [1, 1]], np.int32)
    same(
        lambda g, x, i: g.emit("GATHER", [x, i], (2, 2, 2, 4), axis=1, batch_dims=0),
        x=floats(2, 3, 4),
        i=rows,
    )
    same(
        lambda g, x, i: g.emit("GATHER", [x, i], (2, 3, 2), axis=2, batch_dims=1),
        x=floats(2, 3, 4),
        i=rows,
    )
    same(lambda g, x, i: g.emit("GATHER_ND", [x, i], (2, 4)), x=floats(3, 3, 4), i=rows)


def test_writing_by_index() -> None:
    places = np.array([[1], [3], [1]], np.int32)
    same(
        lambda g, i, u: g.emit("SCATTER_ND", [i, u, g.const([5, 2], np.int32)], (5, 2), u.dtype),
        i=places,
        u=floats(3, 2),
    )
    same(
        lambda g, x, u, s: g.emit("DYNAMIC_UPDATE_SLICE", [x, u, s], x.shape),
        {"x": floats(4, 5), "u": -floats(2, 3), "s": np.array([3, 1], np.int32)},
        x=floats(4, 5),
        u=-floats(2, 3),
        s=np.array([1, 2], np.int32),
    )


def test_one_hot_ignores_what_is_out_of_range() -> None:
    def build(g: Graph, i: Tensor) -> Tensor:
        ends = [g.const(np.float32(v)) for v in (5, -5)]
        return g.emit("ONE_HOT", [i, g.const(3, np.int32), *ends], (4, 3), np.float32, axis=-1)

    same(build, i=np.array([0, 2, -1, 3], np.int32))


def test_places_of_what_is_true() -> None:
    same(
        lambda g, x: g.emit("WHERE", [x], (None, 2), np.int64),
        x=np.array([[True, False], [True, True]]),
    )


def test_distinct_values_keep_their_order() -> None:
    def build(g: Graph, x: Tensor) -> list[Tensor]:
        parts = [g.tensor((None,), x.dtype), g.tensor((None,), np.int32)]
        g.add("UNIQUE", [x], parts, idx_out_type=np.dtype(np.int32))
        return parts

    same(build, x=np.array([3, 1, 3, 2, 1], np.int32))


def test_the_best_boxes() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [0, 0, 3, 3]], np.float32)

    def build(g: Graph, b: Tensor, s: Tensor) -> list[Tensor]:
        parts = [g.tensor((3,), np.int32), g.tensor((), np.int32)]
        limits = [g.const(3, np.int32), g.const(np.float32(0.5)), g.const(np.float32(0.2))]
        g.add("NON_MAX_SUPPRESSION_V4", [b, s, *limits], parts)
        return parts

    same(build, b=boxes, s=np.array([0.9, 0.8, 0.3, 0.1], np.float32))


@pytest.mark.parametrize("keep", [False, True])
def test_fully_connected_over_rows_or_all_axes(keep: bool) -> None:
    w, b = floats(5, 4), floats(5)
    shape = (2, 3, 5) if keep else (6, 5)
    options = {"keep_num_dims": keep, "fused_activation_function": 1, "weights_format": 0}
    found = same(
        lambda g, x: g.emit("FULLY_CONNECTED", [x, g.const(w), g.const(b)], shape, **options),
        x=floats(2, 3, 4),
    )
    assert ("MatMul" in ops(found.model)) == keep


def test_products_of_matrices_may_be_turned() -> None:
    options = {"adj_x": True, "adj_y": True, "asymmetric_quantize_inputs": False}
    same(
        lambda g, a, b: g.emit("BATCH_MATMUL", [a, b], (2, 3, 5), **options),
        a=floats(2, 4, 3),
        b=floats(2, 5, 4),
    )
