"""Constant folding: what is the same in every run is computed once, here."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.convert.passes.inference import infer_shapes
from edgeinfer.convert.passes.infra import (
    DEFAULT_DOMAINS,
    Namer,
    PassOutcome,
    add_initializer,
    constant,
    has_subgraph,
    outcome,
    remove_node,
    walk,
)
from edgeinfer.types import Array

NODE_GROWTH_BYTES = 256 * 1024
"""How much larger than its inputs the result of one node may be."""

TOTAL_GROWTH_BYTES = 64 * 1024
TOTAL_GROWTH_SHARE = 0.1
"""All folding together may add this much, or this share of the weights, whichever is more; where
others take what a result is made of, so that both stay, as much as all weights."""

NEVER = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        # The integers with their scales are the point; the floats are four times as large.
        "DequantizeLinear",
        "Dropout",
        "Constant",
        "ImageDecoder",
    }
)
MOST_SIZES, MOST_SIZE = 64, 1 << 40
"""Elements of an input that may be sizes of a result, and where counting such a size ends."""

MOST_WORK = 1 << 26
"""Products that one node may take; engines lay out what they convolve once for each."""

_DOTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"})
MOST_DOT_WORK = 1 << 31

_HEAVY = frozenset(
    {
        "AveragePool",
        "Attention",
        "Col2Im",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DeformConv",
        "Det",
        "DFT",
        "Einsum",
        "GRU",
        "LRN",
        "LSTM",
        "LpPool",
        "MaxPool",
        "MaxRoiPool",
        "NonMaxSuppression",
        "QLinearConv",
        "RNN",
        "RoiAlign",
        "STFT",
        "Unique",
    }
)
"""Operators whose work is not that of reading what goes in and writing what comes out."""

_PLAIN = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
    ir.DataType.BOOL,
}

Evaluate = Callable[[ir.Node, dict[str, int], list[Array | None]], list[Array] | None]


class FoldConstants(ir.passes.InPlacePass):
    """Replace nodes whose inputs are all constant by their result.

    Given: ``y = Add(x, t); t = Transpose(w)`` with the initializer ``w``
    Result: ``y = Add(x, t)`` with the initializer ``t``

    Results come from ONNX Runtime without optimisation, so they are the numbers a run would have
    had; where it is not installed, from the evaluation that judges artifacts. Random operators are
    never folded, nor what makes the model much larger.
    """

    def __init__(self, evaluate: Evaluate | None = None) -> None:
        self._evaluate = evaluate or (run_node if has_onnxruntime() else evaluate_node)

    def call(self, model: ir.Model) -> PassOutcome:
        """Fold in topological order, so chains fold in one go."""
        weights = sum(
            v.const_value.nbytes
            for v in model.graph.initializers.values()
            if v.const_value is not None
        )
        budget = max(TOTAL_GROWTH_BYTES, int(weights * TOTAL_GROWTH_SHARE))
        beside = max(TOTAL_GROWTH_BYTES, weights)
        namer, count = Namer(model), 0
        for graph in list(walk(model.graph)):
            for node in list(graph):
                if not _foldable(node):
                    continue
                results = self._results(node, model.opset_imports)
                if results is None:
                    continue
                made = sum(r.nbytes for r in results)
                growth, added = made - _input_bytes(node), made - _freed_bytes(node)
                if growth > min(NODE_GROWTH_BYTES, budget) or added > beside:
                    continue
                budget -= max(growth, 0)
                beside -= max(added, 0)
                _replace(node, results, namer)
                count += 1
        return outcome(model, count)

    def _results(self, node: ir.Node, imports: dict[str, int]) -> list[Array] | None:
        shapes = _shapes(node, imports)
        if _predicted_growth(node, shapes) > NODE_GROWTH_BYTES or _is_long(node, shapes):
            return None
        arrays = [None if v is None else _array(v) for v in node.inputs]
        results = self._evaluate(node, imports, arrays)
        if results is None or len(results) != len(node.outputs):
            return None
        return results


def _foldable(node: ir.Node) -> bool:
    if node.domain not in DEFAULT_DOMAINS or node.op_type in NEVER or has_subgraph(node):
        return False
    if not node.inputs or any(o.is_graph_output() for o in node.outputs):
        return False
    for value in node.inputs:
        if value is None:
            continue
        tensor = constant(value)
        if tensor is None or tensor.dtype not in _PLAIN:
            return False
    return any(o.uses() for o in node.outputs)


def _array(value: ir.Value) -> Array:
    tensor = constant(value)
    if tensor is None:
        raise ValueError(f"{value.name} is not constant")
    return np.asarray(tensor.numpy())


def _input_bytes(node: ir.Node) -> int:
    return sum(map(_bytes, set(node.inputs)))


def _freed_bytes(node: ir.Node) -> int:
    """How much nobody needs once a node is folded."""
    return sum(_bytes(v) for v in set(node.inputs) if v is not None and {*v.consumers()} == {node})


def _bytes(value: ir.Value | None) -> int:
    tensor = None if value is None else constant(value)
    return 0 if tensor is None else tensor.nbytes


def _is_long(node: ir.Node, shapes: list[tuple[int, ...]]) -> bool:
    """Whether a node's work is out of proportion to the sizes of what goes in and comes out."""
    if node.op_type not in _DOTS | _HEAVY:
        return False
    made = max(map(math.prod, shapes), default=0)
    tensors = [constant(v) for v in node.inputs if v is not None]
    given = [t.size for t in tensors if t is not None]
    if node.op_type in _DOTS:
        # Rows times columns times what is summed, whose root is between the other two's.
        return math.isqrt(made * math.prod(sorted(given)[-2:])) > MOST_DOT_WORK
    turns = [
        math.prod(abs(n) for n in a.as_ints())
        if a.type == ir.AttributeType.INTS
        else abs(a.as_int())
        for a in node.attributes.values()
        if a.type in (ir.AttributeType.INT, ir.AttributeType.INTS)
    ]
    return made * max(1, *given, *turns) > MOST_WORK


def _predicted_growth(node: ir.Node, shapes: list[tuple[int, ...]]) -> int:
    """Foresee the growth by the shapes, so that nothing huge is computed only to be thrown away."""
    total = 0
    for output, shape in zip(node.outputs, shapes, strict=True):
        size = output.dtype.itemsize if output.dtype is not None else 1
        total += int(math.prod(shape) * size)
    return total - _input_bytes(node)


def _shapes(node: ir.Node, imports: dict[str, int]) -> list[tuple[int, ...]]:
    """Infer shapes from what inputs hold, for those that a model states may be wrong.

    In a chain of nodes they are known only once it is folded. A shape that stays open is taken to
    be as large as the numbers among the inputs allow.
    """
    feeds = _named(node, [None if v is None else _array(v) for v in node.inputs])
    proto = ir.to_proto(_single_node_model(node, imports, feeds))
    for name, array in feeds.items():
        if array.size <= MOST_SIZES:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        found = infer_shapes(proto).graph.output
    # onnx raises RuntimeError subclasses of its own; what it cannot infer stays open.
    except Exception:
        found = proto.graph.output
    shapes = [_known_sizes(output.type.tensor_type) for output in found]
    return [_largest(feeds) if shape is None else shape for shape in shapes]


def _known_sizes(kind: onnx.TypeProto.Tensor) -> tuple[int, ...] | None:
    if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
        return None
    return tuple(d.dim_value for d in kind.shape.dim)


def _largest(feeds: dict[str, Array]) -> tuple[int, ...]:
    small = [a for a in feeds.values() if a.size <= MOST_SIZES and a.dtype.kind in "iuf"]
    held = [abs(float(n)) for a in small for n in a.ravel()]
    return tuple(int(min(n, MOST_SIZE)) for n in held if n > 1)


def _replace(node: ir.Node, results: list[Array], namer: Namer) -> None:
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    for output, array in zip(node.outputs, results, strict=True):
        if not output.uses():
            continue
        name = output.name or namer.fresh("folded")
        output.name = None
        output.replace_all_uses_with(
            add_initializer(
                graph, name, np.ascontiguousarray(array) if array.ndim else array.copy()
            )
        )
    remove_node(node)


def run_node(
    node: ir.Node, imports: dict[str, int], inputs: list[Array | None]
) -> list[Array] | None:
    """Run one node in ONNX Runtime without optimisation; None where it cannot.

    One that is older than the operators' version is not asked.
    """
    ort = import_onnxruntime()
    if not takes(imports.get("", 0)):
        return evaluate_node(node, imports, inputs)

    feeds = _named(node, inputs)
    proto = bytes(ir.to_proto(_single_node_model(node, imports, feeds)).SerializeToString())
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        results = session.run(None, feeds)
    # ONNX Runtime raises a class of its own per status, with no common base below Exception.
    except Exception:
        return None
    return results if all(isinstance(r, np.ndarray) for r in results) else None


@cache
def takes(version: int) -> bool:
    """Whether ONNX Runtime takes this version of the standard operators; 1.30 ends at 26."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.Node("", "Identity", [x], num_outputs=1)
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": version})
    proto = bytes(ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString())
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    # As with any node.
    except Exception:
        return False
    return True


def evaluate_node(
    node: ir.Node, imports: dict[str, int], inputs: list[Array | None]
) -> list[Array] | None:
    """Evaluate one node in NumPy; None where that cannot be."""
    from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator

    feeds = _named(node, inputs)
    try:
        found = Evaluator(_single_node_model(node, imports, feeds), wide=False).run(feeds)
    except CannotEvaluate:
        return None
    results = list(found.values())
    if not all(isinstance(r, np.ndarray) for r in results):
        return None
    return results


def _named(node: ir.Node, inputs: list[Array | None]) -> dict[str, Array]:
    return {
        v.name or f"in_{i}": a
        for i, (v, a) in enumerate(zip(node.inputs, inputs, strict=True))
        if v is not None and a is not None
    }


def _single_node_model(node: ir.Node, imports: dict[str, int], feeds: dict[str, Array]) -> ir.Model:
    inputs = {
        name: ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
        )
        for name, array in feeds.items()
    }
    names = [None if v is None else v.name or f"in_{i}" for i, v in enumerate(node.inputs)]
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if n is None else inputs[n] for n in names],
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
    )
    for i, output in enumerate(copy.outputs):
        output.name = f"out_{i}"
        output.type = node.outputs[i].type
    graph = ir.Graph(
        list(inputs.values()), copy.outputs, nodes=[copy], opset_imports=dict(imports), name="fold"
    )
    return ir.Model(graph, ir_version=10)
