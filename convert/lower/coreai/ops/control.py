"""Constants, conditionals and loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.registry import ALL, OPS
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.registry import Refusal

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreai.scope import Scope


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


@OPS.lower("If", dtypes=ALL)
def if_(
    g: Scope, cond: Tensor, *, else_branch: ir.Graph, then_branch: ir.Graph
) -> tuple[Tensor, ...]:
    """One of two bodies; what neither of them computes is chosen from.

    Apple's compiler makes a choice of such results itself, and then does not know its own operator.
    """
    pairs = list(zip(then_branch.outputs, else_branch.outputs, strict=True))
    kinds = [_kind(a, b) for a, b in pairs]
    flag = g.reshape(cond, [])
    chosen: dict[int, Tensor] = {}
    for index, (pair, (_, shape)) in enumerate(zip(pairs, kinds, strict=True)):
        found = [_brought(g, value) for value in pair]
        if found[0] is None or found[1] is None:
            continue
        if None in shape and not _alike(*pair):
            raise Refusal("chooses from constants of different sizes", "dynamic_shape")
        chosen[index] = g.select(flag, found[0], found[1])
    rest = [i for i in range(len(kinds)) if i not in chosen]
    if rest:
        types = [g.type_of(*kinds[i]) for i in rest]
        results, blocks = g.dialect.if_(types, flag.value)
        for block, body in zip(blocks, (then_branch, else_branch), strict=True):
            with g.inside(block):
                made = g.lower_body(body, [])
                g.dialect.yield_([g.typed(made[i], kinds[i][1]).value for i in rest])
        computed = [g.wrap(v) for v in ([results] if len(rest) == 1 else results)]
        chosen.update(zip(rest, computed, strict=True))
    return tuple(chosen[i] for i in range(len(kinds)))


def _brought(g: Scope, value: ir.Value | None) -> Tensor | None:
    """The tensor of a body's result that the body does not compute."""
    while value is not None and (node := value.producer()) is not None:
        if value in g.driver.values:
            break
        if node.op_type == "Constant" and (held := ir.convenience.get_const_tensor(value)):
            return g.const(held.numpy())
        if node.op_type != "Identity":
            return None
        value = node.inputs[0]
    if value is None:
        return None
    return g.driver.values[value] if value in g.driver.values else g.constant(value)


def _alike(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is not None and b.shape is not None and list(a.shape) == list(b.shape)


@OPS.lower("Loop", dtypes=ALL)
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
