"""Forms that ONNX Runtime computes faster than the standard operator.

Measured with ONNX Runtime 1.32 on one AVX2 core, interleaved, CPU time, minimum of 6 to 15
rounds, where nothing else is said; what brought nothing (SkipSimplifiedLayerNormalization,
MultiHeadAttention, FastGelu) is left to the standard operator.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.onnxruntime.early_roundings import roundings
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.convert.passes.split_attention import SplitAttention
from edgeinfer.errors import Remarks

LONGEST = 512
"""Keys up to which attention in single precision becomes products; measured at 197."""

_LARGEST_MEAN = 1024
"""Elements of an image whose mean may be that of a pool in floats."""

_LAYERS_APART = 8
_KEEP_BLOCKS = frozenset(
    {
        *("Add", "AveragePool", "Clip", "DequantizeLinear", "Elu", "HardSigmoid", "HardSwish"),
        *("LeakyRelu", "MaxPool", "Mul", "QuantizeLinear", "Relu", "Sigmoid", "Swish", "Tanh"),
    }
)
"""Operators whose results lie as their first input does."""

_NUMPY = {
    ir.DataType.FLOAT: np.float32,
    ir.DataType.FLOAT16: np.float16,
    ir.DataType.DOUBLE: np.float64,
}


def silu_by_sigmoid(model: ir.Model, node: ir.Node) -> bool:
    """``Swish`` has no kernel; its formula is fused to one (19 us against 32 us for 49,152 values).

    Between integers both factors are integers: a table and a product of bytes, where floats would
    be a kernel that rounds nothing (1.27 ms against 1.44 ms of a detector's 12; its error is as
    large as before). A result that is rounded with several scales is multiplied for each of them:
    the engine computes with bytes what is rounded once. Of bytes made floats for an operator on
    floats the engine does not fuse the formula, because both factors get floats of their own; it is
    requested the fused kernel (NudeNet with ten of them: 0.97 of the time, n = 31, processor time).

    Given::

        y = Swish<alpha=1.0>(x)

    Result::

        s = Sigmoid(x); y = Mul(x, s)
        s = DequantizeLinear(QuantizeLinear(Sigmoid(x)));  y = Mul(x, s)  between integers
        y = QuickGelu(x)                                                  behind integers
    """
    x = given(node, 0)
    if x is None or x.dtype not in _NUMPY:
        return False
    alpha = float(str(attribute(node, "alpha", 1.0)))
    maker = x.producer()
    is_behind = maker is not None and maker.op_type == "DequantizeLinear" and not maker.domain
    if is_behind and x.dtype == ir.DataType.FLOAT and not _is_between_bytes(x, node):
        node.op_type, node.domain, node.version = "QuickGelu", "com.microsoft", None
        node.attributes["alpha"] = ir.AttrFloat32("alpha", alpha)
        if node.graph is not None:
            node.graph.opset_imports.setdefault("com.microsoft", 1)
        return True
    build = builder(model, node)
    inner = x if alpha == 1.0 else build.op("Mul", x, _scalar(build, x, alpha, "alpha"))
    gate = build.op("Sigmoid", inner)
    made = [inner, gate]
    if _is_between_bytes(x, node):
        # Its ends are 0 and 1, both exact.
        step, zero = _scalar(build, x, 1 / 255, "step"), build.const(np.array(0, np.uint8), "zero")
        rounded = build.op("QuantizeLinear", gate, step, zero)
        rounded.type, rounded.shape = ir.TensorType(ir.DataType.UINT8), x.shape
        gate = build.op("DequantizeLinear", rounded, step, zero)
        made.append(gate)
        for users in _apart(node.outputs[0]):
            product = build.op("Mul", x, gate)
            made.append(product)
            for user in users:
                user.replace_input_with(0, product)
    for value in made:
        value.type, value.shape = ir.TensorType(x.dtype), x.shape
    build.op("Mul", x, gate)
    build.commit(model.graph, node)
    return True


def _is_between_bytes(x: ir.Value, node: ir.Node) -> bool:
    """Whether an operator reads bytes made floats, and its result is made bytes again."""
    maker = x.producer()
    if maker is None or maker.op_type != "DequantizeLinear":
        return False
    stored = maker.inputs[0]
    users = [user for user, _ in node.outputs[0].uses() if user.op_type == "QuantizeLinear"]
    kinds = [None if user.inputs[2] is None else user.inputs[2].dtype for user in users]
    return stored is not None and {stored.dtype, *kinds} == {ir.DataType.UINT8} and bool(kinds)


def _apart(value: ir.Value) -> list[list[ir.Node]]:
    """Return who rounds a value otherwise than the first who does, each scale by itself."""
    found = roundings(value)
    return [] if found is None else list(found.values())[1:]


def is_mean_of_map(node: ir.Node) -> bool:
    """Whether the mean over the two spatial axes is of what a convolution made, layers apart."""
    x, axes = given(node, 0), given(node, 1)
    known = None if axes is None else ir.convenience.get_const_tensor(axes)
    if x is None or x.shape is None or len(x.shape) != 4 or known is None:
        return False
    height, width = x.shape[2:]
    if {int(axis) % 4 for axis in known.numpy().ravel()} != {2, 3}:
        return False
    small = isinstance(height, int) and isinstance(width, int) and height * width <= _LARGEST_MEAN
    stored = {user.op_type for user, _ in node.outputs[0].uses()} == {"QuantizeLinear"}
    return (small or stored) and _is_of_convolution(x)


def _is_of_convolution(value: ir.Value) -> bool:
    for _ in range(_LAYERS_APART):
        maker = value.producer()
        if maker is None or maker.op_type not in _KEEP_BLOCKS:
            return maker is not None and maker.op_type == "Conv"
        above = given(maker, 0)
        if above is None:
            return False
        value = above
    return False


def mean_by_pool(model: ir.Model, node: ir.Node) -> bool:
    """Take the mean over height and width as a pool, which reads the order of convolutions.

    ``ReduceMean`` has what is stored by blocks of channels, or channels last between bytes, put
    back in rows first. Behind a convolution the pool takes 0.70 to 0.86 of the time, both together
    (n = 40, processor time); a small net with three squeezes takes 0.97, and 0.83 as integers.
    Where there is no convolution the pool is the slower one. Its sums are eight times as far off
    for large images (2e-6 of the mean at 56 x 56), so these stay unless they end in bytes.

    Given::

        y = ReduceMean<keepdims = 0>(x, [2, 3])

    Result::

        y = Flatten(GlobalAveragePool(x))
    """
    x, y = given(node, 0), node.outputs[0]
    if x is None or x.shape is None:
        return False
    build = builder(model, node)
    if bool(attribute(node, "keepdims", 1)):
        build.op("GlobalAveragePool", x)
    else:
        pooled = build.op("GlobalAveragePool", x)
        pooled.type, pooled.shape = y.type, ir.Shape([*x.shape[:2], 1, 1])
        build.op("Flatten", pooled, axis=1)
    build.commit(model.graph, node)
    return True


def contrib_gelu(_: ir.Model, node: ir.Node) -> bool:
    """The contrib kernel takes 36 us where the standard one takes 44 us (49,152 values)."""
    node.domain, node.version = "com.microsoft", None
    node.attributes.pop("approximate", None)
    if node.graph is not None:
        node.graph.opset_imports.setdefault("com.microsoft", 1)
    return True


def attention_by_products(model: ir.Model, notes: Remarks) -> None:
    """Undo ``Attention`` for the CUDA provider in single precision.

    ViT-tiny, 197 tokens, one bound call on an H200 with ONNX Runtime 1.31.1, medians of 60 rounds
    of 20 calls in turns: 0.4965 ms with ``Attention``, 0.4101 ms as products and a softmax. The
    scores grow with the square of the length, so that a long one keeps the operator.
    """
    if SplitAttention(longest=LONGEST)(model).modified:
        notes.add("Attention: written as products and a softmax, which is faster here in fp32")


def repeat_mask_rows(model: ir.Model, node: ir.Node) -> bool:
    """Expand a mask that has one row for all queries; nodes that share it share the result.

    Given::

        y = Attention(q, k, v, mask)

    Result::

        rows = Expand(mask, [.., queries, keys]); y = Attention(q, k, v, rows)
    """
    mask, query, graph = given(node, 3), given(node, 0), node.graph
    if mask is None or query is None or query.shape is None or graph is None:
        return False
    rows = query.shape[-2]
    for user, _ in mask.uses():
        if user.meta.get("mask_rows") == rows and user.graph is graph:
            node.replace_input_with(3, user.outputs[0])
            return True
    namer, base = Namer(model), mask.name or "mask"
    lead = ir.node("Shape", [mask], {"start": 0, "end": -2})
    middle = ir.node("Shape", [query], {"start": -2, "end": -1})
    tail = ir.node("Shape", [mask], {"start": -1})
    parts = [lead.outputs[0], middle.outputs[0], tail.outputs[0]]
    size = ir.node("Concat", parts, {"axis": 0})
    rows_node = ir.node("Expand", [mask, size.outputs[0]])
    rows_node.meta["mask_rows"] = rows
    for made in (lead, middle, tail, size, rows_node):
        made.outputs[0].name = namer.fresh(f"{base}.rows")
        made.outputs[0].dtype = ir.DataType.INT64
    rows_node.outputs[0].type = mask.type
    if mask.shape is not None:
        rows_node.outputs[0].shape = ir.Shape([*mask.shape[:-2], rows, mask.shape[-1]])
    graph.insert_before(node, [lead, middle, tail, size, rows_node])
    node.replace_input_with(3, rows_node.outputs[0])
    return True


def _scalar(build: ReplacementBuilder, like: ir.Value, number: float, hint: str) -> ir.Value:
    kind = _NUMPY[like.dtype or ir.DataType.FLOAT]
    return build.const(np.asarray(number, kind), hint)
