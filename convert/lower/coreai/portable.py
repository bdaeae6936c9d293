"""Core AI's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.convert.lower.core.portable import Emitted, binary, unary
from edgeinfer.convert.lower.core.table import COMPARISONS, LOGIC, NORMS, SUMS, Body, adopt
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.ops.reduce import reduced
from edgeinfer.convert.lower.coreai.registry import ALL, BOOL, FLOATS, NUMBERS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor

_DTYPES = {
    **dict.fromkeys(("PRelu", "Relu", "Max", "Min"), NUMBERS),
    **dict.fromkeys((*SUMS, *COMPARISONS), ALL),
    **dict.fromkeys(LOGIC, BOOL),
    "Where": OPS.dtypes,
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"), NUMBERS),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), NUMBERS | BOOL),
}


class Portable(Emitted):
    """Elements and tensors of an asset."""

    g: Builder

    add, sub = binary("add"), binary("sub")
    mul, div = binary("mul"), binary("divide")
    maximum, minimum = binary("maximum"), binary("minimum")
    greater, equal, logical_not = binary("greater"), binary("equal"), unary("not_")
    logical_and, logical_or, logical_xor = binary("and"), binary("or"), binary("xor")
    exp, log = unary("exp"), unary("log")
    sqrt, rsqrt = unary("sqrt"), unary("rsqrt")
    tanh, sigmoid, erf = unary("tanh"), unary("sigmoid"), unary("erf")
    sin, cos, tan = unary("sin"), unary("cos"), unary("tan")
    asin, acos, atan = unary("asin"), unary("acos"), unary("atan")
    sinh, cosh, round = unary("sinh"), unary("cosh"), unary("round_")

    def abs(self, x: Tensor) -> Tensor:
        """Magnitude."""
        return x if x.dtype.kind == "u" else self.g.unary("abs_", x)

    def relu(self, x: Tensor) -> Tensor:
        """The positive part."""
        return self.g.unary("relu", x) if x.is_float else self.g.binary("maximum", x, 0)

    def floor(self, x: Tensor) -> Tensor:
        """Round down."""
        return self.g.floor(x)

    def ceil(self, x: Tensor) -> Tensor:
        """Round up."""
        return self.g.neg(self.g.floor(self.g.neg(x)))

    def less(self, a: Any, b: Any) -> Tensor:
        """Whether a < b."""
        return self.g.less(a, b)

    def greater_equal(self, a: Any, b: Any) -> Tensor:
        """Whether a >= b; NaN is neither."""
        more, same = self.g.binary("greater", a, b), self.g.binary("equal", a, b)
        return self.g.binary("or", more, same)

    def less_equal(self, a: Any, b: Any) -> Tensor:
        """Whether a <= b; NaN is neither."""
        return self.greater_equal(b, a)

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

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool = True) -> Tensor:
        """Reduce over axes."""
        return reduced(self.g, kind, x, axes, keep)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""

    def write(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return body(Portable(g), *operands)

    def write_whole(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return in_single(lambda g, *values: body(Portable(g), *values))(g, *operands)

    writers = {
        **dict.fromkeys(("elements", "ReduceMax", "ReduceMin", "LogSoftmax", *NORMS), write),
        **dict.fromkeys(("tensors", "reduction"), write_whole),
    }
    adopt(OPS, writers, dtypes=_DTYPES, default=FLOATS)
