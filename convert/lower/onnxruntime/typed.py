"""The form that a compiler with strong types wants: TensorRT builds what the graph says.

It takes the type of each operator from the graph, knows the operators of an older standard, and
makes integer kernels of roundings that stand as pairs around an operator. Nothing here was run on
TensorRT.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.lower.single import ORIGIN, walk
from edgeinfer.convert.passes import SIMPLIFY
from edgeinfer.convert.passes.infra import Namer, add_initializer, is_op
from edgeinfer.errors import Remarks

TYPED_KEY = "edgeinfer.typed"
"""Metadata of a file whose types are meant as they stand, whatever another engine makes of it."""

OPSET = 21
"""The newest version that the parser of TensorRT 10.3 (JetPack 6) was written for."""

_LEAST = 2.0**-17
"""A scale in half precision has at least seven bits from here on, half a step of an integer."""


_ROUNDS = 5


def expand_newer(model: ir.Model, notes: Remarks) -> ir.Model:
    """Replace operators that came after ``OPSET``, level by level; return what is left to compute.

    Definitions work with sizes that are known here; what follows from them alone is computed now.
    """
    changed = False
    for _ in range(_ROUNDS):
        newer = [node for _, node in walk(model) if not node.domain and not _is_known(node.op_type)]
        plain = {id(n) for n in newer if n.op_type == "Attention" and _plain_attention(model, n)}
        if plain:
            notes.add(f"Attention: newer than opset {OPSET}: written as products and a softmax")
        newer = [node for node in newer if id(node) not in plain]
        names = {id(node): node.op_type for node in newer}
        done = expand(model, newer) if newer else []
        for op in sorted({names[id(node)] for node in done}):
            notes.add(f"{op}: newer than opset {OPSET}: replaced by its definition")
        if not done and not plain:
            break
        changed = True
    if not changed:
        return model
    for _ in range(_ROUNDS):
        results = [one(model) for one in SIMPLIFY]
        if not any(r.modified for r in results):
            break
    return model


def _plain_attention(model: ir.Model, node: ir.Node) -> bool:
    """Write the usual attention in the form that a compiler fuses; False where it is another one.

    Given::

        y = Attention(q, k, v, mask)

    Result::

        s = MatMul(Mul(q, scale), Transpose(k)); y = MatMul(Softmax(Add(s, mask)), v)
    """
    q, k, v, mask = (given(node, i) for i in range(4))
    heads = [
        x.shape[1] if x is not None and x.shape is not None and len(x.shape) == 4 else None
        for x in (q, k, v)
    ]
    options = {"is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0}
    if (
        node.graph is not model.graph
        or q is None
        or k is None
        or v is None
        or q.shape is None
        or q.dtype != ir.DataType.FLOAT
        or not isinstance(heads[0], int)
        or heads != [heads[0]] * 3
        or any(given(node, i) is not None for i in range(4, len(node.inputs)))
        or any(attribute(node, name, usual) != usual for name, usual in options.items())
        or any(o.name and (o.uses() or o.is_graph_output()) for o in node.outputs[1:])
        or (mask is not None and mask.dtype != ir.DataType.FLOAT)
    ):
        return False
    width = q.shape[3]
    scale = attribute(node, "scale", None)
    if scale is None and not isinstance(width, int):
        return False
    factor = float(str(scale)) if scale is not None else float(str(width)) ** -0.5
    before = {id(n) for n in model.graph}
    build = builder(model, node)
    scaled = build.op("Mul", q, build.const(np.array(factor, np.float32), "scale"))
    scores = build.op("MatMul", scaled, build.op("Transpose", k, perm=[0, 1, 3, 2]))
    if mask is not None:
        scores = build.op("Add", scores, mask)
    build.op("MatMul", build.op("Softmax", scores, axis=-1), v)
    build.commit(model.graph, node)
    for made in model.graph:
        if id(made) not in before:
            made.metadata_props[ORIGIN] = node.metadata_props.get(ORIGIN) or node.name or ""
    return True


def parts_of(model: ir.Model, names: AbstractSet[str]) -> frozenset[str]:
    """Return the names with those of the nodes that took the place of one of them."""
    parts = (n.name or "" for n in model.graph if n.metadata_props.get(ORIGIN) in names)
    return frozenset(names) | frozenset(parts)


def _is_known(op_type: str) -> bool:
    return bool(onnx.defs.has(op_type, OPSET, ""))


def join_pairs(model: ir.Model, notes: Remarks) -> None:
    """Let roundings read and give half precision next to operators that compute in it, in place.

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
