"""Constants, conditionals and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import ALL, OPS
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreai.scope import Scope


@OPS.lower("Constant", since=24)
def constant(
    g: Builder,
    *,
    sparse_value: Any = None,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Tensor:
    """A constant inside a body; all others are initializers by now."""
    if value is not None:
        return g.const(value)
    for one, many, dtype in (
        (value_float, value_floats, np.float32),
        (value_int, value_ints, np.int64),
    ):
        if one is not None or many is not None:
            return g.const(many if one is None else one, dtype)
    raise Refusal("strings and sparse values have no tensor", "unsupported_dtype")


def _kind(value: ir.Value, other: ir.Value | None = None) -> tuple[Any, Shape]:
    """Element type and shape that a result has whatever branch gives it."""
    if value.dtype is None or value.shape is None:
        raise Refusal(f"result {value.name!r} of a body has no known shape", "dynamic_shape")
    shape: list[int | None] = [s if isinstance(s, int) else None for s in value.shape]
    if other is not None:
        if other.shape is None or len(other.shape) != len(shape):
            raise Refusal("its branches give different ranks", "dynamic_shape")
        if other.dtype != value.dtype:
            raise Refusal("its branches give different types", "unsupported_dtype")
        shape = [a if a == b else None for a, b in zip(shape, other.shape, strict=True)]
    return value.dtype.numpy(), tuple(shape)


@OPS.lower("If", since=24, dtypes=ALL)
def if_(
    g: Scope, cond: Tensor, *, else_branch: ir.Graph, then_branch: ir.Graph
) -> tuple[Tensor, ...]:
    """One of two bodies."""
    pairs = zip(then_branch.outputs, else_branch.outputs, strict=True)
    kinds = [_kind(a, b) for a, b in pairs]
    types = [g.type_of(d, s) for d, s in kinds]
    results, blocks = g.dialect.if_(types, g.reshape(cond, []).value)
    for block, body in zip(blocks, (then_branch, else_branch), strict=True):
        with g.inside(block):
            made = g.lower_body(body, [])
            g.dialect.yield_([g.typed(t, s).value for t, (_, s) in zip(made, kinds, strict=True)])
    return tuple(g.wrap(v) for v in ([results] if len(kinds) == 1 else results))


@OPS.lower("Loop", since=24, dtypes=ALL)
def loop(
    g: Scope,
    m: Tensor | None = None,
    cond: Tensor | None = None,
    *v_initial: Tensor,
    body: ir.Graph,
) -> tuple[Tensor, ...]:
    """A loop; what it collects grows in a buffer, so the number of turns must be bounded."""
    carried = len(v_initial)
    collected = body.outputs[1 + carried :]
    if collected and (m is None or (cond is not None and not _is_true(cond))):
        raise Refusal("collects an unknown number of results", "dynamic_shape")
    if m is None and cond is None:
        raise Refusal("has no end")
    limit = g.reshape(m, []) if m is not None else None
    kinds: list[tuple[Any, Shape]] = [(np.int64, ()), (np.bool_, ())]
    kinds += [_joined(t, v) for t, v in zip(v_initial, body.outputs[1:], strict=False)]
    starts = [g.const(np.int64(0)), g.reshape(cond, []) if cond is not None else g.const(True)]
    starts += [g.typed(t, s) for t, (_, s) in zip(v_initial, kinds[2:], strict=True)]
    for value in collected:
        dtype, shape = _kind(value)
        if None in shape or limit is None:
            raise Refusal(f"collects {value.name!r} of unknown size", "dynamic_shape")
        room = g.const(np.zeros((1, *(1 for _ in shape)), dtype))
        count = int(limit.data) if limit.data is not None else limit
        starts.append(g.expand(room, [count, *(s for s in shape if s is not None)]))
        kinds.append((dtype, starts[-1].shape))

    def more(now: list[Tensor]) -> Tensor:
        if limit is None:
            return now[1]
        return g.binary("and", g.less(now[0], limit), now[1])

    def turn(now: list[Tensor]) -> list[Tensor]:
        inputs = [now[0], now[1], *now[2 : 2 + carried]]
        made = g.lower_body(body, inputs)
        after = [g.binary("add", now[0], 1), g.reshape(made[0], [])]
        after += made[1 : 1 + carried]
        for held, piece in zip(now[2 + carried :], made[1 + carried :], strict=True):
            at = g.reshape(now[0], [1, 1])
            after.append(g.scatter(held, at, g.insert_axes(piece, [0])))
        return [g.typed(t, s) for t, (_, s) in zip(after, kinds, strict=True)]

    return tuple(g.loop(starts, more, turn, kinds)[2:])


def _is_true(cond: Tensor) -> bool:
    return cond.data is not None and bool(cond.data.all())


def _joined(start: Tensor, after: ir.Value) -> tuple[Any, Shape]:
    """What a carried value is in every turn."""
    dtype, shape = _kind(after)
    if dtype != start.dtype or len(shape) != start.rank:
        raise Refusal("a carried value changes its type or rank", "dynamic_shape")
    return dtype, tuple(a if a == b else None for a, b in zip(start.shape, shape, strict=True))
