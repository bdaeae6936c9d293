"""Take ``Attention`` apart for targets that have no such operator, or a slow one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    attr,
    is_op,
    outcome,
    same_dim,
)
from edgeinfer.convert.passes.masks import keeps_a_key
from edgeinfer.convert.passes.rewrite import ReplacementBuilder, sweep


class SplitAttention(ir.passes.InPlacePass):
    """Undo ``FuseAttention``: products, mask and softmax in the place of ``Attention``.

    Only the form with four axes, equal heads, no cache and no causal flag is split; all others are
    left alone. The zero rows of ``Attention`` for fully masked queries are kept by a guard, which
    is left out where the mask is known to leave a key in every row.

    Given::

        y = Attention<scale=0.125>(q, k, v, mask)

    Result::

        s = Mul(q, 0.125)       t = Transpose<perm=[0,1,3,2]>(k)        m = MatMul(s, t)
        a = Add(m, mask)        p = Softmax<axis=-1>(a)
        g = Where(IsNaN(p), 0, p)                                       y = MatMul(g, v)
    """

    def __init__(self, longest: int | None = None) -> None:
        """Leave what has more keys than ``longest``, or an unknown number."""
        super().__init__()
        self._longest = longest

    def call(self, model: ir.Model) -> PassOutcome:
        """Split every node of the known form."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            if is_op(node, "Attention") and _plain(node) and _is_short(node, self._longest):
                build = ReplacementBuilder(namer, node.outputs[0].name or "attention")
                _split(node, build)
                before = [p for v in node.inputs if v is not None and (p := v.producer())]
                build.commit(model.graph, node)
                sweep(before)
                count += 1
        return outcome(model, count)


def _plain(node: ir.Node) -> bool:
    inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
    q, k, v, mask = inputs[:4]
    if any(extra is not None for extra in inputs[4:]) or q is None or k is None or v is None:
        return False
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    shapes = [x.shape for x in (q, k, v)]
    if any(s is None or len(s) != 4 for s in shapes) or q.dtype is None:
        return False
    heads = {s[1] if isinstance(s[1], int) else None for s in shapes if s is not None}
    known = {"scale"} | {n for n in ("is_causal", "softcap") if not attr(node, n, 0)}
    known |= {"qk_matmul_output_mode", "kv_num_heads", "q_num_heads"}
    if mask is not None and not _spans_keys(mask, k):
        return False
    if "scale" not in node.attributes and (q.shape is None or not isinstance(q.shape[3], int)):
        return False
    return set(node.attributes) <= known and len(heads) == 1 and None not in heads


def _is_short(node: ir.Node, longest: int | None) -> bool:
    keys = node.inputs[1]
    size = keys.shape[2] if keys is not None and keys.shape is not None else None
    return longest is None or (isinstance(size, int) and size <= longest)


def _spans_keys(mask: ir.Value, k: ir.Value) -> bool:
    """Whether the mask has a column for each key: ``Attention`` pads a shorter one."""
    if mask.shape is None or k.shape is None or not len(mask.shape):
        return False
    known = mask.dtype in (k.dtype, ir.DataType.BOOL)
    return known and same_dim(mask.shape[-1], k.shape[2])


def _split(node: ir.Node, build: ReplacementBuilder) -> None:
    q, k, v = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if q is None or q.dtype is None or q.shape is None:
        raise ValueError(f"node {node.name!r} has no queries")
    dtype = q.dtype.numpy()
    size = q.shape[3]
    scale = attr(node, "scale") if "scale" in node.attributes else 1 / math.sqrt(int(str(size)))
    scaled = build.op("Mul", q, build.const(np.asarray(scale, dtype), "scale"))
    scores = build.op("MatMul", scaled, build.op("Transpose", k, perm=[0, 1, 3, 2]))
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        scores = build.op("Where", mask, scores, build.const(np.asarray(-np.inf, dtype), "masked"))
    elif mask is not None:
        scores = build.op("Add", scores, mask)
    weights = build.op("Softmax", scores, axis=-1)
    if not keeps_a_key(mask):
        zero = build.const(np.zeros((), dtype), "zero")
        weights = build.op("Where", build.op("IsNaN", weights), zero, weights)
    build.op("MatMul", weights, v)
