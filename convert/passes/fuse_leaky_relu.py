"""Make ``LeakyRelu`` of its Max, Min and Where forms."""

from __future__ import annotations

import math
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, Number, OneOf, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")
_scaled = Number("alpha") * _x
_where = OneOf(
    (
        op.Where(op.Greater(_x, 0.0), _x, _scaled),
        op.Where(op.GreaterOrEqual(_x, 0.0), _x, _scaled),
        op.Where(op.Less(_x, 0.0), _scaled, _x),
        op.Where(op.LessOrEqual(_x, 0.0), _scaled, _x),
    )
)


class FuseLeakyRelu(Fusion):
    """Make ``LeakyRelu`` of a value joined with a multiple of itself.

    ``Max`` takes the larger one, so the slope must be between 0 and 1; ``Min`` the smaller one, so
    it must be above 1. A slope of 0 is left alone: 0 times minus infinity is no number.

    Given::

        a = Mul(x, 0.2)     y = Max(x, a)

    Result::

        y = LeakyRelu<alpha=0.2>(x)
    """

    patterns: ClassVar[tuple[Pattern, ...]] = (
        op.Max(_x, _scaled),
        op.Min(_x, _scaled),
        _where,
    )

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node where the slope fits the form."""
        alpha = match.numbers["alpha"]
        producer = out.producer()
        form = "" if producer is None else producer.op_type
        fits = {"Max": 0 < alpha < 1, "Min": alpha > 1, "Where": alpha != 0}[form]
        if not fits or not math.isfinite(alpha):
            return False
        build.op("LeakyRelu", match.values["x"], alpha=alpha)
        return True
