"""Products of matrices."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.conv import note_hybrid, sizes_of
from edgeinfer.convert.sources.tflite.registry import READERS


@READERS.reader("FULLY_CONNECTED")
def fully_connected(
    g: Importer, o: Options, x: Operand, w: Operand, b: Operand | None = None
) -> ir.Value:
    """Gemm of the rows, or MatMul where the axes before the last one stay."""
    if o.weights_format:
        raise Refusal("weights in an order for one kind of processor only")
    note_hybrid(g, x, w)
    _, depth = sizes_of(w, 2)
    if o.keep_num_dims and x.rank != 2:
        y = g.emit("MatMul", x, w.transposed((1, 0)))
        y = y if b is None else g.emit("Add", y, b)
    else:
        rows = x.real
        if x.rank != 2 or x.shape[1] != depth:
            rows = g.emit("Reshape", rows, g.shape([-1, depth]))
        y = g.emit("Gemm", rows, w, b, transB=1)
    return g.activate(y, o)


@READERS.reader("BATCH_MATMUL")
def batch_matmul(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """MatMul."""
    note_hybrid(g, a, b)
    return g.emit("MatMul", _swapped(a, o.adj_x), _swapped(b, o.adj_y))


def _swapped(x: Operand, swap: bool) -> ir.Value:
    if not swap:
        return x.real
    return x.transposed([*range(x.rank - 2), x.rank - 1, x.rank - 2])


@READERS.reader("EMBEDDING_LOOKUP")
def embedding_lookup(g: Importer, o: Options, ids: Operand, table: Operand) -> ir.Value:
    """Rows of a table."""
    return g.emit("Gather", table, ids, axis=0)
