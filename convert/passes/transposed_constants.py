"""Constant matrices that are each other's transposes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant
from edgeinfer.types import Array

LEAST = 1024
"""Elements from which a matrix is worth the search."""

_PROBED = 64
"""Elements by which matrices are distinguished before they are compared as a whole."""


def twins(values: Iterable[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return the constant matrices that are each other's transposes, by both of them."""
    by_shape: dict[tuple[int, ...], list[ir.Value]] = {}
    found: dict[ir.Value, ir.Value] = {}
    for value in dict.fromkeys(values):
        tensor = constant(value)
        if tensor is None or tensor.size < LEAST or len(tensor.shape) != 2:
            continue
        shape = (int(str(tensor.shape[0])), int(str(tensor.shape[1])))
        for other in by_shape.get(shape[::-1], ()):
            twin = constant(other)
            if other in found or twin is None or twin.dtype != tensor.dtype:
                continue
            if _are_turned(tensor.numpy(), twin.numpy()):
                found[value], found[other] = other, value
                break
        by_shape.setdefault(shape, []).append(value)
    return found


def _are_turned(first: Array, other: Array) -> bool:
    positions = np.linspace(0, first.size - 1, _PROBED).astype(np.int64)
    rows, columns = np.unravel_index(positions, first.shape)
    # Bytes, so that a NaN is like itself and zero unlike minus zero.
    if first[rows, columns].tobytes() != other[columns, rows].tobytes():
        return False
    return np.ascontiguousarray(first.T).tobytes() == np.ascontiguousarray(other).tobytes()
