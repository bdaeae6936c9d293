"""Which operator-set version to write: the oldest in which every node means the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.infra import attr, is_op
from edgeinfer.convert.passes.masks import may_leave_no_key

OLDEST = 21
"""The oldest version worth writing."""

_RUNTIME_FOR = {21: "1.18", 22: "1.21", 23: "1.23", 24: "1.24"}
"""First ONNX Runtime release that reads a version of the default domain.

Whether its numbers are right the test vectors say on the device.
Source: https://onnxruntime.ai/docs/reference/compatibility.html
"""

_IR_VERSION = {21: 10, 22: 10, 23: 11, 24: 12}
"""The file-format version that came with each operator-set version."""

_CLARIFIED = frozenset(
    {
        "Attention",
        "AveragePool",
        "MaxPool",
        "Cast",
        "CastLike",
        "DequantizeLinear",
        "QuantizeLinear",
    }
)
"""Operators whose text changed between versions 21 and 24 without a change of meaning for a node
that leaves the new inputs and attributes alone (of ``Attention``, also the scores it can give out,
whose order of steps was corrected; of ``QuantizeLinear``, also a scale of another type)."""


def choose(model: ir.Model) -> int:
    """Return the version to write, at most the model's own."""
    current = model.opset_imports.get("", OLDEST)
    nodes = [node for _, node in walk(model) if not node.domain]
    oldest = min(current, OLDEST)
    while oldest < current and not all(_same_meaning(n, oldest, current) for n in nodes):
        oldest += 1
    return oldest


def write_as(model: ir.Model, version: int) -> None:
    """Set the version, in place, on the model and on its graphs."""
    for graph in model.graphs():
        if "" in graph.opset_imports or graph is model.graph:
            graph.opset_imports[""] = version
    for _, node in walk(model):
        if not node.domain:
            _drop_new_defaults(node, version)
            node.version = None
    model.ir_version = min(model.ir_version, newest_format(version))


def newest_format(version: int) -> int:
    """Return the newest version of the file format that whoever reads this opset reads."""
    return _IR_VERSION.get(max(version, OLDEST), max(_IR_VERSION.values()))


def runtime_for(model: ir.Model, version: int, installed: str) -> str:
    """Return the requirement on ONNX Runtime for a model that is written as this version.

    A version that no table entry knows asks for the release it was probed with.
    """
    found = _RUNTIME_FOR.get(max(version, OLDEST), installed)
    return f">={max(found, *(needed_by(node) for _, node in walk(model)), key=release)}"


def needed_by(node: ir.Node) -> str:
    """Return the first release that computes a node right, whatever version it is written as."""
    return next((first for first, is_wrong in _WRONG_BEFORE if is_wrong(node)), "0.0")


def has_empty_rows(node: ir.Node) -> bool:
    """Whether it is an ``Attention`` that may have a query without a key: NaN, or a mean of all."""
    return is_op(node, "Attention") and may_leave_no_key(node)


def _counts_uneven_padding(node: ir.Node) -> bool:
    """Whether it is a mean that counts padding which is not the same everywhere."""
    if not is_op(node, "AveragePool") or not attr(node, "count_include_pad", 0):
        return False
    is_even = len(set(attr(node, "pads", ()))) < 2 and attr(node, "auto_pad", "NOTSET") == "NOTSET"
    return not is_even or bool(attr(node, "ceil_mode", 0))


def _lacks_parameters(node: ir.Node) -> bool:
    """Whether it is a recurrence whose activations take parameters that it does not give."""
    names = {str(name).lower() for name in attr(node, "activations", ())}
    is_one = is_op(node, "RNN", "LSTM", "GRU") and "activation_alpha" not in node.attributes
    return is_one and not names.isdisjoint(_WITH_PARAMETERS)


_WITH_PARAMETERS = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")


def _quantizes_halves(node: ir.Node) -> bool:
    """Whether it makes integers of half precision, which are cut off instead of rounded."""
    value = node.inputs[0] if node.inputs else None
    is_half = value is not None and value.dtype == ir.DataType.FLOAT16
    return is_op(node, "QuantizeLinear") and is_half


def _sums_one(node: ir.Node) -> bool:
    """Whether it is an ``Einsum`` of one value that adds some of it up: its run failed."""
    if not is_op(node, "Einsum") or len(node.inputs) != 1:
        return False
    given, _, made = attr(node, "equation", "").partition("->")
    return not set(given) <= {*made, " "}


def _turns_one_score(node: ir.Node) -> bool:
    """Whether it turns the one score of two classes into their odds."""
    if node.domain != _TABLES or node.op_type != "LinearClassifier":
        return False
    is_one = len(attr(node, "intercepts", (0.0,))) == 1
    return is_one and attr(node, "post_transform", "NONE") != "NONE"


def _loses_nan(node: ir.Node) -> bool:
    """Whether it is an ``Erf``, which gave 1 for NaN."""
    return is_op(node, "Erf")


def _is_new_forest(node: ir.Node) -> bool:
    return node.domain == _TABLES and node.op_type == "TreeEnsemble"


_TABLES = "ai.onnx.ml"


_WRONG_BEFORE: tuple[tuple[str, Callable[[ir.Node], bool]], ...] = (
    ("1.30", _quantizes_halves),
    ("1.29", _lacks_parameters),
    ("1.28", has_empty_rows),
    ("1.27", _turns_one_score),
    ("1.27", _loses_nan),
    ("1.26", _counts_uneven_padding),
    ("1.26", _sums_one),
    ("1.24", _is_new_forest),
)
"""Releases of ONNX Runtime, each the first without a fault, and which nodes it is in. Found by
running tests on each."""


def release(version: str) -> tuple[int, ...]:
    """Return a release's first two numbers."""
    return tuple(map(int, version.split(".")[:2]))


def _same_meaning(node: ir.Node, old: int, new: int) -> bool:
    try:
        before = onnx.defs.get_schema(node.op_type, old, "")
        after = onnx.defs.get_schema(node.op_type, new, "")
    except onnx.defs.SchemaError:
        return False
    if before.since_version == after.since_version:
        return True
    if before.deprecated or (_text(before) != _text(after) and node.op_type not in _CLARIFIED):
        return False
    known = _operands(before)
    return (
        known == _operands(after)[: len(known)]
        and (len(node.inputs) <= len(before.inputs) or _takes_any_number(before))
        and (node.op_type != "Attention" or len(node.outputs) < 4)
        and (node.op_type != "QuantizeLinear" or _has_one_type(node))
        and all(_is_default(a, after) or a.name in before.attributes for a in _attrs(node))
        and all(_default(before, n) == _default(after, n) for n in before.attributes)
        and _takes_types(node, before)
    )


def _has_one_type(node: ir.Node) -> bool:
    value, scale = (v.dtype if v is not None else None for v in node.inputs[:2])
    return value is not None and value == scale


def _attrs(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _takes_any_number(schema: onnx.defs.OpSchema) -> bool:
    """Whether the last input stands for many, as the states of loops do."""
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(schema.inputs) and schema.inputs[-1].option == many


def _text(schema: onnx.defs.OpSchema) -> str:
    return " ".join((schema.doc or "").split())


def _operands(schema: onnx.defs.OpSchema) -> list[tuple[str, str]]:
    return [(p.name, str(p.option)) for p in (*schema.outputs, *schema.inputs)]


def _default(schema: onnx.defs.OpSchema, name: str) -> bytes | None:
    found = schema.attributes.get(name)
    return None if found is None else found.default_value.SerializeToString()


def _is_default(attribute: ir.Attr, schema: onnx.defs.OpSchema) -> bool:
    found = schema.attributes.get(attribute.name)
    if found is None or not found.default_value.name:
        return False
    return bool(ir.serde.deserialize_attribute(found.default_value).value == attribute.value)


def _takes_types(node: ir.Node, schema: onnx.defs.OpSchema) -> bool:
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    pairs = [*_pairs(node.inputs, schema.inputs), *_pairs(node.outputs, schema.outputs)]
    return all(
        value is None or value.type is None or _type_text(value) in allowed.get(text, {text})
        for value, text in pairs
    )


def _pairs(values: object, formals: object) -> list[tuple[ir.Value | None, str]]:
    names = [f.type_str for f in formals]  # type: ignore[attr-defined]
    items = list(values)  # type: ignore[call-overload]
    return [(v, names[min(i, len(names) - 1)]) for i, v in enumerate(items) if names]


def _type_text(value: ir.Value) -> str:
    return _spell(value.type)


def _spell(kind: ir.TypeProtocol | None) -> str:
    if isinstance(kind, ir.SequenceType):
        return f"seq({_spell(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_spell(kind.elem_type)})"
    return f"tensor({_ONNX_NAMES.get(kind.dtype, kind.dtype.name.lower())})" if kind else ""


_ONNX_NAMES = {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}


def _drop_new_defaults(node: ir.Node, version: int) -> None:
    try:
        known = onnx.defs.get_schema(node.op_type, version, "").attributes
    except onnx.defs.SchemaError:
        return
    for name in [n for n in node.attributes if n not in known]:
        del node.attributes[name]
