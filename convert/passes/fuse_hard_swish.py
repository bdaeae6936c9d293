"""Make ``HardSigmoid`` and ``HardSwish`` of their clipped lines."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.match import Match, Number, OneOf, OpPattern, Pattern, close, op, var
from edgeinfer.convert.passes.rewrite import Fusion, ReplacementBuilder

_x = var("x")


def _between(value: Pattern, high: float) -> OneOf:
    """Every spelling of a value clipped to 0..high."""
    return OneOf(
        (
            op.Clip(value, 0.0, high),
            op.Min(op.Max(value, 0.0), high),
            op.Max(op.Min(value, high), 0.0),
            op.Min(op.Relu(value), high),
            op.Clip(op.Relu(value), 0.0, high),
        )
    )


def _is_sixth(node: ir.Node) -> bool:
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    return close(alpha, 1 / 6, ir.DataType.FLOAT) and close(beta, 0.5, ir.DataType.FLOAT)


_sixth = OpPattern("HardSigmoid", (_x,), _is_sixth)
_line = _between(Number("alpha") * _x + Number("beta"), 1.0)


class FuseHardSwish(Fusion):
    """Make ``HardSwish`` of a value times its hard sigmoid.

    Given::

        a = Add(x, 3)       c = Clip(a, 0, 6)       m = Mul(x, c)       y = Div(m, 6)

    or ``y = Mul(x, h)`` with ``h = HardSigmoid<alpha=1/6, beta=0.5>(x)``

    Result::

        y = HardSwish(x)
    """

    since: ClassVar[int] = 14
    patterns: ClassVar[tuple[Pattern, ...]] = (_x * _between(_x + 3.0, 6.0) / 6, _x * _sixth)

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node."""
        build.op("HardSwish", match.values["x"])
        return True


class FuseHardSigmoid(Fusion):
    """Make ``HardSigmoid`` of a line clipped to 0..1, or of relu6(x + 3) / 6.

    Runs after ``FuseHardSwish``, which would not find its clip otherwise.

    Given::

        a = Add(x, 3)       c = Clip(a, 0, 6)       y = Div(c, 6)

    Result::

        y = HardSigmoid<alpha=0.16666667, beta=0.5>(x)
    """

    patterns: ClassVar[tuple[Pattern, ...]] = (1 / 6 * _between(_x + 3.0, 6.0), _line)

    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build one node; a line with a falling or no slope is left alone."""
        alpha, beta = match.numbers.get("alpha", 1 / 6), match.numbers.get("beta", 0.5)
        if alpha <= 0 or beta == 0:
            return False
        build.op("HardSigmoid", match.values["x"], alpha=alpha, beta=beta)
        return True
