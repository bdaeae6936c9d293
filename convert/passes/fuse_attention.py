"""Make ``Attention`` of scaled products, mask and softmax."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, is_op, same_dim
from edgeinfer.convert.passes.masks import keeps_a_key
from edgeinfer.convert.passes.match import Match, Number, OneOf, OpPattern, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_scores = Number("cs") * op.MatMul(Number("cq") * var("q"), Number("ck") * var("kt"))
_masked = OneOf((op.Add(_scores, var("mask")), _scores))
_softmax = OpPattern("Softmax", (_masked,), lambda n: attr(n, "axis", -1) in (-1, 3)).named("p")
_guarded = op.Where(op.IsNaN(_softmax), 0.0, _softmax).named("guarded")

Dims = tuple[int | ir.SymbolicDim, ...]


class FuseAttention(Fusion):
    """Make ``Attention`` of the products around a softmax, in its form with four axes.

    The transposed keys are taken before their transpose, so none is added. A softmax over a row
    that is masked all along is NaN and the row of ``Attention`` is zero, so a mask must be known to
    leave a key in every row, or the exporter must have guarded the softmax itself.

    Given::

        s = Mul(q, 0.353553)        t = Transpose<perm=[0,1,3,2]>(k)        u = Mul(t, 0.353553)
        m = MatMul(s, u)            a = Add(m, mask)                        p = Softmax(a)
        y = MatMul(p, v)

    Result::

        y = Attention<scale=0.125>(q, k, v, mask)
    """

    since: ClassVar[int] = 23
    patterns: ClassVar[tuple[Pattern, ...]] = (
        op.MatMul(_guarded, var("v")),
        op.MatMul(_softmax, var("v")),
    )

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node, and at most one transpose or reshape of the keys."""
        q, kt, v = (match.values[name] for name in ("q", "kt", "v"))
        mask = match.values.get("mask")
        scale = math.prod(match.numbers[c] for c in ("cs", "cq", "ck"))
        if not (scale > 0 and math.isfinite(scale)) or not _heads_agree(q, kt, v):
            return False
        if mask is not None and not _mask_fits(mask, q, kt):
            return False
        if "guarded" not in match.values and not keeps_a_key(mask):
            return False
        keys = _untransposed(kt, build)
        if keys is None:
            return False
        build.op("Attention", q, keys, v, *([] if mask is None else [mask]), scale=scale)
        return True


def _dims(value: ir.Value) -> Dims:
    return () if value.shape is None else tuple(value.shape)


def _heads_agree(q: ir.Value, kt: ir.Value, v: ir.Value) -> bool:
    """Whether batch and heads are equal: ``MatMul`` would broadcast them, ``Attention`` not."""
    shapes = [_dims(value) for value in (q, kt, v)]
    if any(len(s) != 4 for s in shapes):
        return False
    a, b, c = shapes
    same = all(same_dim(a[i], b[i]) and same_dim(a[i], c[i]) for i in (0, 1))
    return same and same_dim(a[3], b[2]) and same_dim(b[3], c[2])


def _mask_fits(mask: ir.Value, q: ir.Value, kt: ir.Value) -> bool:
    """Whether the mask has a column for each key, and a row for each query or one for all.

    A mask with fewer columns than keys would be padded, so one column is not a broadcast.
    """
    dims, wanted = _dims(mask), (*_dims(q)[:3], _dims(kt)[3])
    if not 2 <= len(dims) <= 4 or mask.dtype != q.dtype or not same_dim(dims[-1], wanted[3]):
        return False
    lead = zip(dims[:-1], wanted[4 - len(dims) : 3], strict=True)
    return all(d == 1 or same_dim(d, w) for d, w in lead)


def _untransposed(kt: ir.Value, build: ReplacementBuilder) -> ir.Value | None:
    """Return the keys with their last two axes as they were before the exporter's transpose."""
    node = kt.producer()
    if is_op(node, "Transpose") and node is not None and node.inputs[0] is not None:
        perm = list(attr(node, "perm", (3, 2, 1, 0)))
        perm[2], perm[3] = perm[3], perm[2]
        source = node.inputs[0]
        return source if perm == [0, 1, 2, 3] else build.op("Transpose", source, perm=perm)
    if is_op(node, "Reshape") and node is not None and node.inputs[0] is not None:
        return _before_reshape(kt, node.inputs[0].producer(), build)
    return None


def _before_reshape(
    kt: ir.Value, node: ir.Node | None, build: ReplacementBuilder
) -> ir.Value | None:
    """Look through ``Reshape(Transpose(t))`` of three axes, which parts the leading axis."""
    if node is None or not is_op(node, "Transpose"):
        return None
    t, perm, shape = node.inputs[0], list(attr(node, "perm", (2, 1, 0))), _dims(kt)
    if t is None or len(perm) != 3 or not _equal(_dims(node.outputs[0])[1:], shape[2:]):
        return None
    wanted: Dims = (*shape[:2], shape[3], shape[2])
    perm[1], perm[2] = perm[2], perm[1]
    folded = perm == [0, 1, 2]
    before = t.producer() if folded else None
    source = before.inputs[0] if before is not None and is_op(before, "Reshape") else None
    if source is not None and _equal(_dims(source), wanted):
        return source
    target = [d if isinstance(d, int) else -1 for d in wanted]
    if target.count(-1) > 1 or 0 in target:
        return None
    keys = t if folded else build.op("Transpose", t, perm=perm)
    return build.op("Reshape", keys, build.const(np.array(target, np.int64), "shape"))


def _equal(a: Dims, b: Dims) -> bool:
    return len(a) == len(b) and all(same_dim(x, y) for x, y in zip(a, b, strict=True))
