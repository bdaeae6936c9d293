"""What ONNX Runtime gets wrong in half precision, whoever chose that precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import Rule, attribute, given
from edgeinfer.types import Array


def _moves_batch_into_product(node: ir.Node) -> str:
    """Say whether ONNX Runtime ends the process when it loads this ``Transpose``.

    It fuses a Transpose that moves the first axis to one of the last two, and leaves the others in
    order, with the product that follows ("transBatchA"). With a constant matrix on the other side
    the half-precision form of the fused node ends in a null pointer at full optimisation; single
    and double precision do not, nor does a matrix that is computed.
    """
    x = given(node, 0)
    perm = attribute(node, "perm", ())
    if x is None or x.dtype != ir.DataType.FLOAT16 or not isinstance(perm, list | tuple):
        return ""
    place = perm.index(0) if 0 in perm else 0
    rest = [axis for axis in perm if axis != 0]
    if len(perm) < 3 or place < len(perm) - 2 or rest != sorted(rest):
        return ""
    fused = any(True for _ in _products(node))
    return "its fusion with a half-precision product ends the process" if fused else ""


def _products(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the products with a constant matrix that read a ``Transpose`` first."""
    for user, index in node.outputs[0].uses():
        weight = given(user, 1)
        if user.op_type != "MatMul" or index or weight is None or weight.const_value is None:
            continue
        if len(weight.const_value.shape) == 2:
            yield user


def _multiply_rows(model: ir.Model, node: ir.Node) -> bool:
    """Multiply rows of a matrix; the two changes of shape move no data.

    Given::

        y = Transpose(x); z = MatMul(y, w)

    Result::

        y = Transpose(x); a = Reshape(y, [-1, K]); b = MatMul(a, w); z = Reshape(b, [..., N])
    """
    shapes = [_whole(product.outputs[0].shape) for product in _products(node)]
    if any(shape is None for shape in shapes):
        return _transpose_in_single(model, node)
    for product, shape in zip(list(_products(node)), shapes, strict=True):
        weight = product.inputs[1]
        if weight is None or weight.shape is None or shape is None:
            return False
        build = builder(model, product)
        rows = build.const(np.asarray([-1, weight.shape[0]], np.int64), "rows")
        made = [build.op("Reshape", node.outputs[0], rows)]
        made.append(build.op("MatMul", made[0], weight))
        made.append(build.op("Reshape", made[1], build.const(shape, "shape")))
        for value in made:
            value.type = ir.TensorType(ir.DataType.FLOAT16)
        made[2].shape = product.outputs[0].shape
        build.commit(model.graph, product)
    return True


def _whole(shape: ir.Shape | None) -> Array | None:
    """Return sizes as ``Reshape`` takes them; None where more than one is open."""
    if shape is None or sum(not isinstance(d, int) for d in shape) > 1:
        return None
    return np.asarray([d if isinstance(d, int) else -1 for d in shape], np.int64)


def _transpose_in_single(model: ir.Model, node: ir.Node) -> bool:
    """Move the axes in single precision, which is exact and is not fused.

    Given::

        y = Transpose(x); z = MatMul(y, w)

    Result::

        a = Cast<FLOAT>(x); b = Transpose(a); y = Cast<FLOAT16>(b); z = MatMul(y, w)
    """
    x, y = given(node, 0), node.outputs[0]
    if x is None:
        return False
    build = builder(model, node)
    single = build.op("Cast", x, to=ir.DataType.FLOAT.value)
    moved = build.op("Transpose", single, perm=attribute(node, "perm", ()))
    back = build.op("Cast", moved, to=ir.DataType.FLOAT16.value)
    for value, like, dtype in (
        (single, x, ir.DataType.FLOAT),
        (moved, y, ir.DataType.FLOAT),
        (back, y, ir.DataType.FLOAT16),
    ):
        value.type, value.shape = ir.TensorType(dtype), like.shape
    build.commit(model.graph, node)
    return True


HALF_RULES: tuple[Rule, ...] = (
    Rule(
        ops=frozenset({"Transpose"}),
        fault=_moves_batch_into_product,
        source="onnxruntime 1.32: segmentation fault in InferenceSession, also without our halving",
        repair=_multiply_rows,
    ),
)
