"""Choosing among overlapping boxes."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.index import grid
from edgeinfer.convert.lower.coreml.ops.loops import while_loop
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import INT32, Tensor
from edgeinfer.convert.lower.registry import Refusal

_GONE = -3e38
"""The score of a box that is out."""


@OPS.lower("NonMaxSuppression", dtypes=FLOATS | INTEGERS)
def non_max_suppression(
    g: Builder,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int,
) -> Tensor:
    """A loop that takes the best box of every class and drops what overlaps it.

    Core ML's own operator compares scores in another way and pads its results.
    """
    wanted = max_output_boxes_per_class
    if wanted is None or (wanted.data is not None and int(wanted.data.item()) < 1):
        raise Refusal("selects no boxes: tensors without elements do not exist", "dynamic_shape")
    most = _least(g, g.extent(scores, 2), wanted)
    sides = _sides(g, boxes, bool(center_point_box))
    limit = 0.0 if iou_threshold is None else iou_threshold
    alive = scores
    if score_threshold is not None:
        bound = g.reshape(score_threshold, [])
        high = g.binary("greater", scores, bound)
        alive = g.select(high, scores, g.const(_GONE, scores.dtype))
    return _listed(g, _rounds(g, alive, sides, limit, most))


def _least(g: Builder, count: Extent, wanted: Tensor) -> Extent:
    """How many boxes of a class there are at most."""
    if isinstance(count, int) and wanted.data is not None:
        return min(int(wanted.data.item()), count)
    held = (
        g.cast(g.reshape(wanted, []), np.int32)
        if wanted.data is None
        else g.const(min(int(wanted.data.item()), int(INT32.max)), np.int32)
    )
    span = (0, INT32.max) if isinstance(count, Tensor) else (min(held.bounds[0], count), count)
    return g.binary("minimum", held, count, span)


def _sides(g: Builder, boxes: Tensor, centred: bool) -> list[Tensor]:
    """Low and high sides and the area of each box: (batch, 1, boxes)."""
    parts = [g.drop_axes(p, [2]) for p in g.split(boxes, [1, 1, 1, 1], 2)]
    if centred:
        x, y, w, h = parts
        halves = [g.binary("mul", s, 0.5) for s in (h, w)]
        low = [g.binary("sub", c, s) for c, s in zip((y, x), halves, strict=True)]
        high = [g.binary("add", c, s) for c, s in zip((y, x), halves, strict=True)]
    else:
        low = [g.binary("minimum", parts[i], parts[i + 2]) for i in (0, 1)]
        high = [g.binary("maximum", parts[i], parts[i + 2]) for i in (0, 1)]
    extents = [g.binary("sub", b, a) for a, b in zip(low, high, strict=True)]
    area = g.binary("mul", extents[0], extents[1])
    return [g.insert_axes(t, [1]) for t in (*low, *high, area)]


def _rounds(
    g: Builder,
    alive: Tensor,
    sides: list[Tensor],
    limit: Tensor | float,
    most: Extent,
) -> Tensor:
    """Return the selected boxes of every round: (rounds, batch, classes), -1 for none."""
    turns = g.const(most, np.int32) if isinstance(most, int) else most
    indices = g.insert_axes(g.positions(alive, 2), [0, 1])
    room = g.filled([most, *g.extents(alive)[:2]], -1)
    threshold = g.reshape(limit, []) if isinstance(limit, Tensor) else g.const(limit, alive.dtype)

    def turn(now: list[Tensor]) -> list[Tensor]:
        index, left, found = now
        best = g.emit("reduce_argmax", np.int32, x=left, axis=2, keep_dims=True)
        top = g.reduce("reduce_max", left, [2], True)
        live = g.binary("greater", top, _GONE)
        hit = g.binary("equal", indices, best)
        mask = g.cast(hit, alive.dtype)
        own = [g.reduce("reduce_sum", g.binary("mul", s, mask), [2], True) for s in sides]
        over = _overlap(g, own, sides, threshold)
        out = g.binary("logical_and", g.binary("logical_or", over, hit), live)
        left = g.select(out, g.const(_GONE, alive.dtype), left)
        row = g.select(live, best, g.const(-1, np.int32))
        found = g.emit(
            "scatter",
            np.int32,
            data=found,
            indices=g.reshape(index, [1]),
            updates=g.reshape(row, [1, *g.extents(row)[:2]]),
            axis=0,
            mode="update",
        )
        return [g.binary("add", index, 1), left, found]

    counter = g.const(0, np.int32)
    counter.span = (0, turns.bounds[1])
    end = while_loop(g, [counter, alive, room], lambda now: g.binary("less", now[0], turns), turn)
    return end[2]


def _overlap(g: Builder, own: list[Tensor], sides: list[Tensor], limit: Tensor) -> Tensor:
    """Whether the shared area is more than the limit's share of both together."""
    shared: Tensor | None = None
    for axis in (0, 1):
        low = g.binary("maximum", own[axis], sides[axis])
        high = g.binary("minimum", own[axis + 2], sides[axis + 2])
        part = g.binary("maximum", g.binary("sub", high, low), 0.0)
        shared = part if shared is None else g.binary("mul", shared, part)
    if shared is None:
        raise ValueError("a box has two axes")
    both = g.binary("sub", g.binary("add", own[4], sides[4]), shared)
    share = g.binary("real_div", shared, both)
    positive = g.binary("greater", both, 0.0)
    return g.binary("logical_and", positive, g.binary("greater", share, limit))


def _listed(g: Builder, chosen: Tensor) -> Tensor:
    """Rows of batch, class and box for the rounds that selected one."""
    each = g.transpose(chosen, [1, 2, 0])
    columns = [grid(g, each, 0), grid(g, each, 1), each]
    table = g.concat([g.reshape(c, [-1, 1]) for c in columns], 1)
    boxes = g.reshape(each, [-1])
    kept = g.binary("greater_equal", boxes, 0)
    where = g.emit("non_zero", np.int32, x=g.cast(kept, np.float32))
    picked = g.reshape(where, [-1])
    out = g.emit("gather", np.int64, x=table, indices=picked, axis=0)
    out.span = (0, (1 << 31) - 1)
    return out
