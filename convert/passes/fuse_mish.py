"""Make ``Softplus`` and ``Mish`` of their formulas."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, OneOf, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")
_guarded = op.Where(op.Greater(_x, 20.0), _x, op.Softplus(_x))
_exponential = op.Log(op.Exp(_x) + 1)


class FuseSoftplus(Fusion):
    """Make ``Softplus`` of its formula, and drop the guard that torch puts around it.

    Above 20 the two sides of the guard differ by less than 2.1e-9, half a unit in the last place of
    a float32. The formula is infinite above 88, where its exponential leaves float32; ``Softplus``
    says there what float64 does, as OpenVINO's own fusion has it.

    Given::

        p = Softplus(x)     g = Greater(x, 20)      y = Where(g, x, p)

    Result::

        y = Softplus(x)
    """

    patterns: ClassVar[tuple[Pattern, ...]] = (_exponential, _guarded)
    dtypes: ClassVar[frozenset[ir.DataType]] = frozenset({ir.DataType.FLOAT})

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        build.op("Softplus", match.values["x"])
        return True


class FuseMish(Fusion):
    """Make ``Mish`` of a value times the tanh of its softplus.

    Given::

        p = Softplus(x)     t = Tanh(p)     y = Mul(x, t)

    Result::

        y = Mish(x)
    """

    since: ClassVar[int] = 18
    patterns: ClassVar[tuple[Pattern, ...]] = (
        _x * op.Tanh(OneOf((op.Softplus(_x), _guarded, _exponential))),
    )

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        build.op("Mish", match.values["x"])
        return True
