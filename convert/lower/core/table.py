"""The table of shared lowerings, and how a target takes them over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import wraps
from typing import Any, Literal

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry
from edgeinfer.convert.lower.signature import of_schema
from edgeinfer.records import dataclass

Body = Callable[..., Any]
Kind = Literal["elements", "tensors", "reduction", "moved"]
SUMS = ("Add", "Sub", "Mul")
SIGNS = ("Abs", "Neg", "Sign")
LOGIC = ("And", "Or", "Xor", "Not")
POOLS = ("GlobalAveragePool", "GlobalMaxPool")
NORMS = (
    *("LayerNormalization", "RMSNormalization", "InstanceNormalization"),
    *("GroupNormalization", "BatchNormalization"),
)
"""Those whose bodies choose where single precision is needed."""

Write = Callable[[Any, Body, tuple[Any, ...]], Any]
"""Writes a body for a target: takes its builder, the body and the operands."""


@dataclass(frozen=True, slots=True)
class SharedLowering:
    """One operator's lowering.

    Attributes:
        op: its name.
        body: takes a portable builder, the operands and the attributes that it names.
        kind: what it is made of: arithmetic of elements, which broadcast; whole tensors; a
            reduction of one tensor over axes; or several steps with moves between them.
        consts: inputs that must be known.
    """

    op: str
    body: Body
    kind: Kind
    consts: tuple[str, ...] = ()


_TABLE: dict[str, SharedLowering] = {}


def elementwise(op: str) -> Callable[[Body], Body]:
    """Register a lowering that takes ``Elements``.

    Raises:
        ValueError: the operator has one.
    """
    return _register(op, "elements")


def whole(op: str) -> Callable[[Body], Body]:
    """Register a lowering that takes ``Tensors``.

    Raises:
        ValueError: the operator has one.
    """
    return _register(op, "tensors")


def moved(op: str, consts: tuple[str, ...] = ()) -> Callable[[Body], Body]:
    """Register a lowering that takes ``Moved``.

    Args:
        op: its name.
        consts: inputs that must be known.

    Raises:
        ValueError: the operator has one.
    """
    return _register(op, "moved", consts)


def reduction(op: str) -> Callable[[Body], Body]:
    """Register a reduction: it takes ``Tensors``, one of them, its axes, and whether these stay.

    Raises:
        ValueError: the operator has one.
    """

    def register(body: Body) -> Body:
        def reduced(
            g: Any, data: Any, axes: Any = None, *, keepdims: int, noop_with_empty_axes: int
        ) -> Any:
            return body(g, data, g.axes(data, axes, noop_with_empty_axes), bool(keepdims))

        reduced.__name__, reduced.__doc__ = body.__name__, body.__doc__
        _register(op, "reduction")(reduced)
        return body

    return register


def _register(op: str, kind: Kind, consts: tuple[str, ...] = ()) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        if op in _TABLE:
            raise ValueError(f"{op} is lowered by {_TABLE[op].body.__qualname__}")
        _TABLE[op] = SharedLowering(op, body, kind, consts)
        return body

    return register


def adopt(
    ops: Registry,
    writers: Mapping[str, Write],
    *,
    dtypes: Mapping[str, AbstractSet[ir.DataType]],
    default: AbstractSet[ir.DataType],
    known_axes: bool = True,
    domains: Mapping[str, str] | None = None,
) -> None:
    """Register every shared lowering that a target has no own for.

    Args:
        ops: the target's table, with its own lowerings in it.
        writers: what writes bodies of each kind that the target takes; or of an operator, by its
            name.
        dtypes: element types by operator, where they are not the usual ones.
        default: the usual element types.
        known_axes: axes of reductions must be known before a run.
        domains: domains by operator, where the layout pass moves it into one.
    """
    from edgeinfer.convert.lower import ops as _families  # noqa: F401  (fills the table)

    consts = {"axes"} if known_axes else set()
    for shared in _TABLE.values():
        domain = (domains or {}).get(shared.op, "")
        if ops.find(shared.op, domain) is not None:
            continue
        write = writers.get(shared.op) or writers.get(shared.kind)
        if write is None:
            continue
        kinds = frozenset(dtypes.get(shared.op, default))
        function, reads = _lowering(shared.body, write), _read(shared.body)
        signature = of_schema(shared.op)
        own = consts | set(shared.consts)
        ops.add(shared.op, function, signature, reads, own, domain=domain, dtypes=kinds)


def _lowering(body: Body, write: Write) -> Body:
    @wraps(body)
    def lowered(g: Any, *operands: Any, **given: Any) -> Any:
        return write(g, lambda e, *values: body(e, *values, **given), operands)

    return lowered


def _read(body: Body) -> list[str]:
    parameters = inspect.signature(body).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
