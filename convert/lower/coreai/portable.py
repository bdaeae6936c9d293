"""Core AI's names for what shared lowerings write."""

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
    SIGNS,
    SUMS,
    Body,
    adopt,
)
from edgeinfer.convert.lower.coreai.builder import LARGEST, Builder, Extent
from edgeinfer.convert.lower.coreai.ops import recurrent
from edgeinfer.convert.lower.coreai.ops.cut import counted
from edgeinfer.convert.lower.coreai.ops.reduce import reduced
from edgeinfer.convert.lower.coreai.registry import (
    ALL,
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    OPS,
    in_single,
)
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.ops.recurrent import Direction

_DTYPES = {
    **dict.fromkeys(("PRelu", "Relu", "Max", "Min", *SIGNS), NUMBERS),
    **dict.fromkeys((*SUMS, *COMPARISONS), ALL),
    **dict.fromkeys(LOGIC, BOOL),
    **dict.fromkeys(RECURRENT, FLOATS | INTEGERS),
    # Masks, lengths and positions are no floats.
    **{"Attention": ALL, "RotaryEmbedding": NUMBERS, "RoiAlign": NUMBERS},
    **dict.fromkeys(("Where", "Trilu", "Constant"), OPS.dtypes),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"), NUMBERS),
    "Einsum": NUMBERS,
    **dict.fromkeys(("ReduceMax", "ReduceMin"), NUMBERS | BOOL),
}


class Portable(Moved):
    """Elements and tensors of an asset."""

    g: Builder

    add, sub = binary("add"), binary("sub")
    mul, div = binary("mul"), binary("divide")
    power = binary("pow")
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
        if x.dtype.kind == "u":
            return self.g.binary("minimum", x, 1)
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

    def ends(self, x: Tensor) -> list[int]:
        """Return what a slice of whole axes ends with."""
        return [LARGEST if s is None else s for s in x.shape]

    def steps(self, x: Tensor, axis: int) -> Tensor:
        """Return 0, 1, 2, ... along an axis."""
        return self.g.cast(counted(self.g, self.g.extent(x, axis)), np.int32)

    def take(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Take slices along an axis."""
        return self.g.take(x, indices, axis)

    def product(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply matrices."""
        order = [*range(b.rank - 2), b.rank - 1, b.rank - 2]
        return self.g.binary("batch_matmul", a, self.g.transpose(b, order) if transposed else b)

    def zeros(self, sizes: Sequence[Extent], dtype: Any) -> Tensor:
        """Return zeros."""
        return self.g.expand(self.g.const(np.zeros([1] * len(sizes), dtype)), sizes)

    def run(self, direction: Direction) -> tuple[Tensor, list[Tensor]]:
        """Repeat a step."""
        return recurrent.run(self, self.g, direction)

    def softmax(self, x: Tensor) -> Tensor:
        """Exponentials over their sum."""
        return self.g.call("softmax", x, np.int32(x.rank - 1))

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
        **dict.fromkeys(
            (
                "elements",
                "moved",
                "ReduceMax",
                "ReduceMin",
                "LogSoftmax",
                "Constant",
                *POOLS,
                *NORMS,
            ),
            write,
        ),
        **dict.fromkeys(("tensors", "reduction"), write_whole),
    }
    adopt(OPS, writers, dtypes=_DTYPES, default=FLOATS)
