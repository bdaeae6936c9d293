"""Where ``ceil_mode`` puts the last window of a pooling, and what OpenVINO makes of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """The last window along one spatial axis; None where the size is not known and decides.

    Attributes:
        starts_behind: it starts behind the input and its left padding; ONNX leaves such a one out.
        overhangs: it reaches beyond the right padding.
    """

    starts_behind: bool | None
    overhangs: bool | None


def overhangs(node: ir.Node) -> tuple[Edge, ...]:
    """Return the axes of a pooling in ``ceil_mode`` with explicit padding; empty for any other."""
    if not attribute(node, "ceil_mode", 0) or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return ()
    kernel = _sizes(node, "kernel_shape", 0, 0)
    rank = len(kernel)
    strides, dilations = _sizes(node, "strides", rank, 1), _sizes(node, "dilations", rank, 1)
    pads = _sizes(node, "pads", 2 * rank, 0)
    x = given(node, 0)
    shape = tuple(x.shape[2:]) if x is not None and x.shape is not None else (None,) * rank
    axes = []
    for i in range(rank):
        spread = (kernel[i] - 1) * dilations[i] + 1
        size, left, right = shape[i], pads[i], pads[rank + i]
        if not isinstance(size, int):
            # The last window starts at most ``right + stride - spread - 1`` behind the input.
            axes.append(Edge(None if right + strides[i] - 1 >= spread else False, None))
            continue
        room = size + left + right - spread
        start = -(-room // strides[i]) * strides[i]
        axes.append(Edge(start >= size + left, start > room))
    return tuple(axes)


def pad_before_average(model: ir.Model, node: ir.Node) -> bool:
    """Make the padding part of the input, so that only what ``ceil_mode`` adds is not counted.

    Given::

        y = AveragePool<ceil_mode=1, count_include_pad=1, pads=[3, 3]>(x)

    Result::

        p = Neg(Pad(x, [0, 0, 3, 0, 0, 3]))
        y = Neg(AveragePool<ceil_mode=1>(p))

    Before 2026.4 OpenVINO joins a ``Pad`` right before the mean with it, and counts all again.
    """
    x = given(node, 0)
    if x is None or any(axis.starts_behind is None for axis in overhangs(node)):
        return False
    rank = len(_sizes(node, "kernel_shape", 0, 0))
    pads = _sizes(node, "pads", 2 * rank, 0)
    build = builder(model, node)
    amounts = np.asarray([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
    padded = build.op("Pad", x, build.const(amounts, "pads"))
    options = {a.name: a.value for a in node.attributes.values()}
    options = {k: v for k, v in options.items() if k not in ("pads", "count_include_pad")}
    build.op("Neg", build.op("AveragePool", build.op("Neg", padded), **options))
    build.commit(model.graph, node)
    return True


def _sizes(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    found = node.attributes.get(name)
    return [default] * count if found is None else list(found.as_ints())
