"""What ONNX Runtime gets wrong in half precision, whoever chose that precision."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import Rule, attribute, given


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
    fused = any(
        user.op_type == "MatMul"
        and index == 0
        and (weight := given(user, 1)) is not None
        and weight.const_value is not None
        and len(weight.const_value.shape) == 2
        for user, index in node.outputs[0].uses()
    )
    return "its fusion with a half-precision product ends the process" if fused else ""


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
        repair=_transpose_in_single,
    ),
)
