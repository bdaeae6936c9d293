"""Which loops of an element-wise block run over memory in one piece."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

Access = tuple[Any, list[Any]]
"""A buffer, and the index into it."""

_OF_VECTORS = frozenset(
    {
        *("sqrt", "rsqrt", "floor", "ceil", "trunc", "fabs", "reinterpret"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right"),
    }
)
"""Calls that LLVM has instructions for, as the polynomials of ``defs.math`` need them."""


def runs(block: Any, extents: list[int]) -> int:
    """How many of the last loops can be one loop over neighbouring elements; 0 for none.

    Each buffer is read or written along all of them, or not along any.

    Args:
        block: whose variables are the loops'.
        extents: Extents of the loops, 0 where one is open.
    """
    loops = [v.var for v in block.iter_vars]
    found = _accesses(block)
    if found is None or not extents or not extents[-1]:
        return 0
    best = 0
    for count in range(1, len(loops) + 1):
        part = list(zip(loops[-count:], extents[-count:], strict=True))
        if not all(e for _, e in part) or not all(_fits(a, part) for a in found):
            break
        best = count
    return best


def _accesses(block: Any) -> list[Access] | None:
    """All reads and writes; None where a condition decides whether memory is read."""
    found: list[Access] = []
    barred: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.expr.TensorLoad):
            found.append((node.source, list(node.indices)))
        elif isinstance(node, tirx.BufferStore):
            found.append((node.buffer, list(node.indices)))
        elif isinstance(node, tirx.IfThenElse | tirx.For) or _is_guarded(node):
            barred.append(node)

    tvm_ffi.structural_walk(block.body, (object, visit))
    return None if barred else found


def _is_guarded(node: Any) -> bool:
    """Whether a call cannot be one of vectors: a condition, or a function of C's library."""
    if not isinstance(node, tvm.ir.Call):
        return False
    name = str(getattr(node.op, "name", ""))
    return name.rpartition(".")[2] not in _OF_VECTORS


def _fits(access: Access, part: list[tuple[Any, int]]) -> bool:
    """Whether a buffer is taken along all these loops in their order, or along none."""
    buffer, index = access
    # What is 1 long is no loop.
    walked = [(v, e) for v, e in part if e != 1]
    used = [i for i in index if any(_uses(i, v) for v, _ in walked)]
    if not used:
        return True
    pairs = [(i, s) for i, s in zip(index, buffer.shape, strict=True) if _is_wide(s)]
    last = pairs[len(pairs) - len(walked) :]
    if len(used) != len(walked) or len(last) != len(walked):
        return False
    for at, ((found, size), (variable, extent)) in enumerate(zip(last, walked, strict=True)):
        if not _is_plain(found, variable):
            return False
        # The first of them may be a part of its axis.
        if at and not (isinstance(size, tirx.IntImm) and int(size.value) == extent):
            return False
    return True


def _is_wide(size: Any) -> bool:
    return not (isinstance(size, tirx.IntImm) and int(size.value) == 1)


def _uses(expression: Any, variable: Any) -> bool:
    seen: list[Any] = []
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, seen.append))
    return any(v.same_as(variable) for v in seen)


def _is_plain(expression: Any, variable: Any) -> bool:
    """Whether an index is the variable, or it and a number."""
    if isinstance(expression, tvm.ir.Var):
        return bool(expression.same_as(variable))
    if isinstance(expression, tirx.Add):
        return _is_plain(expression.a, variable) and isinstance(expression.b, tirx.IntImm)
    return False
