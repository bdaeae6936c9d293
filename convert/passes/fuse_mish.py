"""Make ``Softplus`` of its guarded form and ``Mish`` of its formula."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, OneOf, Pattern, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")
_guarded = op.Where(op.Greater(_x, 20.0), _x, op.Softplus(_x))
_exponential = op.Log(op.Exp(_x) + 1)


class FuseSoftplus(Fusion):
    """Drop the guard that torch puts around ``Softplus``.

    Above 20 the two sides differ by less than 2.1e-9, half a unit in the last place of a float32.
    ``Log(Exp(x) + 1)`` on its own is left alone: above 88 it is infinite.

    Given::

        p = Softplus(x)     g = Greater(x, 20)      y = Where(g, x, p)

    Result::

        y = Softplus(x)
    """

    patterns: ClassVar[tuple[Pattern, ...]] = (_guarded,)
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
