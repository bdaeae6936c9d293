"""The form that a compiler with strong types wants: TensorRT builds what the graph says.

It takes the type of each operator from the graph, knows the operators of an older standard, and
makes integer kernels of roundings that stand as pairs around an operator. Nothing here was run on
TensorRT.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.infra import Namer, add_initializer, is_op
from edgeinfer.errors import Notes

TYPED_KEY = "edgeinfer.typed"
"""Metadata of a file whose types are meant as they stand, whatever another engine makes of it."""

OPSET = 21
"""The newest version that the parser of TensorRT 10.3 (JetPack 6) was written for."""

_LEAST = 2.0**-17
"""A scale in half precision has at least seven bits from here on, half a step of an integer."""


def expand_newer(model: ir.Model, notes: Notes) -> None:
    """Replace operators that came after ``OPSET`` by their definitions, level by level."""
    for _ in range(5):
        newer = [node for _, node in walk(model) if not node.domain and not _is_known(node.op_type)]
        names = {id(node): node.op_type for node in newer}
        done = expand(model, newer) if newer else []
        for op in sorted({names[id(node)] for node in done}):
            notes.add(f"{op}: newer than opset {OPSET}: replaced by its definition")
        if not done:
            return


def _is_known(op_type: str) -> bool:
    return bool(onnx.defs.has(op_type, OPSET, ""))


def join_pairs(model: ir.Model, notes: Notes) -> None:
    """Let roundings read and give half precision beside operators that compute in it, in place.

    A scale that half precision holds too poorly stays, and with it the casts around its pair.

    Given::

        q = QuantizeLinear(Cast<FLOAT>(x), s, z); y = Cast<FLOAT16>(DequantizeLinear(q, s, z))

    Result::

        q = QuantizeLinear(x, h, z); y = DequantizeLinear(q, h, z)
    """
    halves: dict[ir.Value, ir.Value | None] = {}
    namer, left = Namer(model), 0
    for node in list(model.graph):
        if not is_op(node, "QuantizeLinear", "DequantizeLinear"):
            continue
        scale = node.inputs[1]
        if scale is None or not _beside_half(node):
            continue
        if scale not in halves:
            halves[scale] = _half_scale(model, scale, namer)
        half = halves[scale]
        if half is None:
            left += 1
        elif node.op_type == "QuantizeLinear":
            cast = node.inputs[0].producer() if node.inputs[0] is not None else None
            node.replace_input_with(0, cast.inputs[0] if cast is not None else None)
            node.replace_input_with(1, half)
        else:
            _give_half(node, half)
    if left:
        notes.add(f"{left} roundings keep scales in fp32: half precision does not hold them")


def _beside_half(node: ir.Node) -> bool:
    """Whether a rounding stands next to a cast from or to half precision, and to nothing else."""
    if node.op_type == "QuantizeLinear":
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        source = maker.inputs[0] if maker is not None and is_op(maker, "Cast") else None
        return source is not None and source.dtype == ir.DataType.FLOAT16
    users = [user for user, _ in node.outputs[0].uses()]
    return (
        bool(users)
        and not node.outputs[0].is_graph_output()
        and all(
            is_op(u, "Cast") and u.attributes["to"].as_int() == ir.DataType.FLOAT16 for u in users
        )
    )


def _give_half(node: ir.Node, half: ir.Value) -> None:
    node.replace_input_with(1, half)
    out = node.outputs[0]
    out.type = ir.TensorType(ir.DataType.FLOAT16)
    for cast, _ in list(out.uses()):
        for user, index in list(cast.outputs[0].uses()):
            user.replace_input_with(index, out)


def _half_scale(model: ir.Model, scale: ir.Value, namer: Namer) -> ir.Value | None:
    """Return a scale in half precision; the single one, which others read, gets its very value."""
    if scale.const_value is None or scale.dtype != ir.DataType.FLOAT:
        return None
    array = scale.const_value.numpy()
    if not np.all((array >= _LEAST) & (array <= np.finfo(np.float16).max)):
        return None
    half = array.astype(np.float16)
    scale.const_value = ir.tensor(half.astype(np.float32), name=scale.name)
    return add_initializer(model.graph, namer.fresh(f"{scale.name}.fp16"), half)
