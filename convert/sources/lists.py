"""Outputs that are a list of tensors: each tensor of it becomes an output of its own."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.errors import Remarks

_MAIN = ("", "ai.onnx")


def cut_lists(model: ir.Model, notes: Remarks) -> None:
    """Take ``SequenceConstruct`` off the outputs of a model, in place.

    Converters of scikit-learn end a model of several classifiers so. A bundle's outputs are
    tensors; those of the list are the same numbers.
    """
    outputs: list[ir.Value] = []
    cut: list[ir.Node] = []
    taken = {value.name for graph in model.graphs() for node in graph for value in node.outputs}
    for value in model.graph.outputs:
        node = value.producer()
        if node is None or not _is_list(node) or value.uses():
            outputs.append(value)
            continue
        names = [f"{value.name}_{number}" for number in range(len(node.inputs))]
        if taken & {*names}:
            outputs.append(value)
            continue
        notes.add(f"output {value.name!r}: a list of tensors, cut off: {', '.join(names)}")
        for name, element in zip(names, node.inputs, strict=True):
            copy = ir.node("Identity", [element], name=name)
            (made,) = copy.outputs
            made.name = name
            if element is not None:
                made.type, made.shape = element.type, element.shape
            if made.type is None and isinstance(value.type, ir.SequenceType):
                made.type = value.type.elem_type
            model.graph.insert_before(node, copy)
            outputs.append(made)
        cut.append(node)
    if cut:
        model.graph.outputs[:] = outputs
        model.graph.remove(cut, safe=True)


def _is_list(node: ir.Node) -> bool:
    return node.op_type == "SequenceConstruct" and node.domain in _MAIN and bool(node.inputs)
