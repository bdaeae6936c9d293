"""Compare the signatures of a registry's lowerings with ONNX's own schemas."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Lowering, Registry, plain


def check_against_schema(registry: Registry, opset: int) -> list[str]:
    """Compare every signature with ONNX's schema; returns the differences.

    An entry that a newer one replaces is compared with the schema of its own version.
    """
    faults: list[str] = []
    for entry in registry:
        newest = registry.find(entry.op, opset, entry.domain)
        version = opset if newest is entry else entry.since
        try:
            schema = onnx.defs.get_schema(entry.op, version, entry.domain)
        except onnx.defs.SchemaError:
            faults.append(f"{entry.op}: no such operator at version {version}")
            continue
        faults += [f"{entry.op}: {fault}" for fault in _schema_faults(entry, schema)]
    return faults


def _schema_faults(entry: Lowering, schema: onnx.defs.OpSchema) -> Iterator[str]:
    if entry.since > schema.since_version and entry.since != schema.since_version:
        yield f"since {entry.since}, but the schema is of version {schema.since_version}"
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    ours = [p.name for p in entry.inputs]
    # Names are compared without case: ONNX writes the same operand as ``X`` and as ``x``.
    theirs = [i.name for i in schema.inputs]
    if [n.lower() for n in ours] != [n.lower() for n in theirs]:
        yield f"inputs {ours}, expected {theirs}"
    for parameter, formal in zip(entry.inputs, schema.inputs, strict=False):
        if (parameter.kind is inspect.Parameter.VAR_POSITIONAL) != (formal.option == variadic):
            yield f"input {formal.name!r}: variadic in one of the two only"
        elif formal.option != variadic and (parameter.default is None) != (
            formal.option == optional
        ):
            yield f"input {formal.name!r}: optional in one of the two only"
    if entry.attributes.keys() != schema.attributes.keys():
        yield f"attributes {sorted(entry.attributes)}, expected {sorted(schema.attributes)}"
    for name in entry.attributes.keys() & schema.attributes.keys():
        expected = _default(schema.attributes[name])
        received = entry.attributes[name].default
        if not _same(received, expected):
            yield f"attribute {name!r}: default {received!r}, expected {expected!r}"


def _default(attribute: Any) -> Any:
    if attribute.required:
        return inspect.Parameter.empty
    if not attribute.default_value.name:
        return None
    return plain(ir.serde.deserialize_attribute(attribute.default_value))


def _same(received: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(received, (int, float)):
        return bool(np.float32(received) == np.float32(expected))
    return bool(received is expected or received == expected)
