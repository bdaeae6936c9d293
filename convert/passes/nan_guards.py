"""Remove guards against NaN after a softmax that cannot give one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    constant,
    is_op,
    outcome,
    rank,
    remove_node,
    replace_value,
    same_shape,
    small,
)

MASK_BYTES = 16 * 1024 * 1024
DEPTH = 64


class RemoveNanGuards(ir.passes.InPlacePass):
    """Remove ``0 where the softmax is NaN`` where no row can be fully masked.

    Given: ``s = Softmax(z); n = IsNaN(s); y = Where(n, 0, s)``
    Result: ``y = Softmax(z)``

    PyTorch writes the guard into every attention layer. With finite inputs a softmax is NaN only
    for a row of -inf, so the guard stays wherever such a row may come from a mask: from one that
    is an input, from one that is computed, and from a constant one with such a row.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Look at every Where."""
        count = 0
        for node in all_nodes(model):
            softmax = _guarded(node)
            if softmax is None or not _row_survives(softmax):
                continue
            if replace_value(node.outputs[0], softmax.outputs[0]):
                remove_node(node)
                count += 1
        return outcome(model, count)


def _guarded(node: ir.Node) -> ir.Node | None:
    """The Softmax behind ``Where(IsNaN(s), 0, s)``."""
    if not is_op(node, "Where") or None in node.inputs:
        return None
    condition, replacement, s = node.inputs
    if condition is None or s is None:
        return None
    test, softmax, zero = condition.producer(), s.producer(), small(replacement)
    if test is None or softmax is None or not is_op(test, "IsNaN") or test.inputs[0] is not s:
        return None
    if zero is None or zero.size != 1 or zero.ravel()[0] != 0 or zero.ndim > (rank(s) or 0):
        return None
    if not same_shape(s, node.outputs[0]) and zero.ndim != 0:
        return None
    return softmax if is_op(softmax, "Softmax") else None


def _row_survives(softmax: ir.Node) -> bool:
    """Whether each row has an element that is not -inf, given finite inputs."""
    z = softmax.inputs[0]
    if z is None:
        return False
    last = attr(softmax, "axis", -1) in (-1, (rank(z) or 0) - 1)
    producer = z.producer()
    if last and producer is not None and is_op(producer, "Add"):
        a, b = producer.inputs
        for scores, mask in ((a, b), (b, a)):
            if _keeps_a_column(mask) and is_finite(scores):
                return True
    return is_finite(z)


def _keeps_a_column(mask: ir.Value | None) -> bool:
    """Whether a constant mask leaves something in each of its rows."""
    tensor = constant(mask)
    if tensor is None or tensor.nbytes > MASK_BYTES or not tensor.shape:
        return False
    if tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
        return False
    array = tensor.numpy()
    if array.size == 0 or np.isnan(array).any() or np.isposinf(array).any():
        return False
    return not np.isneginf(array).all(axis=-1).any()


_COMPUTED = frozenset(
    {
        "MatMul",
        "Gemm",
        "Conv",
        "Einsum",
        "LayerNormalization",
        "RMSNormalization",
        "Softmax",
        "Tanh",
        "Sigmoid",
        "Relu",
        "Gelu",
    }
)


def is_finite(value: ir.Value | None, depth: int = DEPTH) -> bool:
    """Whether a value cannot be infinite in a run whose products and sums are finite.

    A graph input is not taken to be finite: an additive mask may be given as one.
    """
    if value is None or depth == 0:
        return False
    tensor = constant(value)
    if tensor is not None:
        small_enough = tensor.nbytes <= MASK_BYTES and tensor.dtype != ir.DataType.STRING
        return small_enough and bool(np.isfinite(tensor.numpy().astype(np.float64)).all())
    node = value.producer()
    if node is None:
        return False
    if is_op(node, *_COMPUTED):
        return True
    if is_op(node, *MOVES, "Neg"):
        return is_finite(node.inputs[0], depth - 1)
    if is_op(node, "Add", "Sub", "Mul"):
        return all(is_finite(v, depth - 1) for v in node.inputs)
    if is_op(node, "Div"):
        divisor = small(node.inputs[1])
        return (
            divisor is not None
            and bool(np.all(divisor != 0))
            and (is_finite(node.inputs[0], depth - 1))
        )
    if is_op(node, "Where"):
        return all(is_finite(v, depth - 1) for v in node.inputs[1:])
    return False
