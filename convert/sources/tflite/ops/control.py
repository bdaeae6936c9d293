"""Graphs inside the graph: If and Loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS


@READERS.reader("IF")
def if_(g: Importer, o: Options, condition: Operand, *given: Operand) -> list[Operand]:
    """If; branches read what is around them."""
    branches = {}
    for name, index in (
        ("then_branch", o.then_subgraph_index),
        ("else_branch", o.else_subgraph_index),
    ):
        with g.inside() as nodes:
            results = [g.emit("Identity", r.stored) for r in g.inline(index, given)]
        branches[name] = ir.Graph([], results, nodes=nodes, name=g.fresh(name))
    made = g.emit_many("If", len(o.outputs), condition, **branches)
    return _stored(g, o, made)


@READERS.reader("WHILE")
def while_(g: Importer, o: Options, *given: Operand) -> list[Operand]:
    """Loop: the condition is computed before it, and at the end of each turn."""
    begin = _condition(g, o.cond_subgraph_index, given)
    turn = _value(g, "turn", ir.DataType.INT64, ())
    going = _value(g, "going", ir.DataType.BOOL, ())
    body = g.file.graphs[o.body_subgraph_index]
    with g.inside() as nodes:
        values = [
            _value(g, x.name, x.dtype, body.tensors[i].shape)
            for x, i in zip(given, body.inputs, strict=True)
        ]
        inner = [
            Operand(g, body.tensors[i], value=v) for v, i in zip(values, body.inputs, strict=True)
        ]
        after = g.inline(o.body_subgraph_index, inner)
        again = g.emit("Identity", _condition(g, o.cond_subgraph_index, after))
        results = [g.emit("Identity", r.stored) for r in after]
    graph = ir.Graph([turn, going, *values], [again, *results], nodes=nodes, name=g.fresh("body"))
    initial = [x.stored for x in given]
    made = g.emit_many("Loop", len(o.outputs), None, begin, *initial, body=graph)
    return _stored(g, o, made)


@READERS.reader("CALL")
def call(g: Importer, o: Options, *given: Operand) -> list[Operand]:
    """Another graph, written out here."""
    return g.inline(o.subgraph, given)


def _condition(g: Importer, index: int, given: Sequence[Operand]) -> ir.Value:
    (found,) = g.inline(index, given)
    return g.emit("Reshape", found, np.empty(0, np.int64))


def _value(g: Importer, name: str, dtype: ir.DataType, shape: Sequence[int | None]) -> ir.Value:
    return ir.Value(name=g.fresh(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _stored(g: Importer, o: Options, made: Sequence[ir.Value]) -> list[Operand]:
    """Results come out as the bodies store them."""
    tensors = [t for t in o.outputs if t is not None]
    return [Operand(g, t, value=v) for t, v in zip(tensors, made, strict=True)]
