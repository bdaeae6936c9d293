"""Recurrent operators whose weights are stored as integers, and those of any number of steps.

The standard operator would make floats of stored weights again in each run; the contrib kernel
multiplies with the stored bytes, and rounds what it is given to 8 bits with a scale of each run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.expand import definition, expand
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.passes.infra import Namer, add_initializer, attr, constant
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_DOMAIN = "com.microsoft"
_INPUTS = 8
"""Of ``LSTM``; scales and zero points come after them."""


def multiply_stored(model: ir.Model) -> int:
    """Rewrite, in place, each LSTM whose weights are stored as integers; return how many.

    Given::

        y = LSTM(x, DequantizeLinear<axis=1>(w, ws), DequantizeLinear<axis=1>(r, rs), b)

    Result::

        y = com.microsoft.DynamicQuantizeLSTM(x, transposed w, transposed r, b, .., ws, 0, rs, 0)
    """
    count = 0
    namer = Namer(model)
    for graph in model.graphs():
        for node in list(graph):
            if node.domain or node.op_type != "LSTM":
                continue
            stored = [_stored(node.inputs[index]) for index in (1, 2)]
            if any(s is None for s in stored):
                continue
            _rewrite(graph, node, [s for s in stored if s is not None], namer)
            count += 1
    if count:
        model.graph.opset_imports.setdefault(_DOMAIN, 1)
    return count


def _stored(value: ir.Value | None) -> tuple[Array, Array] | None:
    """Return integers (directions, gates, inputs) and their scales (directions, gates)."""
    maker = None if value is None else value.producer()
    if maker is None or maker.domain or maker.op_type != "DequantizeLinear":
        return None
    arrays = [constant(v) for v in maker.inputs]
    axis = maker.attributes.get("axis")
    if any(a is None for a in arrays) or axis is None or axis.as_int() != 1:
        return None
    values, scale, *zero = (a.numpy() for a in arrays if a is not None)
    if values.dtype != np.int8 or scale.ndim != 1 or any(z.any() for z in zero):
        return None
    return values, np.broadcast_to(scale.astype(np.float32), values.shape[:2])


def _rewrite(
    graph: ir.Graph, node: ir.Node, stored: list[tuple[Array, Array]], namer: Namer
) -> None:
    inputs = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    name = node.name or "lstm"
    for place, (values, scale) in enumerate(stored, 1):
        transposed = np.ascontiguousarray(values.transpose(0, 2, 1))
        inputs[place] = add_initializer(graph, namer.fresh(f"{name}.int"), transposed)
        inputs.append(add_initializer(graph, namer.fresh(f"{name}.scale"), np.array(scale)))
        zero = np.zeros(scale.shape, np.int8)
        inputs.append(add_initializer(graph, namer.fresh(f"{name}.zero"), zero))
    attributes = [a for a in node.attributes.values() if a.name != "layout"]
    made = ir.Node(
        *(_DOMAIN, "DynamicQuantizeLSTM", inputs, attributes),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        new_users = list(old.uses())
        for user, index in new_users:
            user.replace_input_with(index, new)
        outputs = graph.outputs
        for index, output in enumerate(list(outputs)):
            if output is old:
                outputs[index] = new
    graph.remove(node, safe=True)


def has_open_steps(node: ir.Node) -> bool:
    """Say whether the number of steps that an operator makes is known only at run time."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.shape is not None and not isinstance(x.shape[0], int)


def define_some_steps(model: ir.Model, node: ir.Node) -> bool:
    """Let the definition of an RNN compute steps where there are some, as a Scan needs.

    Given: ``y, h = RNN(x, w, r, , , s)``
    Result: ``y, h = If(Shape(x)[0] == 0, (no rows, s), definition of RNN(x, w, r, , , s))``
    """
    x, graph, hidden = node.inputs[0], node.graph, attr(node, "hidden_size", None)
    opset = model.opset_imports.get("", 0)
    if x is None or x.dtype is None or graph is None or hidden is None or attr(node, "layout", 0):
        return False
    if definition(node, opset) is None:
        return False
    namer, build = Namer(model), builder(model, node)
    read = [v for v in node.outputs if v.uses() or v.is_graph_output()]
    own = {k: a.value for k, a in node.attributes.items()}
    steps = ir.node("RNN", list(node.inputs), own, num_outputs=len(node.outputs), name=node.name)
    none = _without_steps(build, node, [hidden], x.dtype)
    branches = {}
    for name, nodes, made in (("then", none.nodes, none.outputs), ("else", [steps], steps.outputs)):
        shown = [made[node.outputs.index(v)] for v in read]
        for each in nodes:
            each.name = namer.fresh(f"{node.name}/{name}")
            for out in each.outputs:
                out.name = namer.fresh(f"{node.name}.{name}")
        for old, new in zip(read, shown, strict=True):
            new.type, new.shape = old.type, old.shape
        branches[f"{name}_branch"] = ir.Graph([], shown, nodes=nodes, name=name)
    count = build.op("Shape", x, start=0, end=1)
    is_none = build.op("Equal", count, build.const(np.zeros(1, np.int64), "none"))
    chosen = ir.node("If", [is_none], branches, num_outputs=len(read), name=node.name)
    build.insert(model.graph, node)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [chosen], read, chosen.outputs)
    expand(model, [steps])
    return True


@dataclass(frozen=True, slots=True)
class _Branch:
    nodes: list[ir.Node]
    outputs: list[ir.Value]


def _without_steps(
    build: ReplacementBuilder, node: ir.Node, hidden: list[int], dtype: ir.DataType
) -> _Branch:
    """No rows, and the state that came in; zeros where none did."""
    ways = 2 if attr(node, "direction", "forward") == "bidirectional" else 1
    first = node.inputs[5] if len(node.inputs) > 5 else None
    ends = [build.const(np.array(n, np.int64), "size") for n in ([ways], [0, ways], hidden)]
    batch = ir.node("Shape", [node.inputs[0]], {"start": 1, "end": 2})
    zero = ir.tensor(np.zeros(1, dtype.numpy()))
    nodes, outputs = [batch], []
    for place, lead in enumerate((ends[1], ends[0])):
        if place and first is not None:
            made = [ir.node("Identity", [first])]
        else:
            sizes = ir.node("Concat", [lead, batch.outputs[0], ends[2]], {"axis": 0})
            made = [sizes, ir.node("ConstantOfShape", sizes.outputs, {"value": zero})]
        nodes += made
        outputs.append(made[-1].outputs[0])
    return _Branch(nodes, outputs)
