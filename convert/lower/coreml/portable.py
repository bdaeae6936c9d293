"""Core ML's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor


class Portable:
    """Elements and tensors of a program."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def _binary(self, op: str, a: Any, b: Any) -> Tensor:
        return self.g.binary(op, a, b)

    def _unary(self, op: str, x: Tensor) -> Tensor:
        return self.g.unary(op, x)

    add, sub = partialmethod(_binary, "add"), partialmethod(_binary, "sub")
    mul, div = partialmethod(_binary, "mul"), partialmethod(_binary, "real_div")
    maximum, minimum = partialmethod(_binary, "maximum"), partialmethod(_binary, "minimum")
    less, greater = partialmethod(_binary, "less"), partialmethod(_binary, "greater")
    abs, sign = partialmethod(_unary, "abs"), partialmethod(_unary, "sign")
    exp, sqrt = partialmethod(_unary, "exp"), partialmethod(_unary, "sqrt")
    tanh, sigmoid = partialmethod(_unary, "tanh"), partialmethod(_unary, "sigmoid")
    relu = partialmethod(_unary, "relu")

    def neg(self, x: Tensor) -> Tensor:
        """Change the sign."""
        return self.g.binary("mul", x, -1)

    def log(self, x: Tensor) -> Tensor:
        """Logarithm without the epsilon that it adds by default."""
        return self.g.unary("log", x, epsilon=0.0)

    def expm1(self, x: Tensor) -> Tensor:
        """What ``elu`` computes below zero."""
        return self.g.unary("elu", self.g.binary("minimum", x, 0.0), alpha=1.0)

    def select(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        """Take one or the other."""
        like = a if isinstance(a, Tensor) else b
        both = [v if isinstance(v, Tensor) else self.g.const(v, like.dtype) for v in (a, b)]
        return self.g.select(condition, *both)

    def named(self, x: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor:
        """Every tensor is computed once."""
        return use(x)

    def is_half(self, x: Tensor) -> bool:
        """Whether elements have half precision."""
        return x.dtype == np.float16

    def rank(self, x: Tensor) -> int:
        """Number of axes."""
        return x.rank

    def map(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Write the operators."""
        return function(self, *tensors)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Reduce over axes, which stay."""
        return self.g.reduce(f"reduce_{kind}", x, list(axes), True)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""

    def write(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return body(Portable(g), *operands)

    adopt(OPS, elements=write, tensors=_in_single, dtypes={}, default=FLOATS)


def _in_single(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    """Sums of squares leave half precision."""
    own = operands[0].dtype
    wide = [g.cast(v, np.float32) if isinstance(v, Tensor) else v for v in operands]
    return g.cast(body(Portable(g), *wide), own)
