"""Depthwise convolutions of many taps become sums of such with few.

XNNPACK has depthwise kernels of up to 25 taps. Beyond that it computes them in another way that
takes several times as long (2.3.0: 7 by 7 over 96 channels of 56 by 56 takes 8.5 ms, in parts of
7 by 3 and their sums 1.4 ms). Integers keep one operator: a sum of parts would round more often.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from edgeinfer.convert.lower.core.window import same_total
from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor
from edgeinfer.convert.lower.tflite.simplify import Wiring
from edgeinfer.convert.lower.tflite.window import VALID

KERNELS = (3, 4, 9, 25)
"""Taps that the kernels have; what has fewer is filled up."""

PER_PART = 6
"""What a part costs beyond its taps, for the copy of its operand and its sum, in taps."""

Part = tuple[int, int, int, int]
"""First and last row, first and last column of a part of the taps."""


def split_taps(graph: Graph) -> None:
    """Rewrite, in place, the convolutions that no kernel is made for.

    Given::

        y = DEPTHWISE_CONV_2D(x, w)          w: (1, 7, 7, c)

    Result::

        p = PAD(x)
        a = DEPTHWISE_CONV_2D(SLICE(p), w[:, 0:3]); b = DEPTHWISE_CONV_2D(SLICE(p), w[:, 3:6])
        c = DEPTHWISE_CONV_2D(SLICE(p), w[:, 6:7]); y = ADD(ADD(a, b), c)
    """
    wiring = Wiring(graph)
    ops: list[Op] = []
    for op in graph.ops:
        ops.extend(_split(graph, op) if _is_wide(wiring, op) else [op])
    graph.ops = ops


def _is_wide(wiring: Wiring, op: Op) -> bool:
    if op.code != "DEPTHWISE_CONV_2D" or op.options["depth_multiplier"] != 1:
        return False
    x, w, b = op.inputs[0], op.inputs[1], op.inputs[2] if len(op.inputs) > 2 else None
    if x is None or w is None or w.data is None or b is None or b.data is None:
        return False
    if w.dtype != np.float32 or op.outputs[0].dtype != np.float32 or x.dtype != np.float32:
        return False
    # Integers on both sides: it will compute with them.
    if wiring.maker(x, "DEQUANTIZE") is not None or w.shape[3] != x.shape[3]:
        return False
    rows, columns = w.static_shape[1:3]
    return rows * columns > KERNELS[-1] and _totals(op, x, w) is not None


def _totals(op: Op, x: Tensor, w: Tensor) -> list[int] | None:
    """Padding of rows and columns; None where it is known only at run time."""
    if op.options["padding"] == VALID:
        return [0, 0]
    found: list[int] = []
    for axis, name in ((1, "h"), (2, "w")):
        size, taps = x.shape[axis], w.static_shape[axis]
        stride, dilation = op.options[f"stride_{name}"], op.options[f"dilation_{name}_factor"]
        if size is None:
            if stride != 1:
                return None
            found.append((taps - 1) * dilation)
        else:
            found.append(same_total(size, stride, (taps - 1) * dilation + 1))
    return found


def parts_of(rows: int, columns: int) -> list[Part]:
    """The cheapest rectangles of at most 25 taps."""
    sizes = product(range(1, min(rows, KERNELS[-1]) + 1), range(1, min(columns, KERNELS[-1]) + 1))
    ways = [_cut(rows, columns, r, c) for r, c in sizes if r * c <= KERNELS[-1]]
    return min(ways, key=lambda way: sum(map(_cost, way)))


def _cut(rows: int, columns: int, height: int, width: int) -> list[Part]:
    return [
        (r, min(r + height, rows), c, min(c + width, columns))
        for r in range(0, rows, height)
        for c in range(0, columns, width)
    ]


def _cost(part: Part) -> int:
    taps = (part[1] - part[0]) * (part[3] - part[2])
    return PER_PART + next(k for k in KERNELS if k >= taps)


def _split(graph: Graph, op: Op) -> list[Op]:
    x, w, b = op.inputs[0], op.inputs[1], op.inputs[2]
    totals = None if x is None or w is None else _totals(op, x, w)
    if x is None or w is None or b is None or totals is None:
        raise ValueError(f"{op.outputs[0].name!r} cannot be taken apart")
    ops: list[Op] = []
    if any(totals):
        amounts = [[0, 0], *([t // 2, t - t // 2] for t in totals), [0, 0]]
        shape = [None if s is None else s + sum(a) for s, a in zip(x.shape, amounts, strict=True)]
        padded = graph.tensor(shape, x.dtype)
        ops.append(Op("PAD", [x, graph.const(amounts, np.int32)], [padded]))
        x = padded
    out = op.outputs[0]
    options = {**op.options, "padding": VALID, "fused_activation_function": 0}
    total: Tensor | None = None
    parts = parts_of(*w.static_shape[1:3])
    for index, (top, bottom, left, right) in enumerate(parts):
        part = graph.tensor(out.shape, out.dtype)
        operand = _part(graph, ops, x, op, (top, bottom, left, right), w)
        taps = graph.const(w.value[:, top:bottom, left:right])
        bias = b if index == 0 else graph.const(np.zeros_like(b.value))
        ops.append(Op("DEPTHWISE_CONV_2D", [operand, taps, bias], [part], options))
        if total is not None:
            last = index == len(parts) - 1
            joined = out if last else graph.tensor(out.shape, out.dtype)
            act = op.options["fused_activation_function"] if last else 0
            ops.append(Op("ADD", [total, part], [joined], {"fused_activation_function": act}))
            part = joined
        total = part
    return ops


def _part(graph: Graph, ops: list[Op], x: Tensor, op: Op, part: Part, w: Tensor) -> Tensor:
    """The operand without what other taps alone see."""
    top, bottom, left, right = part
    rows, columns = w.static_shape[1:3]
    high, wide = op.options["dilation_h_factor"], op.options["dilation_w_factor"]
    begin = [0, top * high, left * wide, 0]
    cut = [0, (rows - bottom) * high, (columns - right) * wide, 0]
    if not any(begin) and not any(cut):
        return x
    sizes = zip(x.shape, begin, cut, strict=True)
    made = graph.tensor([None if s is None else s - b - c for s, b, c in sizes], x.dtype)
    if made.is_static:
        bounds = [graph.const(v, np.int32) for v in (begin, made.shape)]
        ops.append(Op("SLICE", [x, *bounds], [made]))
        return made
    whole = sum(1 << axis for axis, amount in enumerate(cut) if not amount)
    masks = {"begin_mask": 0, "end_mask": whole, "ellipsis_mask": 0, "new_axis_mask": 0}
    bounds = [graph.const(v, np.int32) for v in (begin, [-c for c in cut], [1] * x.rank)]
    options = {**masks, "shrink_axis_mask": 0, "offset": False}
    ops.append(Op("STRIDED_SLICE", [x, *bounds], [made], options))
    return made
