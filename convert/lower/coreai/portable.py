"""Core AI's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.convert.lower.core.portable import Emitted, binary, unary
from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor


class Portable(Emitted):
    """Elements and tensors of an asset."""

    g: Builder

    add, sub = binary("add"), binary("sub")
    mul, div = binary("mul"), binary("divide")
    maximum, minimum = binary("maximum"), binary("minimum")
    greater = binary("greater")
    abs, exp = unary("abs_"), unary("exp")
    log, sqrt = unary("log"), unary("sqrt")
    tanh, sigmoid = unary("tanh"), unary("sigmoid")
    relu = unary("relu")

    def less(self, a: Any, b: Any) -> Tensor:
        """Whether a < b."""
        return self.g.less(a, b)

    def neg(self, x: Tensor) -> Tensor:
        """Change the sign."""
        return self.g.neg(x)

    def sign(self, x: Tensor) -> Tensor:
        """-1, 0 or 1."""
        below = self.g.select(self.g.less(x, 0), self.g.const(-1, x.dtype), x)
        return self.g.select(self.g.binary("greater", x, 0), self.g.const(1, x.dtype), below)

    def expm1(self, x: Tensor) -> Tensor:
        """``2 t / (1 - t)`` with ``t = tanh(x / 2)``, without a difference near zero."""
        half = self.g.binary("mul", self.g.binary("minimum", x, 0), 0.5)
        t = self.g.unary("tanh", half)
        return self.g.binary("divide", self.g.binary("add", t, t), self.g.binary("sub", 1, t))

    def select(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        """Take one or the other."""
        return self.g.select(condition, a, b)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Reduce over axes, which stay."""
        return self.g.reduce(kind, x, axes)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""

    def write(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return body(Portable(g), *operands)

    def write_whole(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return in_single(lambda g, *values: body(Portable(g), *values))(g, *operands)

    adopt(OPS, elements=write, tensors=write_whole, dtypes={"PRelu": NUMBERS}, default=FLOATS)
