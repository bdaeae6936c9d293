"""Make ``Swish`` of a value times its sigmoid."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, Number, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")
_silu = _x * op.Sigmoid(_x)
_quick_gelu = _x * op.Sigmoid(Number("alpha") * _x)
_exponential = _x * (op.Exp(op.Neg(_x)) + 1) ** -1


class FuseSilu(Fusion):
    """Make ``Swish`` (SiLU; with alpha 1.702, QuickGelu) of its formula.

    Given::

        a = Mul(x, 1.702)       s = Sigmoid(a)      y = Mul(x, s)

    Result::

        y = Swish<alpha=1.702>(x)
    """

    since: ClassVar[int] = 24
    patterns: ClassVar[tuple[Pattern, ...]] = (_silu, _quick_gelu, _exponential)

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        build.op("Swish", match.values["x"], alpha=match.numbers.get("alpha", 1.0))
        return True
