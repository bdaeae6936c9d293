"""Make ``Gelu`` of the erf and tanh formulas."""

from __future__ import annotations

import math
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, OneOf, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_erf = 0.5 * _x * (op.Erf(_x / math.sqrt(2)) + 1)
_inner = OneOf(
    (
        _SQRT_2_OVER_PI * (_x + 0.044715 * _x**3),
        _SQRT_2_OVER_PI * _x * (0.044715 * _x**2 + 1),
    )
)
_tanh = 0.5 * _x * (op.Tanh(_inner) + 1)


class FuseGelu(Fusion):
    """Make ``Gelu`` of its formula, in any order of operands.

    Given::

        s = Div(x, 1.41421354)      e = Erf(s)      a = Add(e, 1)
        m = Mul(x, a)               y = Mul(m, 0.5)

    or, with ``t`` for ``e``, ``t = Tanh(0.797884583 * (x + 0.0447149985 * x * x * x))``

    Result::

        y = Gelu(x)                 y = Gelu<approximate="tanh">(x)
    """

    since: ClassVar[int] = 20
    patterns: ClassVar[tuple[Pattern, ...]] = (_erf, _tanh)

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        erf = any(n.op_type == "Erf" for n in match.nodes)
        build.op("Gelu", match.values["x"], approximate="none" if erf else "tanh")
        return True
