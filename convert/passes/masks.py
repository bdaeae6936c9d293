"""What can be known of an attention mask before it is computed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import attr, constant, is_op
from edgeinfer.convert.passes.match import scalar

_LARGEST = 1 << 24
"""Masks of more elements are not read."""


def may_leave_no_key(node: ir.Node) -> bool:
    """Whether a query of an ``Attention`` may have no key that answers it."""
    mask, lengths = (*node.inputs, *[None] * 7)[3:7:3]
    if mask is None:
        return lengths is not None
    is_cut = lengths is not None or bool(attr(node, "is_causal", 0))
    return is_cut or not keeps_a_key(mask)


def keeps_a_key(mask: ir.Value | None) -> bool:
    """Whether every query row of a mask is sure to leave one key: finite where it is added.

    Only a row that is minus infinity all along makes a softmax undefined: ``Softmax`` gives NaN
    and ``Attention`` zeros. ``(1 - m) * -3.4e38`` overflows to such a row for an integer ``m`` of
    -1, so a flag counts as one only when it was a bool.
    """
    if mask is None:
        return True
    tensor = constant(mask)
    if tensor is not None:
        if tensor.size > _LARGEST:
            return False
        row = np.atleast_1d(tensor.numpy())
        if tensor.dtype == ir.DataType.BOOL:
            return bool(row.any(axis=-1).all())
        return tensor.dtype.is_floating_point() and bool(np.isfinite(row).any(axis=-1).all())
    return _finite(mask, depth=8)


def _finite(value: ir.Value | None, depth: int) -> bool:
    """Whether a value is sure to be finite: built from finite constants, flags and choices."""
    tensor = constant(value)
    if tensor is not None:
        if tensor.size > _LARGEST or not tensor.dtype.is_floating_point():
            return False
        return bool(np.isfinite(tensor.numpy()).all())
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    if is_op(node, "Where"):
        return all(_finite(v, depth - 1) for v in node.inputs[1:])
    if is_op(node, "Cast"):
        source = node.inputs[0]
        return source is not None and source.dtype is not None and source.dtype.is_integer()
    if is_op(node, *MOVES):
        return _finite(node.inputs[0], depth - 1)
    if is_op(node, "Mul"):
        return _flag_times_constant(node, depth)
    return False


def _flag_times_constant(node: ir.Node, depth: int) -> bool:
    """Whether one factor is a finite constant and the other one a flag."""
    for factor, other in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        number = scalar(factor, other)
        if number is not None and np.isfinite(number) and other is not None:
            return _is_flag(other, depth - 1)
    return False


def _is_flag(value: ir.Value, depth: int) -> bool:
    """Whether a value is 0 or 1: a cast flag, or one minus it."""
    node = value.producer()
    if node is None or depth <= 0:
        return False
    if is_op(node, "Sub"):
        left, right = node.inputs
        return scalar(left, right) == 1.0 and right is not None and _is_flag(right, depth - 1)
    if is_op(node, *MOVES):
        return node.inputs[0] is not None and _is_flag(node.inputs[0], depth - 1)
    source = node.inputs[0] if is_op(node, "Cast") else None
    return source is not None and (source.dtype == ir.DataType.BOOL or _is_flag(source, depth - 1))
