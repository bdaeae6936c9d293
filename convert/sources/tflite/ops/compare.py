"""Comparisons, logic and choice."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_SAME = {
    **{"EQUAL": "Equal", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual"},
    **{"LESS": "Less", "LESS_EQUAL": "LessOrEqual"},
    **{"LOGICAL_AND": "And", "LOGICAL_OR": "Or"},
}


@READERS.reader(*_SAME)
def same(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The operator of the same name."""
    return g.emit(_SAME[o.code], a, b)


@READERS.reader("NOT_EQUAL")
def not_equal(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """Neither more nor less nor equal."""
    return g.emit("Not", g.emit("Equal", a, b))


@READERS.reader("SELECT_V2")
def select_v2(g: Importer, o: Options, condition: Operand, a: Operand, b: Operand) -> ir.Value:
    """Where."""
    return g.emit("Where", condition, a, b)


@READERS.reader("SELECT")
def select(g: Importer, o: Options, condition: Operand, a: Operand, b: Operand) -> ir.Value:
    """Where; a vector of conditions chooses whole rows."""
    chosen = condition.real
    if condition.rank == 1 and a.rank > 1:
        chosen = g.emit("Reshape", chosen, g.shape([-1] + [1] * (a.rank - 1)))
    return g.emit("Where", chosen, a, b)
