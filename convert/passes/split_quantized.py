"""Take quantized operators apart: dequantize, compute, quantize."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.constants import FoldConstants
from edgeinfer.convert.passes.fold_shapes import FoldShapes
from edgeinfer.convert.passes.infra import Namer, PassOutcome, all_nodes, input_at, outcome, rank
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.convert.passes.shapes import InferShapes

_MICROSOFT = "com.microsoft"

Split = Callable[[ir.Node, ReplacementBuilder], bool]
"""Builds what a node computes; False leaves it as it is."""

_EXACT = 1 << 24
"""Integers up to which float32 has every one."""


class SplitQuantized(ir.passes.InPlacePass):
    """Replace quantized operators of ONNX and of ONNX Runtime, and products of integers.

    A target that computes with integers finds them again between ``DequantizeLinear`` and
    ``QuantizeLinear``. ``ConvInteger`` and ``MatMulInteger`` become products of floats, in parts of
    which no sum can leave the integers that float32 has.

    Given::

        y = QLinearMatMul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)

    Result::

        p = DequantizeLinear(a, a_scale, a_zero)
        q = DequantizeLinear(b, b_scale, b_zero)
        r = MatMul(p, q)
        y = QuantizeLinear(r, y_scale, y_zero)
    """

    def __init__(self, only: Callable[[ir.Node], bool] = lambda _: True) -> None:
        """Store which nodes to split."""
        super().__init__()
        self._only = only

    def call(self, model: ir.Model) -> PassOutcome:
        """Split every node of a known form, those whose rank shows by the first ones after them."""
        count = 0
        while found := self._split(model):
            count += found
            # Nothing was known of what came out of operators that ONNX does not define.
            for known in (InferShapes(), FoldShapes(), FoldConstants()):
                known(model)
        return outcome(model, count)

    def _split(self, model: ir.Model) -> int:
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            split = SPLITS.get((node.domain, node.op_type))
            if split is None or node.graph is None or not self._only(node):
                continue
            build = ReplacementBuilder(namer, node.outputs[0].name or node.op_type)
            if split(node, build):
                build.commit(model.graph, node)
                count += 1
        return count


def _float(value: ir.Value, like: ir.Value | None) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.FLOAT)
    if like is not None and like.shape is not None:
        value.shape = like.shape.copy()
    return value


def _dequantized(node: ir.Node, build: ReplacementBuilder, index: int, axis: int = 1) -> ir.Value:
    """Dequantize the operand at an index, by the scale and the zero point that follow it."""
    x, scale, zero = (input_at(node, index + i) for i in range(3))
    scale, zero = _of_one_shape(build, _single(build, scale), zero)
    return _float(build.op("DequantizeLinear", x, scale, zero, axis=axis), x)


def _of_one_shape(
    build: ReplacementBuilder, scale: ir.Value | None, zero: ir.Value | None
) -> tuple[ir.Value | None, ir.Value | None]:
    """Give scales and zero points one number, where there is one of the one for several others."""
    known = [
        None if v is None or v.const_value is None else v.const_value.numpy() for v in (scale, zero)
    ]
    if known[0] is None or known[1] is None or known[0].shape == known[1].shape:
        return scale, zero
    if known[0].size == known[1].size == 1:
        return scale, zero
    both = np.broadcast_arrays(known[0].reshape(-1), known[1].reshape(-1))
    return build.const(both[0], "scale"), build.const(both[1], "zero")


def _single(build: ReplacementBuilder, scale: ir.Value | None) -> ir.Value | None:
    """A scale as float32, which holds every half."""
    if scale is None or scale.dtype not in {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}:
        return scale
    if scale.const_value is not None:
        return build.const(scale.const_value.numpy().astype(np.float32), "scale")
    return _float(build.op("Cast", scale, to=int(ir.DataType.FLOAT)), scale)


def _quantized(
    node: ir.Node, build: ReplacementBuilder, y: ir.Value, index: int, axis: int = 1
) -> bool:
    out = node.outputs[0]
    _float(y, out)
    scale, zero = input_at(node, index), input_at(node, index + 1)
    x = input_at(node, 0)
    if zero is None and x is not None and x.dtype is not None:
        # Results have the operand's type; bytes without a zero point would have no sign.
        zero = build.const(np.zeros((), x.dtype.numpy()), "zero")
    made = build.op("QuantizeLinear", y, _single(build, scale), zero, axis=axis)
    made.type, made.shape = out.type, out.shape
    return True


def _conv(node: ir.Node, build: ReplacementBuilder) -> bool:
    x, w = _dequantized(node, build, 0), _dequantized(node, build, 3, axis=0)
    operands = [w]
    bias = input_at(node, 8)
    if bias is not None:
        scale = _product(input_at(node, 1), input_at(node, 4), build)
        operands.append(_float(build.op("DequantizeLinear", bias, scale, axis=0), bias))
    return _spatial("Conv", node, build, x, 6, *operands)


def _spatial(
    op_type: str, node: ir.Node, build: ReplacementBuilder, x: ir.Value, index: int, *rest: ir.Value
) -> bool:
    """Compute along positions, which ``channels_last`` has before the channels."""
    attributes = _attributes(node)
    if not attributes.pop("channels_last", 0):
        return _quantized(node, build, build.op(op_type, x, *rest, **attributes), index)
    size = rank(input_at(node, 0))
    if size is None:
        return False
    first, last = [0, size - 1, *range(1, size - 1)], [0, *range(2, size), 1]
    transposed = _float(build.op("Transpose", x, perm=first), None)
    y = _float(build.op(op_type, transposed, *rest, **attributes), None)
    return _quantized(node, build, build.op("Transpose", y, perm=last), index)


def _pool(op_type: str) -> Split:
    def split(node: ir.Node, build: ReplacementBuilder) -> bool:
        return _spatial(op_type, node, build, _dequantized(node, build, 0), 3)

    return split


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: a.value for name, a in node.attributes.items()}


def _product(
    a: ir.Value | None, b: ir.Value | None, build: ReplacementBuilder, factor: float = 1.0
) -> ir.Value:
    if a is None or b is None:
        raise ValueError("a quantized operator without its scales")
    if a.const_value is None or b.const_value is None:
        scale = build.op("Mul", a, b)
        return scale if factor == 1 else build.op("Mul", scale, _number(build, factor))
    values = (a.const_value.numpy() * b.const_value.numpy() * factor).astype(np.float32)
    return build.const(values, "scale")


def _matmul(node: ir.Node, build: ReplacementBuilder) -> bool:
    operands = []
    for index, from_end in ((0, 2), (3, 1)):
        # One scale a row of the first operand, one a column of the second.
        axis = _axis(input_at(node, index), from_end, node.inputs[index + 1 : index + 3])
        if axis is None or (rank(input_at(node, index + 1)) or 0) > 1:
            return False
        operands.append(_dequantized(node, build, index, axis=axis))
    axis = _axis(node.outputs[0], 2, node.inputs[6:8])
    if axis is None:
        return False
    return _quantized(node, build, build.op("MatMul", *operands), 6, axis=axis)


def _axis(x: ir.Value | None, from_end: int, scales: Sequence[ir.Value | None]) -> int | None:
    """Return the axis of scales; one alone belongs to none, whatever the rank is."""
    size = rank(x)
    if size is not None:
        return max(size - from_end, 0)
    return 0 if all(v is None or rank(v) == 0 for v in scales) else None


def _gemm(node: ir.Node, build: ReplacementBuilder) -> bool:
    attributes = _attributes(node)
    axis = 1 - attributes.get("transB", 0)
    operands = [_dequantized(node, build, 0), _dequantized(node, build, 3, axis=axis)]
    bias = input_at(node, 6)
    if bias is not None:
        scale = _product(input_at(node, 1), input_at(node, 4), build, attributes.get("alpha", 1.0))
        operands.append(_float(build.op("DequantizeLinear", bias, scale, axis=0), bias))
    y = build.op("Gemm", *operands, **attributes)
    if input_at(node, 7) is None:
        y.type, y.shape = node.outputs[0].type, node.outputs[0].shape
        return True
    return _quantized(node, build, y, 7)


def _softmax(node: ir.Node, build: ReplacementBuilder) -> bool:
    axis = _attributes(node).get("axis", -1)
    size = rank(node.outputs[0])
    # Before opset 13 all axes from this one on were one.
    last = axis == -1 or (size is not None and axis == size - 1)
    if _attributes(node).get("opset", 1) < 13 and not last:
        return False
    y = build.op("Softmax", _dequantized(node, build, 0), axis=axis)
    return _quantized(node, build, y, 3)


def _binary(op_type: str) -> Split:
    def split(node: ir.Node, build: ReplacementBuilder) -> bool:
        a, b = _dequantized(node, build, 0), _dequantized(node, build, 3)
        return _quantized(node, build, build.op(op_type, a, b), 6)

    return split


def _unary(op_type: str) -> Split:
    def split(node: ir.Node, build: ReplacementBuilder) -> bool:
        y = build.op(op_type, _dequantized(node, build, 0), **_attributes(node))
        return _quantized(node, build, y, 3)

    return split


def _mean(node: ir.Node, build: ReplacementBuilder) -> bool:
    attributes = _attributes(node)
    axes = attributes.pop("axes", None)
    over = [] if axes is None else [build.const(np.array(axes, np.int64), "axes")]
    y = build.op("ReduceMean", _dequantized(node, build, 0), *over, **attributes)
    return _quantized(node, build, y, 3)


def _where(node: ir.Node, build: ReplacementBuilder) -> bool:
    a, b = _dequantized(node, build, 1), _dequantized(node, build, 4)
    return _quantized(node, build, build.op("Where", node.inputs[0], a, b), 7)


def _concat(node: ir.Node, build: ReplacementBuilder) -> bool:
    parts = [_dequantized(node, build, index) for index in range(2, len(node.inputs), 3)]
    return _quantized(node, build, build.op("Concat", *parts, **_attributes(node)), 0)


def _number(build: ReplacementBuilder, number: float) -> ir.Value:
    return build.const(np.array(number, np.float32), "number")


def _conv_integer(node: ir.Node, build: ReplacementBuilder) -> bool:
    x, w, x_zero, w_zero = (input_at(node, i) for i in range(4))
    if x is None or w is None or w.shape is None or not all(isinstance(d, int) for d in w.shape):
        return False
    channels, *kernel = (d for d in w.shape[1:] if isinstance(d, int))
    each = _summed(node, math.prod(kernel), _most(w, w_zero, 0))
    if not each or (each < channels and _attributes(node).get("group", 1) != 1):
        return False
    left = _centred(build, x, x_zero, 0)
    right = _centred(build, w, w_zero, len(w.shape) - 1)
    return _added_up(
        node,
        build,
        [(left, 1), (right, 1)],
        (channels, each),
        lambda a, b: build.op("Conv", a, b, **_attributes(node)),
    )


def _matmul_integer(node: ir.Node, build: ReplacementBuilder) -> bool:
    a, b, a_zero, b_zero = (input_at(node, i) for i in range(4))
    if a is None or b is None or b.shape is None or 0 in (rank(a), rank(b)):
        return False
    single = a_zero is None or rank(a_zero) == 0
    if a.shape is None and (len(b.shape) < 2 or not single):
        return False
    # States of a loop have sizes of their own in each turn: only the last axis counts here.
    last = -1 if a.shape is None else len(a.shape) - 1
    inner = max(len(b.shape) - 2, 0)
    shared = (b.shape[inner], *([] if a.shape is None else [a.shape[-1]]))
    depth = next((d for d in shared if isinstance(d, int)), None)
    each = _summed(node, 1, _most(b, b_zero, inner))
    if not each or (depth is None and each < _ANY):
        return False
    # A zero point for each row has its axis before that of the sums.
    rows = 1 if last > 0 and rank(a_zero) == 1 else 0
    left, right = _centred(build, a, a_zero, rows), _centred(build, b, b_zero, 0)
    ends = [(left, last), (right, inner)]
    return _added_up(node, build, ends, (depth or 1, each), lambda *x: build.op("MatMul", *x))


_ANY = 1 << 62
"""Terms of a sum that need not be exact."""


def _summed(node: ir.Node, terms: int, most: int) -> int:
    """Return how many channels of so many terms float32 adds up exactly.

    Where the integers only become floats, one rounding more or less is all there is to it.
    """
    uses = node.outputs[0].uses()
    rounded = uses and all(
        user.op_type == "Cast" and user.attributes["to"].as_int() in _ROUNDED for user, _ in uses
    )
    if rounded and not node.outputs[0].is_graph_output():
        return _ANY
    return (_EXACT - 1) // max(1, terms * most * 255)


_ROUNDED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def _most(w: ir.Value, zero: ir.Value | None, axis: int) -> int:
    """Return the largest magnitude of weights without their zero point."""
    tensor, point = w.const_value, None if zero is None else zero.const_value
    if tensor is None or tensor.size == 0 or (zero is not None and point is None):
        return 255
    values = tensor.numpy().astype(np.int32)
    ends = [int(values.max()), int(values.min())]
    shifts = [0] if point is None else [int(point.numpy().max()), int(point.numpy().min())]
    return max(abs(e - s) for e in ends for s in shifts)


def _added_up(
    node: ir.Node,
    build: ReplacementBuilder,
    operands: list[tuple[ir.Value, int]],
    sizes: tuple[int, int],
    product: Callable[..., ir.Value],
) -> bool:
    """Compute in parts along the operands' axes, each exact in floats, and add the integers up.

    Args:
        node: whose result the last node gives.
        build: takes the nodes.
        operands: with the axis of the sums.
        sizes: Sizes of the axis, and of a part.
        product: Product of floats.
    """
    total: ir.Value | None = None
    depth, each = sizes
    for start in range(0, max(depth, 1), each):
        parts = [
            value if each >= depth else _cut(build, value, axis, start, min(depth, start + each))
            for value, axis in operands
        ]
        floats = _float(product(*parts), node.outputs[0])
        made = build.op("Cast", floats, to=ir.DataType.INT32)
        made.type = ir.TensorType(ir.DataType.INT32)
        total = made if total is None else build.op("Add", total, made)
        total.type, total.shape = made.type, node.outputs[0].shape
    return total is not None


def _cut(build: ReplacementBuilder, x: ir.Value, axis: int, start: int, stop: int) -> ir.Value:
    ends = [build.const(np.array([n], np.int64), "part") for n in (start, stop, axis)]
    part = _float(build.op("Slice", x, *ends), x)
    if part.shape is not None:
        part.shape = ir.Shape([stop - start if i == axis else d for i, d in enumerate(part.shape)])
    return part


def _centred(
    build: ReplacementBuilder, x: ir.Value, zero: ir.Value | None, trailing: int
) -> ir.Value:
    """Subtract the zero point, as floats; a vector of them belongs to the first axis."""
    values = _float(build.op("Cast", x, to=ir.DataType.FLOAT), x)
    if zero is None:
        return values
    shift = _float(build.op("Cast", zero, to=ir.DataType.FLOAT), zero)
    if rank(zero) == 1 and trailing and zero.shape is not None and zero.shape[0] != 1:
        wide = build.op("Unsqueeze", shift, build.const(np.arange(1, trailing + 1), "axes"))
        shift = _float(wide, None)
        shift.shape = ir.Shape([zero.shape[0], *[1] * trailing])
    return _float(build.op("Sub", values, shift), x)


SPLITS: dict[tuple[str, str], Split] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("", "ConvInteger"): _conv_integer,
    ("", "MatMulInteger"): _matmul_integer,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _binary("Add"),
    (_MICROSOFT, "QLinearAveragePool"): _pool("AveragePool"),
    (_MICROSOFT, "QLinearConcat"): _concat,
    (_MICROSOFT, "QLinearConv"): _conv,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _pool("GlobalAveragePool"),
    (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (_MICROSOFT, "QLinearMul"): _binary("Mul"),
    (_MICROSOFT, "QLinearReduceMean"): _mean,
    (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (_MICROSOFT, "QLinearSoftmax"): _softmax,
    (_MICROSOFT, "QLinearWhere"): _where,
}
"""By domain and operator."""
