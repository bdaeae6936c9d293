"""onnx's own shape inference, run on the graph without its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set

import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.followed import Hidden, hide, show
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, bodies, dims_of, input_at, walk

INLINE_BYTES = 1024
"""Larger initializers are hidden from the inference: it needs shapes, not weights."""

_GENERATED = "unk__"
_WEIGHTS = "edgeinfer_weights"
_LIKE_INPUT = frozenset(
    {
        *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization"),
        *("SkipSimplifiedLayerNormalization",),
    }
)
"""Operators of ONNX Runtime whose first result has the shape of their first input."""

_ROUNDS = 4
"""How often onnx may follow what it has found; two are what exported models need."""

_SUM = 3
"""Which of the results of those that skip is the sum of their inputs."""


class InferenceFailedError(Exception):
    """onnx cannot infer anything about a model; never leaves the passes."""


def is_generated(size: int | ir.SymbolicDim) -> bool:
    """Whether a size has no name, or one that onnx's inference made up."""
    if isinstance(size, int):
        return False
    return size.value is None or size.value.startswith(_GENERATED)


def infer_shapes(proto: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """Return a model with what onnx infers, following the integers that stand for sizes.

    What is found so may be the length of another vector that can be followed then.

    Args:
        proto: it is not modified.
        strict: raise where a node contradicts itself, in place of leaving its results open.
    """
    found = onnx.shape_inference.infer_shapes(proto, strict_mode=strict)
    if proto.functions:
        # What they consist of has no shapes of its own.
        return found
    before: Hidden | None = None
    for _ in range(_ROUNDS):
        trial = onnx.ModelProto()
        trial.CopyFrom(found)
        hidden = hide(trial)
        if hidden == before:
            return found
        result = onnx.shape_inference.infer_shapes(trial, strict_mode=strict, data_prop=True)
        show(result, hidden)
        if not hidden.unknown:
            return result
        # Without following: what is hidden keeps nobody from the shapes behind it.
        found = onnx.shape_inference.infer_shapes(result, strict_mode=strict)
        before = hidden
    return found


def infer(model: ir.Model, *, strict: bool = True) -> None:
    """Write into a model what onnx infers, following the integers that stand for sizes.

    Args:
        model: it is changed.
        strict: infer nothing where a node contradicts itself, in place of leaving its results open.
    """
    with contextlib.suppress(InferenceFailedError):
        Inference(model, strict=strict).run()


class Inference:
    """Inference in rounds: what is found elsewhere goes in between two of them."""

    def __init__(self, model: ir.Model, *, strict: bool = False) -> None:
        self._model, self._strict = model, strict
        self._proto = ir.to_proto(without_weights(model))

    def run(self) -> None:
        """Infer once and write what was found into the model.

        Raises:
            InferenceFailedError: onnx gave up.
        """
        try:
            self._proto = infer_shapes(self._proto, strict=self._strict)
        # onnx raises RuntimeError subclasses of its own, and protobuf errors for malformed parts.
        except Exception as e:
            reason = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise InferenceFailedError(f"shape inference failed: {reason}") from e
        for graph, proto in _pairs(self._model.graph, self._proto.graph):
            found = _infos(proto)
            for node in graph:
                for value in node.outputs:
                    if value.name in found:
                        _learn(value, found[value.name])
                if _has_sum(node) and node.outputs[_SUM].shape is None:
                    node.outputs[_SUM].shape = node.outputs[0].shape
                    node.outputs[_SUM].type = node.outputs[0].type

    def tell(self, refined: Set[ir.Value]) -> None:
        """Let the next round know better shapes, and forget names that were made up."""
        for graph, proto in _pairs(self._model.graph, self._proto.graph):
            found = _infos(proto)
            for info in found.values():
                for size in info.type.tensor_type.shape.dim:
                    if size.dim_param.startswith(_GENERATED):
                        size.ClearField("dim_param")
            for node in graph:
                for value in node.outputs:
                    if value in refined and value.name and value.type is not None:
                        info = found.get(value.name) or proto.value_info.add()
                        info.CopyFrom(ir.serde.serialize_value(value))


def without_weights(model: ir.Model) -> ir.Model:
    """A copy in which large initializers are inputs and made-up names are gone."""
    stripped = model.clone()
    for name, value in list(stripped.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > INLINE_BYTES:
            value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            stripped.graph.initializers.pop(name)
            if value not in stripped.graph.inputs:
                stripped.graph.inputs.append(value)
            value.const_value = None
    for graph in walk(stripped.graph):
        if graph is not stripped.graph:
            _copy_constants(graph)
        for node in graph:
            for value in node.outputs:
                if value.shape is not None:
                    sizes = [None if is_generated(d) else d for d in dims_of(value)]
                    value.shape = ir.Shape(sizes)
    stripped.ir_version = max(stripped.ir_version, 4)
    stand_in(stripped)
    return stripped


def stand_in(model: ir.Model) -> None:
    """Put operators with equal shapes in the place of those that onnx infers wrongly or not at all.

    onnx 1.23 gives the result of ``GroupNormalization`` the shape of its scale, and knows nothing
    of ONNX Runtime's ``MatMulNBits``.
    """
    for graph in walk(model.graph):
        for node in graph:
            if (node.domain, node.op_type) == ("com.microsoft", "MatMulNBits"):
                _as_product(model.graph, node)
            elif _is_like_input(node):
                node.replace_input_with(0, _known_first(node))
                node.domain, node.op_type = "", "Identity"
                node.resize_inputs(1)
                node.attributes.clear()
            if node.op_type == "GroupNormalization" and node.domain in DEFAULT_DOMAINS:
                node.op_type = "Identity"
                node.resize_inputs(1)
                node.attributes.clear()


def _is_like_input(node: ir.Node) -> bool:
    if not node.inputs:
        return False
    if node.op_type == "SimplifiedLayerNormalization":
        # Exporters write it into the standard's domain.
        return True
    if node.domain != "com.microsoft":
        return False
    # Queries may come with keys and values in one tensor.
    is_apart = node.op_type == "GroupQueryAttention" and input_at(node, 1) is not None
    return is_apart or node.op_type in _LIKE_INPUT


def _has_sum(node: ir.Node) -> bool:
    """Whether it gives what it norms, too, which is like its first result."""
    return node.domain == "com.microsoft" and "Skip" in node.op_type and len(node.outputs) > _SUM


def _known_first(node: ir.Node) -> ir.Value | None:
    """The input whose shape a node's result has: not one that nothing is known of yet."""
    first = node.inputs[0]
    maker = None if first is None else first.producer()
    if maker is not None and "Skip" in node.op_type and first in maker.outputs[_SUM:]:
        return node.inputs[1]
    return first


def _as_product(graph: ir.Graph, node: ir.Node) -> None:
    """Have a product of floats stand for one with weights of a few bits."""
    sizes = [a.as_int() for a in map(node.attributes.get, ("K", "N")) if a is not None]
    scales = input_at(node, 2)
    if len(sizes) != 2 or scales is None or scales.type is None:
        return
    name = f"{node.outputs[0].name}_{_WEIGHTS}"
    graph.inputs.append(ir.Value(name=name, shape=ir.Shape(sizes), type=scales.type))
    node.domain, node.op_type = "", "MatMul"
    node.resize_inputs(2)
    node.replace_input_with(1, graph.inputs[-1])
    node.attributes.clear()


def _copy_constants(body: ir.Graph) -> None:
    """Give a body what it reads of the outer constants: onnx looks for their values there only."""
    for node in body:
        for index, value in enumerate(node.inputs):
            if value is None or value.const_value is None or value.graph is body:
                continue
            if not value.is_initializer() or value.is_graph_input() or value.name is None:
                continue
            if value.name not in body.initializers:
                own = ir.Value(
                    name=value.name,
                    type=value.type,
                    shape=value.shape,
                    const_value=value.const_value,
                )
                body.register_initializer(own)
            node.replace_input_with(index, body.initializers[value.name])


def _pairs(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Each graph of a model with its serialised form."""
    yield graph, proto
    for node, other in zip(graph, proto.node, strict=True):
        inner = bodies(node)
        if inner:
            protos = [a.g for a in other.attribute if a.HasField("g")]
            protos.extend(g for a in other.attribute for g in a.graphs)
            for body, body_proto in zip(inner, protos, strict=True):
                yield from _pairs(body, body_proto)


def _infos(proto: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    return {v.name: v for v in (*proto.value_info, *proto.output)}


def _learn(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    """Take over a type where there is none, and each size that says more."""
    if value.type is None and info.HasField("type"):
        found = ir.serde.deserialize_type_proto_for_type(info.type)
        if found is None or found.dtype == ir.DataType.UNDEFINED:
            # What onnx says of a vector that is made of a map.
            return
        value.type = found
    shape = ir.serde.deserialize_type_proto_for_shape(info.type)
    if shape is None:
        return
    if value.shape is not None and len(value.shape) == len(shape):
        pairs = zip(dims_of(value), shape, strict=True)
        shape = ir.Shape([_sharper(a, b) for a, b in pairs])
    value.shape = shape


def _sharper(mine: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """The one that says more; the newer one when they say as much."""
    if isinstance(mine, int) or isinstance(other, int):
        return other if isinstance(other, int) else mine
    return mine if is_generated(other) and not is_generated(mine) else other
