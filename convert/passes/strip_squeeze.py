"""Take a squeeze of unknown axes off a model's outputs, for formats in which ranks are fixed."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant, input_at, is_op, rank, replace_node

_UNARY = (
    *("Abs", "Cast", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu"),
    *("Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh"),
)
_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub")


def strip_squeezes(model: ir.Model) -> tuple[str, ...]:
    """Leave out each squeeze of unknown axes behind which only elementwise operators follow.

    Given: ``float[batch,1] x; s = Squeeze(x); t = Sigmoid(s); y = Mul(t, 4.0)``
    Result: ``float[batch,1] t = Sigmoid(x), y = Mul(t, 4.0)``, and ``y`` is named

    Torch writes ``x.squeeze()`` like this; with an open size the rank of ``y`` is known at run
    time only. Whoever runs the result removes every axis of size 1 from the outputs named.

    Args:
        model: normalised; changed in place.

    Returns:
        The outputs that lost their squeeze.
    """
    names = []
    for output in list(model.graph.outputs):
        name, chain = output.name or "", _chain(output)
        if not chain:
            continue
        squeeze, *others = chain
        source = squeeze.inputs[0]
        if source is None or source.shape is None:
            continue
        same = ir.node("Identity", [source], name=squeeze.name)
        replace_node(squeeze, [same], same.outputs)
        for node in (same, *others):
            node.outputs[0].shape = source.shape.copy()
        names.append(name)
    return tuple(names)


def _chain(output: ir.Value) -> list[ir.Node]:
    """The squeeze and what follows it up to the output; empty where there is none."""
    nodes: list[ir.Node] = []
    value = output
    while (node := value.producer()) is not None:
        nodes.insert(0, node)
        if is_op(node, "Squeeze"):
            return nodes if _is_open(node) else []
        data = _only_tensor(node)
        if data is None or len(data.uses()) != 1 or data.is_graph_output():
            return []
        value = data
    return []


def _is_open(squeeze: ir.Node) -> bool:
    """Whether it removes axes that follow from the sizes."""
    x = squeeze.inputs[0]
    if input_at(squeeze, 1) is not None or x is None or x.shape is None:
        return False
    return any(not isinstance(size, int) for size in x.shape)


def _only_tensor(node: ir.Node) -> ir.Value | None:
    """The operand of an elementwise operator whose other operands are scalars."""
    if is_op(node, *_UNARY):
        return node.inputs[0]
    if not is_op(node, *_BINARY):
        return None
    tensors = [v for v in node.inputs if not _is_scalar(v)]
    return tensors[0] if len(tensors) == 1 else None


def _is_scalar(value: ir.Value | None) -> bool:
    return value is not None and constant(value) is not None and rank(value) == 0
