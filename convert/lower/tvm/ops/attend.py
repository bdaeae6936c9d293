"""Attention of a few tokens to many, as one kernel instead of the operator's definition."""

from __future__ import annotations

from math import prod

import onnx_ir as ir
from tvm import tirx

from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import OPS
from edgeinfer.kernels.defs.attend import BLOCK, Short, attend
from edgeinfer.kernels.defs.gemm import PARALLEL_ABOVE

DOMAIN = "edgeinfer.attend"
"""Of the operator that such nodes become; ``Attention`` itself is known by its definition only."""

_OP = "ShortAttention"
_MOST_ROWS, _LEAST_PLACES = 16, 64
"""Queries that share keys, and keys, from where on matrices pay more."""

_KNOWN = frozenset({"is_causal", "scale"})
_DEFAULTS = {"qk_matmul_output_mode": 0, "softcap": 0.0, "softmax_precision": 1}
_COUNTED = 6
"""Input that says how many tokens there are."""


def takes(node: ir.Node) -> bool:
    """Whether the kernel computes a node: float32 of fixed sizes, without a mask or a past."""
    if node.op_type != "Attention" or node.domain:
        return False
    for name, attribute in node.attributes.items():
        if name not in _KNOWN and attribute.value != _DEFAULTS.get(name):
            return False
    present = [i for i, value in enumerate(node.inputs) if value is not None]
    if present not in ([0, 1, 2], [0, 1, 2, _COUNTED]):
        return False
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return False
    shapes = [_sizes(v) for v in node.inputs[:3]]
    if any(s is None for s in shapes):
        return False
    q, k, v = (s for s in shapes if s is not None)
    counts = node.inputs[_COUNTED] if len(present) > 3 else None
    if counts is not None and (counts.shape is None or tuple(counts.shape) != q[:1]):
        return False
    return _fits(q, k, v)


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.dtype != ir.DataType.FLOAT or value.shape is None:
        return None
    found = tuple(d for d in value.shape if isinstance(d, int))
    return found if len(found) == len(value.shape) == 4 and all(found) else None


def _fits(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
    if q[1] % k[1] or (q[0], q[3]) != (k[0], k[3]) or k[:3] != v[:3]:
        return False
    rows = q[1] // k[1] * q[2]
    whole = not (k[3] % BLOCK or v[3] % BLOCK)
    return whole and rows <= _MOST_ROWS and k[2] >= _LEAST_PLACES


def mark(model: ir.Model) -> int:
    """Name, in place, the nodes that the kernel computes; returns how many."""
    found = [node for _, node in walk(model) if takes(node)]
    for node in found:
        node.domain, node.op_type = DOMAIN, _OP
        node.resize_inputs(_COUNTED + 1 if len(node.inputs) > _COUNTED else 3)
        for name in set(node.attributes) - _KNOWN:
            node.attributes.pop(name)
    if found:
        model.opset_imports[DOMAIN] = 1
    return len(found)


@OPS.lower(_OP, domain=DOMAIN)
def short_attention(
    g: Builder,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
) -> Tensor:
    """``softmax(Q @ K.T * scale) @ V`` of the tokens that there are."""
    batch, heads, length, size = K.shape
    tokens, width = Q.shape[2], V.shape[3]
    what = Short(
        batch,
        heads,
        Q.shape[1] // heads,
        tokens,
        length,
        size,
        width,
        size**-0.5 if scale is None else scale,
        bool(is_causal),
        nonpad_kv_seqlen is not None,
        parallel=prod(Q.shape) * length >= PARALLEL_ABOVE,
    )
    count = batch * heads
    shapes = [(count, what.rows, size), (count, length, size), (count, length, width)]
    operands = [reshape(g, t, s) for t, s in zip((Q, K, V), shapes, strict=True)]
    if nonpad_kv_seqlen is not None:
        zero, most = (tirx.const(n, nonpad_kv_seqlen.dtype) for n in (0, length))
        held = g.map(lambda v: tirx.max(zero, tirx.min(v, most)), nonpad_kv_seqlen)
        operands.append(convert(g, reshape(g, held, (batch,)), "int32"))
    made = g.tir(attend(what), [g.expr(t) for t in operands], (count, what.rows, width))
    return reshape(g, g.wrap(made), (batch, Q.shape[1], tokens, width))
