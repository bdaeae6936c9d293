"""Remove casts that change nothing and shorten chains of them."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    is_op,
    outcome,
    remove_node,
    replace_value,
)

T = ir.DataType
_INT_BITS = {T.INT8: 7, T.INT16: 15, T.INT32: 31, T.INT64: 63}
_UINT_BITS = {T.BOOL: 1, T.UINT8: 8, T.UINT16: 16, T.UINT32: 32, T.UINT64: 64}
_FLOAT_BITS = {T.FLOAT16: 11, T.BFLOAT16: 8, T.FLOAT: 24, T.DOUBLE: 53}
"""Bits of the mantissa: integers up to so many bits are exact."""
_WIDER: dict[T, frozenset[T]] = {
    T.FLOAT16: frozenset({T.FLOAT, T.DOUBLE}),
    T.BFLOAT16: frozenset({T.FLOAT, T.DOUBLE}),
    T.FLOAT: frozenset({T.DOUBLE}),
    T.DOUBLE: frozenset(),
}


class CleanCast(ir.passes.InPlacePass):
    """Remove casts to the type a value already has, and lossless first steps of a chain.

    Given: ``float16 x; a = Cast<to=float>(x); y = Cast<to=double>(a)``
    Result: ``y = Cast<to=double>(x)``

    ``float -> float16 -> float`` stays: the rounding in the middle is part of the result.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Shorten first, then remove what became a cast to the same type."""
        count = 0
        for node in all_nodes(model):
            if not is_op(node, "Cast") or not _is_plain(node):
                continue
            count += _shorten(node)
            x, y = node.inputs[0], node.outputs[0]
            same = x is not None and x.dtype is not None and x.dtype == attr(node, "to")
            if same and x is not None and replace_value(y, x):
                remove_node(node)
                count += 1
        return outcome(model, count)


def _is_plain(node: ir.Node) -> bool:
    to = T(attr(node, "to"))
    return to in _INT_BITS or to in _UINT_BITS or to in _FLOAT_BITS


def _shorten(node: ir.Node) -> int:
    """Skip a lossless cast before this one."""
    middle = node.inputs[0]
    first = None if middle is None else middle.producer()
    if first is None or middle is None or not is_op(first, "Cast") or not _is_plain(first):
        return 0
    source, to = first.inputs[0], T(attr(node, "to"))
    if source is None or source.dtype is None or not is_lossless(source.dtype, middle.dtype):
        return 0
    if source.dtype in _FLOAT_BITS and to not in _FLOAT_BITS and to != T.BOOL:
        # Out of range values have no defined result, and engines differ by the path taken.
        return 0
    node.replace_input_with(0, source)
    return 1


def is_lossless(source: T | None, target: T | None) -> bool:
    """Whether every value of one type is a value of the other."""
    if source is None or target is None:
        return False
    if source == target:
        return True
    if source in _FLOAT_BITS:
        return target in _WIDER[source]
    bits = _UINT_BITS.get(source) or _INT_BITS.get(source)
    if bits is None:
        return False
    if target in _FLOAT_BITS:
        return bits <= _FLOAT_BITS[target]
    if target in _INT_BITS:
        return bits <= _INT_BITS[target]
    return source in _UINT_BITS and target in _UINT_BITS and bits <= _UINT_BITS[target]
