"""Core ML's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.families import COMPARISONS, RECURRENT
from edgeinfer.convert.lower.core.portable import Moved, binary, unary
from edgeinfer.convert.lower.core.table import (
    LOGIC,
    NORMS,
    POOLS,
    Body,
    adopt,
)
from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops import recurrent
from edgeinfer.convert.lower.coreml.ops.matrix import batched
from edgeinfer.convert.lower.coreml.ops.reduce import reduced
from edgeinfer.convert.lower.coreml.ops.unary import absolute
from edgeinfer.convert.lower.coreml.registry import ALL, BOOL, FLOATS, INTEGERS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.ops.recurrent import Direction

_DTYPES = {
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"), NUMBERS),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "Where", "Trilu", "Constant", *COMPARISONS), ALL),
    **dict.fromkeys(LOGIC, BOOL),
    **dict.fromkeys(RECURRENT, FLOATS | INTEGERS),
    # Masks, lengths and positions are no floats.
    **{"Attention": ALL, "RotaryEmbedding": NUMBERS, "RoiAlign": FLOATS | INTEGERS},
}


class Portable(Moved):
    """Elements and tensors of a program."""

    g: Builder

    add, sub, div = binary("add"), binary("sub"), binary("real_div")
    power = binary("pow")
    maximum, minimum = binary("maximum"), binary("minimum")
    less, greater = binary("less"), binary("greater")
    less_equal, greater_equal = binary("less_equal"), binary("greater_equal")
    logical_and, logical_or = binary("logical_and"), binary("logical_or")
    logical_xor, logical_not = binary("logical_xor"), unary("logical_not")
    exp, sqrt = unary("exp"), unary("sqrt")
    sign, relu = unary("sign"), unary("relu")
    tanh, sigmoid = unary("tanh"), unary("sigmoid")
    sin, cos, tan = unary("sin"), unary("cos"), unary("tan")
    asin, acos, atan = unary("asin"), unary("acos"), unary("atan")
    sinh, cosh, erf = unary("sinh"), unary("cosh"), unary("erf")
    floor, ceil, round = unary("floor"), unary("ceil"), unary("round")

    def abs(self, x: Tensor) -> Tensor:
        """Magnitude; of integers with what it lies between."""
        return absolute(self.g, x)

    def equal(self, a: Any, b: Any) -> Tensor:
        """Whether a = b; truth values are compared as integers."""
        if a.dtype == np.bool_:
            a, b = self.g.cast(a, np.int32), self.g.cast(b, np.int32)
        return self.g.binary("equal", a, b)

    def mul(self, a: Any, b: Any) -> Tensor:
        """Product; the square of an integer is not negative."""
        is_square = a is b and a.is_integer
        span = (0, max(n * n for n in a.bounds)) if is_square else None
        return self.g.binary("mul", a, b, span)

    def neg(self, x: Tensor) -> Tensor:
        """Change the sign."""
        return self.g.binary("mul", x, -1)

    def log(self, x: Tensor) -> Tensor:
        """Logarithm without the epsilon that it adds by default."""
        return self.g.unary("log", x, epsilon=0.0)

    def rsqrt(self, x: Tensor) -> Tensor:
        """One over the root, without the epsilon that Core ML's own adds."""
        return self.g.binary("real_div", 1.0, self.g.unary("sqrt", x))

    def expm1(self, x: Tensor) -> Tensor:
        """What ``elu`` computes below zero."""
        return self.g.unary("elu", self.g.binary("minimum", x, 0.0), alpha=1.0)

    def select(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        """Take one or the other."""
        like = a if isinstance(a, Tensor) else b
        both = [v if isinstance(v, Tensor) else self.g.const(v, like.dtype) for v in (a, b)]
        return self.g.select(condition, *both)

    def steps(self, x: Tensor, axis: int) -> Tensor:
        """Return 0, 1, 2, ... along an axis."""
        return self.g.positions(x, axis)

    def take(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Take slices along an axis."""
        return self.g.emit("gather", x=x, indices=indices, axis=axis)

    def product(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply matrices."""
        return batched(self.g, a, b, transpose_b=transposed)

    def zeros(self, sizes: Sequence[Extent], dtype: Any) -> Tensor:
        """Return zeros."""
        known = [s for s in sizes if isinstance(s, int)]
        if len(known) == len(sizes):
            return self.g.const(np.zeros(known), dtype)
        return self.g.emit("fill", dtype, shape=self.g.vector(sizes), value=dtype.type(0))

    def linear(self, x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by transposed weights."""
        return recurrent.linear(self.g, x, weights, bias)

    def run(self, direction: Direction) -> tuple[Tensor, list[Tensor]]:
        """Repeat a step."""
        return recurrent.run(self, self.g, direction)

    def fused(self, directions: Sequence[Direction]) -> tuple[Tensor, ...] | None:
        """Write lstm."""
        return recurrent.fused(self, self.g, directions)

    def softmax(self, x: Tensor) -> Tensor:
        """Exponentials over their sum."""
        return self.g.emit("softmax", x=x, axis=x.rank - 1)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool = True) -> Tensor:
        """Reduce over axes."""
        return reduced(self.g, kind, x, axes, keep)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""
    writers = {
        **dict.fromkeys(
            ("elements", "reduction", "moved", "LogSoftmax", "Constant", *POOLS, *NORMS), _as_given
        ),
        **dict.fromkeys(("tensors", "ReduceL2"), _in_single),
    }
    adopt(OPS, writers, dtypes=_DTYPES, default=FLOATS)


def _as_given(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    return body(Portable(g), *operands)


def _in_single(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    """Sums of squares leave half precision."""
    own = operands[0].dtype
    wide = [g.cast(v, np.float32) if isinstance(v, Tensor) else v for v in operands]
    return g.cast(body(Portable(g), *wide), own)
