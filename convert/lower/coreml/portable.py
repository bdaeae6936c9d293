"""Core ML's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Emitted, binary, unary
from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor


class Portable(Emitted):
    """Elements and tensors of a program."""

    g: Builder

    add, sub = binary("add"), binary("sub")
    mul, div = binary("mul"), binary("real_div")
    maximum, minimum = binary("maximum"), binary("minimum")
    less, greater = binary("less"), binary("greater")
    abs, sign = unary("abs"), unary("sign")
    exp, sqrt = unary("exp"), unary("sqrt")
    tanh, sigmoid = unary("tanh"), unary("sigmoid")
    relu = unary("relu")

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
