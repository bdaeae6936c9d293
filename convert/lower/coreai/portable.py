"""Core AI's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor


class Portable:
    """Elements and tensors of an asset."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def _binary(self, op: str, a: Any, b: Any) -> Tensor:
        return self.g.binary(op, a, b)

    def _unary(self, op: str, x: Tensor) -> Tensor:
        return self.g.unary(op, x)

    add, sub = partialmethod(_binary, "add"), partialmethod(_binary, "sub")
    mul, div = partialmethod(_binary, "mul"), partialmethod(_binary, "divide")
    maximum, minimum = partialmethod(_binary, "maximum"), partialmethod(_binary, "minimum")
    greater = partialmethod(_binary, "greater")
    abs, exp = partialmethod(_unary, "abs_"), partialmethod(_unary, "exp")
    log, sqrt = partialmethod(_unary, "log"), partialmethod(_unary, "sqrt")
    tanh, sigmoid = partialmethod(_unary, "tanh"), partialmethod(_unary, "sigmoid")
    relu = partialmethod(_unary, "relu")

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

    def named(self, x: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor:
        """Every tensor is computed once."""
        return use(x)

    def is_half(self, x: Tensor) -> bool:
        """Whether elements have half precision."""
        return bool(x.dtype == np.float16)

    def rank(self, x: Tensor) -> int:
        """Number of axes."""
        return x.rank

    def map(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Write the operators."""
        return function(self, *tensors)

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
