"""The table of shared lowerings, and how a target takes them over.

Signatures come from ONNX's schemas: a shared lowering names only the attributes that it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Const, Refusal, Registry, plain

OPSET = 24
"""The version whose schemas count: every model is raised to it."""

Body = Callable[..., Any]
Kind = Literal["elements", "tensors", "reduction"]
COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
SUMS = ("Add", "Sub", "Mul")
LOGIC = ("And", "Or", "Xor", "Not")
NORMS = ("LayerNormalization", "RMSNormalization", "InstanceNormalization")
"""Those whose bodies choose where single precision is needed."""

Write = Callable[[Any, Body, tuple[Any, ...]], Any]
"""Writes a body for a target: takes its builder, the body and the operands."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One operator's lowering.

    Attributes:
        op: its name.
        body: takes a portable builder, the operands and the attributes that it names.
        kind: what it is made of: arithmetic of elements, which broadcast; whole tensors; or a
            reduction of one tensor over axes.
    """

    op: str
    body: Body
    kind: Kind


_TABLE: dict[str, Shared] = {}


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


def _register(op: str, kind: Kind) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        if op in _TABLE:
            raise ValueError(f"{op} is lowered by {_TABLE[op].body.__qualname__}")
        _TABLE[op] = Shared(op, body, kind)
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
        writers: what writes bodies of each kind; or of an operator, by its name.
        dtypes: element types by operator, where they are not the usual ones.
        default: the usual element types.
        known_axes: axes of reductions must be known before a run.
        domains: domains by operator, where the layout pass moves it into one.
    """
    from edgeinfer.convert.lower import ops as families

    for name in families.__all__:
        getattr(families, name)
    for shared in _TABLE.values():
        domain = (domains or {}).get(shared.op, "")
        if ops.find(shared.op, OPSET, domain) is not None:
            continue
        schema = onnx.defs.get_schema(shared.op, OPSET, "")
        write = writers.get(shared.op) or writers[shared.kind]
        function = _lowering(shared, schema, write, {"axes"} if known_axes else set())
        kinds = frozenset(dtypes.get(shared.op, default))
        since = 1 if domain else schema.since_version
        ops.lower(shared.op, since=since, domain=domain, dtypes=kinds)(function)


def _lowering(
    shared: Shared, schema: onnx.defs.OpSchema, write: Write, consts: AbstractSet[str]
) -> Body:
    defaults = {name: _default(a) for name, a in schema.attributes.items()}
    read = {
        p.name
        for p in inspect.signature(shared.body).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }

    def lowered(g: Any, *operands: Any, **attributes: Any) -> Any:
        for name in attributes.keys() - read:
            if attributes[name] != defaults[name]:
                raise Refusal(f"{name}={attributes[name]}")
        given = {n: attributes.get(n, defaults[n]) for n in read}
        return write(g, lambda e, *values: shared.body(e, *values, **given), operands)

    lowered.__name__ = lowered.__qualname__ = shared.body.__name__
    lowered.__doc__ = shared.body.__doc__
    lowered.__signature__ = _signature(schema, defaults, consts)  # type: ignore[attr-defined]
    return lowered


def _signature(
    schema: onnx.defs.OpSchema, defaults: Mapping[str, Any], consts: AbstractSet[str]
) -> inspect.Signature:
    option = onnx.defs.OpSchema.FormalParameterOption
    parameters = [inspect.Parameter("g", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    kind: Any
    default: Any
    for formal in schema.inputs:
        if formal.option == option.Variadic:
            kind, default = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.empty
        else:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            optional = formal.option == option.Optional
            default = None if optional else inspect.Parameter.empty
        note = Const if formal.name in consts else inspect.Parameter.empty
        parameters.append(inspect.Parameter(formal.name, kind, default=default, annotation=note))
    for name, attribute in schema.attributes.items():
        default = inspect.Parameter.empty if attribute.required else defaults[name]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _default(attribute: Any) -> Any:
    if not attribute.default_value.name:
        return None
    return plain(ir.serde.deserialize_attribute(attribute.default_value))
