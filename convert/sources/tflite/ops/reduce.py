"""Reductions and running sums."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_SAME = {
    **{"MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_PROD": "ReduceProd"},
    **{"REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin"},
}


@READERS.reader(*_SAME)
def same(g: Importer, o: Options, x: Operand, axes: Operand) -> ir.Value:
    """The reduction of the same name; without axes the operand itself."""
    return _reduced(g, o, _SAME[o.code], x.real, x.rank, axes)


@READERS.reader("REDUCE_ANY", "REDUCE_ALL")
def truth(g: Importer, o: Options, x: Operand, axes: Operand) -> ir.Value:
    """The largest or smallest of zeros and ones: engines compare no booleans."""
    ones = g.emit("Cast", x, to=ir.DataType.INT32)
    op = "ReduceMax" if o.code == "REDUCE_ANY" else "ReduceMin"
    return g.emit("Cast", _reduced(g, o, op, ones, x.rank, axes), to=ir.DataType.BOOL)


def _reduced(
    g: Importer, o: Options, op: str, value: ir.Value, rank: int, axes: Operand
) -> ir.Value:
    known = axes.ints()
    wanted = axes.int64([-1]) if known is None else g.shape(sorted({a % rank for a in known}))
    return g.emit(op, value, wanted, keepdims=int(bool(o.keep_dims)), noop_with_empty_axes=1)


@READERS.reader("ARG_MAX", "ARG_MIN")
def arg(g: Importer, o: Options, x: Operand, axis: Operand) -> ir.Value:
    """ArgMax or ArgMin: the first of equal ones."""
    (along,) = axis.known("the axis")
    op = "ArgMax" if o.code == "ARG_MAX" else "ArgMin"
    found = g.emit(op, x, axis=along, keepdims=0)
    return found if o.dtype == ir.DataType.INT64 else g.emit("Cast", found, to=o.dtype)


@READERS.reader("CUMSUM")
def cumsum(g: Importer, o: Options, x: Operand, axis: Operand) -> ir.Value:
    """CumSum."""
    flags = {"exclusive": int(bool(o.exclusive)), "reverse": int(bool(o.reverse))}
    return g.emit("CumSum", x, axis.int64([]), **flags)
