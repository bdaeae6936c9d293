"""Small repairs around the graph: default inputs and names."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.inference import is_generated
from edgeinfer.convert.passes.infra import Namer, PassOutcome, outcome, walk
from edgeinfer.types import Dim, TensorSpec


class DropDefaultInputs(ir.passes.InPlacePass):
    """Make inputs that have a value in the file constants.

    Given: ``float[N,3] x, float[3,4] w`` as inputs, ``w`` with an initializer
    Result: ``float[N,3] x`` as the only input

    Before IR version 4 every weight had to be listed as an input. ONNX Runtime does not count
    them as inputs either.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Keep the inputs that a caller has to give."""
        given = [v for v in model.graph.inputs if not v.is_initializer()]
        count = len(model.graph.inputs) - len(given)
        if count:
            model.graph.inputs.clear()
            model.graph.inputs.extend(given)
            model.ir_version = max(model.ir_version, 4)
        return outcome(model, count)


class NameEverything(ir.passes.InPlacePass):
    """Give each node and each value a name that nothing else in the model has.

    Given: two nodes named ``conv``, and a subgraph with a value ``t`` like one outside
    Result: nodes ``conv`` and ``conv_1``; inside, ``t_1``

    Names of the main graph's inputs and outputs never change, and the first owner of a name
    keeps it.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Rename later owners."""
        namer, count = Namer(model), 0
        values: set[str] = {v.name for v in (*model.graph.inputs, *model.graph.outputs) if v.name}
        fixed = {id(v) for v in (*model.graph.inputs, *model.graph.outputs)}
        nodes: set[str] = set()
        for graph in walk(model.graph):
            inits = list(graph.initializers.values())
            made = [o for node in graph for o in node.outputs]
            for value in dict.fromkeys((*graph.inputs, *inits, *made)):
                if id(value) in fixed:
                    continue
                if not value.name or value.name in values:
                    value.name = namer.fresh(value.name or "value")
                    count += 1
                values.add(value.name)
            for node in graph:
                name = node.name or f"{node.op_type}_{node.outputs[0].name or ''}"
                count += node.name != name
                while name in nodes:
                    name = namer.fresh(f"{name}_1")
                    count += 1
                nodes.add(name)
                node.name = name
        return outcome(model, count)


def input_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """What a caller gives, in order."""
    return tuple(_spec(v) for v in model.graph.inputs if not v.is_initializer())


def output_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """What a run returns, in order."""
    return tuple(_spec(v) for v in model.graph.outputs)


def _spec(value: ir.Value) -> TensorSpec:
    dtype = value.dtype
    if dtype is None:
        name = "unknown"
    elif dtype == ir.DataType.STRING:
        name = "string"
    else:
        name = dtype.numpy().name
    shape = value.shape
    dims = None if shape is None else tuple(_dim(d) for d in shape)
    return TensorSpec(name=value.name or "", dtype=name, shape=dims)


def _dim(size: int | ir.SymbolicDim) -> Dim:
    if isinstance(size, int):
        # Paddle writes -1 for a size that is free.
        return size if size >= 0 else None
    return None if is_generated(size) else size.value
