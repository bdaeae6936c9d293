"""Even out what 8 bits would have to span, without changing what the model computes.

Two rewrites of the float graph. Between two convolutions with nothing but a Relu between them, each
channel may be made smaller before and larger after: then no channel of a depthwise net is a hundred
times larger than its neighbour. Behind a normalisation, channels of activations with outliers are
made smaller and the rows of the weights that read them larger: what is hard to round in activations
is easy in weights.

Sources: Nagel et al. 2019, "Data-free quantization through weight equalization and bias
correction"; Xiao et al. 2022, "SmoothQuant".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, constant
from edgeinfer.convert.quantize.calibrate.histogram import ChannelStats
from edgeinfer.convert.quantize.units import array_of
from edgeinfer.types import Array

_ROUNDS = 3
_LARGEST = 1e3
"""No channel is scaled by more than this, or its inverse."""

_BALANCE = 0.5
"""Share of an outlier that moves from activations into weights."""

_NORMS = {"LayerNormalization": (1, 2), "RMSNormalization": (1,)}
"""Normalisations, and which operands scale or shift each channel of the result."""

Vector = npt.NDArray[np.float64]


def equalise_layers(model: ir.Model) -> int:
    """Even out the channels between convolutions in a row, in place; return how many pairs."""
    pairs = [p for node in model.graph if (p := _pair(node)) is not None]
    for _ in range(_ROUNDS):
        for first, second in pairs:
            _equalise(model, first, second)
    return len(pairs)


def _pair(first: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """Return a convolution and the one that alone reads it, through at most a Relu."""
    if first.op_type != "Conv" or first.domain or not _is_own(first, 1):
        return None
    value = first.outputs[0]
    second = _reader(value)
    if second is not None and second.op_type == "Relu":
        second = _reader(second.outputs[0])
    if second is None or second.op_type != "Conv" or not _is_own(second, 1):
        return None
    if len(first.inputs) > 2 and first.inputs[2] is not None and not _is_own(first, 2):
        return None
    outputs = array_of(first.inputs[1]).shape[0]
    weights, groups = array_of(second.inputs[1]), _groups(second)
    # Either every output reads all channels, or each channel has its own outputs.
    fits = groups == 1 and weights.shape[1] == outputs
    fits = fits or (groups == outputs and weights.shape[1] == 1)
    return (first, second) if fits else None


def _reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0][1] != 0:
        return None
    node = uses[0][0]
    return node if node.graph is value.graph and not node.domain else None


def _is_own(node: ir.Node, index: int) -> bool:
    """Whether an operand is a float constant that nothing else reads."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = constant(value)
    return (
        tensor is not None
        and tensor.dtype == ir.DataType.FLOAT
        and value is not None
        and len(list(value.uses())) == 1
    )


def _groups(node: ir.Node) -> int:
    attr = node.attributes.get("group")
    return 1 if attr is None else attr.as_int()


def _equalise(model: ir.Model, first: ir.Node, second: ir.Node) -> None:
    before, after = array_of(first.inputs[1]), array_of(second.inputs[1])
    channels = before.shape[0]
    a = np.abs(before).reshape(channels, -1).max(axis=1).astype(np.float64)
    depthwise = _groups(second) == channels and channels > 1
    rows = after.reshape(channels, -1) if depthwise else np.moveaxis(after, 1, 0)
    b = np.abs(rows).reshape(channels, -1).max(axis=1).astype(np.float64)
    factor = _limited(np.sqrt(np.divide(a, b, out=np.ones(channels), where=(a > 0) & (b > 0))))
    _replace(model, first, 1, before / _along(factor, 0, before.ndim))
    if len(first.inputs) > 2 and first.inputs[2] is not None:
        _replace(model, first, 2, array_of(first.inputs[2]) / factor)
    if depthwise:
        _replace(
            model,
            second,
            1,
            after * _along(np.repeat(factor, len(after) // channels), 0, after.ndim),
        )
    else:
        _replace(model, second, 1, after * _along(factor, 1, after.ndim))


def smooth(model: ir.Model, channels: Mapping[str, ChannelStats]) -> int:
    """Move outliers behind normalisations into the weights, in place; return of how many.

    Args:
        model: normalised; float.
        channels: what was seen of the values that weights are multiplied with.
    """
    count = 0
    for node in list(model.graph):
        operands = _NORMS.get(node.op_type)
        if operands is None or node.domain or not _scales_last(node, operands):
            continue
        value = node.outputs[0]
        readers = [user for user, _ in value.uses()]
        stats = channels.get(value.name or "")
        if stats is None or value.is_graph_output() or not _all_products(value):
            continue
        largest = np.max([_rows(r) for r in readers], axis=0)
        factor = _factor(stats.largest, largest)
        if factor is None:
            continue
        for index in operands:
            if index < len(node.inputs) and node.inputs[index] is not None:
                _replace(model, node, index, array_of(node.inputs[index]) / factor)
        for reader in readers:
            weights = array_of(reader.inputs[1])
            axis = 1 if _is_transposed(reader) else 0
            _replace(model, reader, 1, weights * _along(factor, axis, 2))
        count += 1
    return count


def _scales_last(node: ir.Node, operands: tuple[int, ...]) -> bool:
    """Whether the node scales each channel of the last axis by constants of its own."""
    attr = node.attributes.get("axis")
    size = node.outputs[0].shape
    if size is None or (attr is not None and attr.as_int() not in (-1, len(size) - 1)):
        return False
    present = [i for i in operands if i < len(node.inputs) and node.inputs[i] is not None]
    return all(_is_own(node, i) and array_of(node.inputs[i]).ndim == 1 for i in present) and (
        1 in present
    )


def _all_products(value: ir.Value) -> bool:
    uses = list(value.uses())
    return bool(uses) and all(
        user.op_type in ("MatMul", "Gemm")
        and not user.domain
        and index == 0
        and user.graph is value.graph
        and _is_own(user, 1)
        and array_of(user.inputs[1]).ndim == 2
        and "transA" not in user.attributes
        for user, index in uses
    )


def _is_transposed(node: ir.Node) -> bool:
    attr = node.attributes.get("transB")
    return attr is not None and bool(attr.as_int())


def _rows(node: ir.Node) -> Vector:
    """Return the largest weight that each input channel is multiplied with."""
    weights = np.abs(array_of(node.inputs[1]))
    return np.asarray(weights.max(axis=0 if _is_transposed(node) else 1), np.float64)


def _factor(activations: Vector, weights: Vector) -> Vector | None:
    if activations.shape != weights.shape:
        return None
    both = (activations > 0) & (weights > 0)
    ratio = np.ones_like(activations)
    ratio[both] = activations[both] ** _BALANCE / weights[both] ** (1 - _BALANCE)
    # Only the spread between channels matters; on the whole the activations keep their size.
    middle = float(np.median(ratio[both])) if both.any() else 1.0
    return _limited(np.where(both, ratio / middle, 1.0))


def _limited(factor: Vector) -> Vector:
    return np.asarray(np.clip(factor, 1.0 / _LARGEST, _LARGEST))


def _along(factor: Vector, axis: int, rank: int) -> Vector:
    shape = [1] * rank
    shape[axis] = factor.size
    return factor.reshape(shape)


def normalised_products(model: ir.Model) -> list[str]:
    """Return the names of the values whose channels ``smooth`` wants to know."""
    return [
        n.outputs[0].name or ""
        for n in model.graph
        if (operands := _NORMS.get(n.op_type)) is not None
        and not n.domain
        and _scales_last(n, operands)
        and _all_products(n.outputs[0])
    ]


def _replace(model: ir.Model, node: ir.Node, index: int, array: Array) -> None:
    old = node.inputs[index]
    name = f"{old.name if old is not None else 'constant'}.even"
    fresh = add_initializer(model.graph, Namer(model).fresh(name), array.astype(np.float32))
    node.replace_input_with(index, fresh)
    name = "" if old is None else old.name or ""
    if old is not None and not list(old.uses()) and name in model.graph.initializers:
        model.graph.initializers.pop(name)
