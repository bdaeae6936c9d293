"""Signatures of lowerings, from ONNX's schemas."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from edgeinfer.records import dataclass

REQUIRED: Any = inspect.Parameter.empty
"""Stands for the default of an attribute that has none."""

_OWN = "edgeinfer."
"""Prefix of domains whose operators are ONNX's, but for the order of their axes."""


@dataclass(frozen=True, slots=True)
class FormalInput:
    """An operand.

    Attributes:
        name: Its name.
        required: Whether every node has it.
        variadic: Whether it stands for any number of operands.
    """

    name: str
    required: bool
    variadic: bool


@dataclass(frozen=True, slots=True)
class OperatorSignature:
    """What a node of an operator may have.

    Attributes:
        inputs: Operands, in order.
        attributes: Defaults by name: None where the attribute is optional, or ``REQUIRED``.
    """

    inputs: tuple[FormalInput, ...]
    attributes: Mapping[str, Any]

    @property
    def variadic(self) -> bool:
        """Whether the last operand stands for any number."""
        return bool(self.inputs) and self.inputs[-1].variadic


def of_operator(
    op: str,
    domain: str,
    inputs: Sequence[inspect.Parameter],
    named: Sequence[inspect.Parameter],
) -> OperatorSignature:
    """Return the schema's signature for a function with these parameters.

    Operators that ONNX does not have are described by the parameters themselves.

    Raises:
        ValueError: the schema has other operands, or none of an attribute's name.
    """
    try:
        signature = of_schema(op, "" if domain.startswith(_OWN) else domain)
    except onnx.defs.SchemaError:
        return _of_parameters(inputs, named)
    formals = signature.inputs[: len(inputs)]
    variadic = [p.kind is inspect.Parameter.VAR_POSITIONAL for p in inputs]
    if variadic != [formal.variadic for formal in formals]:
        raise ValueError(f"{op}: takes {[p.name for p in inputs]}, expected {signature.inputs}")
    # Of a newer version of the standard than the installed one a parameter tells the default.
    newer = {p.name: p.default for p in named if p.name not in signature.attributes}
    if unknown := sorted(name for name, default in newer.items() if default is REQUIRED):
        raise ValueError(f"{op}: reads {unknown}, which the schema lacks")
    return OperatorSignature(formals, {**signature.attributes, **newer})


def of_schema(op: str, domain: str = "", version: int | None = None) -> OperatorSignature:
    """Return the signature of an operator, of its newest version unless another is named.

    Raises:
        onnx.defs.SchemaError: ONNX has no such operator.
    """
    newest = onnx.defs.onnx_opset_version() if version is None else version
    schema = onnx.defs.get_schema(op, newest, domain)
    option = onnx.defs.OpSchema.FormalParameterOption
    inputs = tuple(
        FormalInput(i.name, i.option == option.Single, i.option == option.Variadic)
        for i in schema.inputs
    )
    return OperatorSignature(inputs, {name: _default(a) for name, a in schema.attributes.items()})


def _of_parameters(
    inputs: Sequence[inspect.Parameter], named: Sequence[inspect.Parameter]
) -> OperatorSignature:
    variadic = inspect.Parameter.VAR_POSITIONAL
    return OperatorSignature(
        tuple(
            FormalInput(
                p.name, p.default is REQUIRED and p.kind is not variadic, p.kind is variadic
            )
            for p in inputs
        ),
        {p.name: p.default for p in named},
    )


def _default(attribute: Any) -> Any:
    if attribute.required:
        return REQUIRED
    if not attribute.default_value.name:
        return None
    return plain(ir.serde.deserialize_attribute(attribute.default_value))


def plain(attribute: ir.Attr) -> Any:
    """Return an attribute's value as a lowering gets it: tensors as arrays, lists as tuples."""
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.value.numpy()
    value = attribute.value
    return tuple(value) if isinstance(value, (list, tuple)) else value
