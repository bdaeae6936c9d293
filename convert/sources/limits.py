"""Refuses models whose few bytes ask for work without end, before any of it is done."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from edgeinfer.backends.foreign_engines import OPERATOR
from edgeinfer.convert.lower.core.named import MalformedRefusal
from edgeinfer.convert.lower.numbers import refuse_numbers
from edgeinfer.convert.lower.tabular import DOMAIN
from edgeinfer.convert.lower.tabular.forest import NoTreeError, check_trees
from edgeinfer.errors import SourceError

MOST_NODES = 10_000_000
"""Nodes that a model may have once its functions are put where they are called."""

MOST_STEPS = 10_000_000
"""Nodes that a model may run, those in loops as often as it says itself that they turn.

Engines take a microsecond or more for each, and a model is run some hundred times.
"""

MOST_TENSORS = 10_000
"""Inputs, and outputs, of a model; engines take time that grows with the square of them."""

MOST_NAME = 16 << 10
"""Characters of a name of a tensor, a node or an operator."""

_MAIN = ("", "ai.onnx")

_MOST_FOUND = 20

_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
_PACKED = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1)
_FIELDS = {
    onnx.TensorProto.FLOAT: "float_data",
    onnx.TensorProto.COMPLEX64: "float_data",
    onnx.TensorProto.DOUBLE: "double_data",
    onnx.TensorProto.COMPLEX128: "double_data",
    onnx.TensorProto.INT64: "int64_data",
    onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.UINT64: "uint64_data",
    onnx.TensorProto.STRING: "string_data",
}
"""Where a tensor's data lies by its type; of the others in ``int32_data``. Source: onnx.proto."""


def check_limits(model: ir.Model, name: str) -> None:
    """Refuse a model that asks for more than anybody can compute, or holds somebody's engine.

    Raises:
        SourceError: says which limit, and where.
    """
    _check_engines(model, name)
    for what, values in (("inputs", model.graph.inputs), ("outputs", model.graph.outputs)):
        if len(values) > MOST_TENSORS:
            count = f"{len(values)} {what}, at most {MOST_TENSORS}"
            raise SourceError(f"{name}: has {count} are read; put them together into fewer tensors")
    _check_names(model, name)
    _check_types(model, name)
    _check_data(model, name)
    _check_trees(model, name)
    check_numbers(model, name)
    order = _callees_first(model)
    _check_nodes(model, order, name)
    _check_turns(model, order, name)


def _check_engines(model: ir.Model, name: str) -> None:
    nodes = (node for graph in _graphs(model) for node in graph)
    found = [node.name or f"#{i}" for i, node in enumerate(nodes) if node.op_type == OPERATOR]
    if found:
        shown = ", ".join(map(repr, found[:3])) + (", ..." if len(found) > 3 else "")
        raise SourceError(
            f"{name}: {OPERATOR} ({shown}) holds an engine that was compiled for another device, "
            "which is machine code; give the model that it was built from"
        )


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _check_names(model: ir.Model, name: str) -> None:
    for graph in _graphs(model):
        for named in _names(graph):
            if named is not None and len(named) > MOST_NAME:
                raise SourceError(
                    f"{name}: the name {named[:40]!r}… has {len(named)} characters, at most "
                    f"{MOST_NAME} are read"
                )


def _names(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in (*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from (node.name, node.op_type, node.domain)
        yield from (value.name for value in node.outputs)


def _check_types(model: ir.Model, name: str) -> None:
    """Refuse inputs and attributes of no type; other values get theirs by inference."""
    nothing = ir.DataType.UNDEFINED
    for value in model.graph.inputs:
        if value.dtype is None or value.dtype == nothing:
            raise SourceError(f"{name}: an invalid ONNX model: input {value.name!r} has no type")
    for graph in _graphs(model):
        values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
        for node in graph:
            values += node.outputs
            for attribute in node.attributes.values():
                if not attribute.is_ref() and (why := _worthless(attribute)):
                    where = f"attribute {attribute.name!r} of {node.name or node.op_type!r}"
                    raise SourceError(f"{name}: an invalid ONNX model: {where} {why}")
        for value in values:
            if value.dtype == nothing:
                value.type = None


def _worthless(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.UNDEFINED:
        return "has no type"
    if attribute.value is None:
        return "has no value"
    # Reading it looks at the type of its elements.
    is_tensor = attribute.type == ir.AttributeType.TENSOR
    if is_tensor and getattr(attribute.value, "dtype", None) in (None, ir.DataType.UNDEFINED):
        return "has data of no type"
    return ""


def _check_data(model: ir.Model, name: str) -> None:
    """Refuse constants whose data is not of their own type and size; reading them would fail."""
    for graph in _graphs(model):
        tensors = [(v.name, v.const_value) for v in graph.initializers.values()]
        for node in graph:
            tensors.extend(
                (node.name or node.op_type, attribute.as_tensor())
                for attribute in node.attributes.values()
                if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
            )
        for who, tensor in tensors:
            if isinstance(tensor, ir.serde.TensorProtoTensor) and (why := _unreadable(tensor)):
                raise SourceError(f"{name}: an invalid ONNX model: the data of {who!r} {why}")


def _unreadable(tensor: ir.serde.TensorProtoTensor) -> str:
    proto = tensor.raw
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "has no type"
    if any(size < 0 for size in proto.dims):
        return f"has the sizes {list(proto.dims)[:8]}"
    count = math.prod(proto.dims)
    if proto.HasField("raw_data"):
        if proto.data_type == onnx.TensorProto.STRING:
            return "is text as raw bytes"
        wanted, received = math.ceil(count * tensor.dtype.bitwidth / 8), len(proto.raw_data)
        return "" if wanted == received else f"has {received} bytes, its sizes say {wanted}"
    field = _FIELDS.get(proto.data_type, "int32_data")
    others = {*_FIELDS.values(), "int32_data"} - {field}
    if wrong := next((other for other in sorted(others) if len(getattr(proto, other))), None):
        return f"lies in {wrong}, of its type it is in {field}"
    if proto.data_type in _PACKED:
        count = math.ceil(count * tensor.dtype.bitwidth / 8)
    wanted = count * 2 if proto.data_type in _COMPLEX else count
    received = len(getattr(proto, field))
    return "" if wanted == received else f"has {received} elements, its sizes say {wanted}"


def check_numbers(model: ir.Model, name: str) -> None:
    """Refuse numbers that no operator means; see ``refuse_numbers``.

    Raises:
        SourceError: names the nodes.
    """
    found = []
    for graph in _graphs(model):
        for number, node in enumerate(graph):
            try:
                refuse_numbers(node)
            except MalformedRefusal as e:
                found.append(f"node {node.name or f'#{number}'!r} ({node.op_type}): {e.detail}")
    if found:
        shown = "; ".join(found[:_MOST_FOUND]) + ("; ..." if len(found) > _MOST_FOUND else "")
        raise SourceError(f"{name}: {shown}: no engine can compute this")


def _check_trees(model: ir.Model, name: str) -> None:
    for graph in _graphs(model):
        for node in graph:
            if node.domain == DOMAIN and node.op_type.startswith("TreeEnsemble"):
                try:
                    check_trees(node)
                except NoTreeError as e:
                    raise SourceError(f"{name}: node {node.name or node.op_type!r}: {e}") from e


def _callees_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Return the functions, each behind those that it calls; one that calls itself is behind some.

    Without recursion: functions that call each other may be as many as the file has bytes.
    """
    done: dict[ir.OperatorIdentifier, bool] = {}
    order = []
    for start in model.functions:
        open_ = [start]
        while open_:
            key = open_[-1]
            calls = () if key in done else _calls(model, key)
            done.setdefault(key, False)
            if waiting := [call for call in calls if call not in done]:
                open_.extend(dict.fromkeys(waiting))
                continue
            if not done[key]:
                done[key] = True
                order.append(key)
            open_.pop()
    return order


def _calls(model: ir.Model, key: ir.OperatorIdentifier) -> list[ir.OperatorIdentifier]:
    """Return the functions that one calls, as often as it does."""
    called = (node.op_identifier() for node in model.functions[key].all_nodes())
    return [call for call in called if call in model.functions]


def _check_nodes(model: ir.Model, order: list[ir.OperatorIdentifier], name: str) -> None:
    """Count nodes as inlining would make them, each function once."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key in order:
        # One that calls itself stays a call; what refuses it says so.
        sizes[key] = _grown([n.op_identifier() for n in model.functions[key].all_nodes()], sizes)
    total = _grown((n.op_identifier() for g in model.graphs() for n in g), sizes)
    if total > MOST_NODES:
        raise SourceError(
            f"{name}: its functions call each other so often that it has more than {MOST_NODES} "
            "nodes; export it without functions inside each other"
        )


def _grown(
    calls: Iterator[ir.OperatorIdentifier] | list[ir.OperatorIdentifier],
    sizes: dict[ir.OperatorIdentifier, int],
) -> int:
    """Add up; more than the limit is as good as the limit, and stays a small number."""
    total = 0
    for call in calls:
        total += max(1, sizes.get(call, 1))
        if total > MOST_NODES:
            break
    return total


def _check_turns(model: ir.Model, order: list[ir.OperatorIdentifier], name: str) -> None:
    """Add up the nodes that run, those in loops and in functions as often as they do."""
    times: dict[ir.OperatorIdentifier, int] = {}
    graphs = [(model.graph, 1, "")]
    total = 0
    for key in (None, *reversed(order)):
        if key is not None:
            function = model.functions[key]
            graphs = [(function.graph, times.get(key, 1), f"function {function.name!r}")]
        while graphs:
            inside, outer, where = graphs.pop()
            # A turn of nothing takes time, too.
            total += outer * max(1, len(inside))
            if total > MOST_STEPS:
                raise SourceError(
                    f"{name}: with {where} its loops take more than {MOST_STEPS} steps (turns "
                    "times nodes), whatever it is given; export it with operators that take whole "
                    "tensors in place of loops"
                )
            for node in inside:
                if (call := node.op_identifier()) in model.functions:
                    times[call] = min(times.get(call, 0) + outer, MOST_STEPS + 1)
                turns, title = outer, where
                if node.op_type == "Loop" and node.domain in _MAIN:
                    turns = min(outer * _least_turns(node), MOST_STEPS + 1)
                    result = node.outputs[0].name if node.outputs else ""
                    title = f"Loop {node.name or result!r}"
                graphs.extend((graph, turns, title) for graph in _subgraphs(node))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _least_turns(node: ir.Node) -> int:
    """Return the turns of a loop that nothing ends early; 1 where something may."""
    attribute = node.attributes.get("body")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return 1
    body = attribute.as_graph()
    count = _constant(node.inputs[0]) if node.inputs else None
    going = node.inputs[1] if len(node.inputs) > 1 else None
    if count is None and node.inputs and node.inputs[0] is not None:
        return 1
    if going is not None and _constant(going) != 1:
        return 1
    if not body.outputs or not _stays_true(body.outputs[0], body):
        return 1
    # Without a count it never ends.
    return MOST_STEPS + 1 if count is None else max(1, count)


def _stays_true(value: ir.Value | None, body: ir.Graph) -> bool:
    """Whether the condition that a body gives is the one that it was given, or always true."""
    for _ in range(64):
        if value is None:
            return False
        if len(body.inputs) > 1 and value is body.inputs[1]:
            return True
        producer = value.producer()
        if producer is None or producer.op_type not in ("Identity", "Cast"):
            return _constant(value) == 1
        value = producer.inputs[0]
    return False


def _constant(value: ir.Value | None) -> int | None:
    """Return the number that a value always is; None where that is not known."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return int(tensor.numpy().reshape(-1)[0])
