"""The table of shared lowerings, and how a target takes them over.

Signatures come from ONNX's schemas: a shared lowering names only the attributes that it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal, Registry, plain

OPSET = 24
"""The version whose schemas count: every model is raised to it."""

Body = Callable[..., Any]
Write = Callable[[Any, Body, tuple[Any, ...]], Any]
"""Writes a body for a target: takes its builder, the body and the operands."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One operator's lowering.

    Attributes:
        op: its name.
        body: takes a portable builder, the operands and the attributes that it names.
        elements: whether it is arithmetic of elements alone; else it needs whole tensors.
    """

    op: str
    body: Body
    elements: bool


_TABLE: dict[str, Shared] = {}


def elementwise(op: str) -> Callable[[Body], Body]:
    """Register a lowering that takes ``Elements``.

    Raises:
        ValueError: the operator has one.
    """
    return _register(op, elements=True)


def whole(op: str) -> Callable[[Body], Body]:
    """Register a lowering that takes ``Tensors``.

    Raises:
        ValueError: the operator has one.
    """
    return _register(op, elements=False)


def _register(op: str, *, elements: bool) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        if op in _TABLE:
            raise ValueError(f"{op} is lowered by {_TABLE[op].body.__qualname__}")
        _TABLE[op] = Shared(op, body, elements)
        return body

    return register


def adopt(
    ops: Registry,
    *,
    elements: Write,
    tensors: Write,
    dtypes: Mapping[str, AbstractSet[ir.DataType]],
    default: AbstractSet[ir.DataType],
) -> None:
    """Register every shared lowering that a target has no own for.

    Args:
        ops: the target's table, with its own lowerings in it.
        elements: writes bodies of elements.
        tensors: writes those of whole tensors.
        dtypes: element types by operator, where they are not the usual ones.
        default: the usual element types.
    """
    from edgeinfer.convert.lower import ops as families

    for name in families.__all__:
        getattr(families, name)
    for shared in _TABLE.values():
        if ops.find(shared.op, OPSET) is not None:
            continue
        schema = onnx.defs.get_schema(shared.op, OPSET, "")
        write = elements if shared.elements else tensors
        function = _lowering(shared, schema, write)
        kinds = frozenset(dtypes.get(shared.op, default))
        ops.lower(shared.op, since=schema.since_version, dtypes=kinds)(function)


def _lowering(shared: Shared, schema: onnx.defs.OpSchema, write: Write) -> Body:
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
    lowered.__signature__ = _signature(schema, defaults)  # type: ignore[attr-defined]
    return lowered


def _signature(schema: onnx.defs.OpSchema, defaults: Mapping[str, Any]) -> inspect.Signature:
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
        parameters.append(inspect.Parameter(formal.name, kind, default=default))
    for name, attribute in schema.attributes.items():
        default = inspect.Parameter.empty if attribute.required else defaults[name]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _default(attribute: Any) -> Any:
    if not attribute.default_value.name:
        return None
    return plain(ir.serde.deserialize_attribute(attribute.default_value))
