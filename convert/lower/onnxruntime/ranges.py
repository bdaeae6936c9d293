"""Rows that a range of positions names."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import given
from edgeinfer.convert.lower.whole_spans import Spans
from edgeinfer.convert.passes.infra import is_op


def sliced(node: ir.Node) -> str:
    """A gather of a range that may begin before zero: the optimiser makes a slice of both.

    Positions from -2 up to 2 are four rows, the last two and the first two; the slice has none.
    """
    indices = given(node, 1)
    source = None if indices is None else indices.producer()
    if source is None or not is_op(source, "Range"):
        return ""
    span = Spans().of(given(source, 0))
    return "" if span is not None and span[0] >= 0 else "a range below zero is taken for a slice"


def gather_cast(model: ir.Model, node: ir.Node) -> bool:
    """Read the positions through a cast, behind which no range is seen.

    Given: ``y = Gather(x, Range(a, b, c))``
    Result: ``y = Gather(x, Cast<to=int32>(Range(a, b, c)))``
    """
    x, indices = given(node, 0), given(node, 1)
    if x is None or indices is None:
        return False
    wide, narrow = ir.DataType.INT64, ir.DataType.INT32
    build = builder(model, node)
    cast = build.op("Cast", indices, to=(narrow if indices.dtype == wide else wide).value)
    cast.type = ir.TensorType(narrow if indices.dtype == wide else wide)
    cast.shape = indices.shape
    build.op("Gather", x, cast, **{k: a.value for k, a in node.attributes.items()})
    build.commit(model.graph, node)
    return True
