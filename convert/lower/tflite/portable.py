"""TFLite's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.ops.unary import logarithm
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import NUMBERS, REALS, widened

_REDUCTIONS = {"max": "REDUCE_MAX", "sum": "SUM", "mean": "MEAN"}


class Portable:
    """Elements and tensors of a file."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def _binary(self, code: str, a: Any, b: Any) -> Tensor:
        return self.g.binary(code, a, b)

    def _unary(self, code: str, x: Tensor) -> Tensor:
        return self.g.unary(code, x)

    add, sub = partialmethod(_binary, "ADD"), partialmethod(_binary, "SUB")
    mul, div = partialmethod(_binary, "MUL"), partialmethod(_binary, "DIV")
    maximum, minimum = partialmethod(_binary, "MAXIMUM"), partialmethod(_binary, "MINIMUM")
    less, greater = partialmethod(_binary, "LESS"), partialmethod(_binary, "GREATER")
    abs, neg = partialmethod(_unary, "ABS"), partialmethod(_unary, "NEG")
    sign, exp = partialmethod(_unary, "SIGN"), partialmethod(_unary, "EXP")
    sqrt = partialmethod(_unary, "SQRT")
    tanh, sigmoid = partialmethod(_unary, "TANH"), partialmethod(_unary, "LOGISTIC")
    relu = partialmethod(_unary, "RELU")

    def log(self, x: Tensor) -> Tensor:
        """Natural logarithm."""
        return logarithm(self.g, x)

    def expm1(self, x: Tensor) -> Tensor:
        """What ``ELU`` computes below zero."""
        return self.g.unary("ELU", self.g.binary("MINIMUM", x, np.float32(0)))

    def select(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        """Take one or the other."""
        like = a if isinstance(a, Tensor) else b
        both = [v if isinstance(v, Tensor) else self.g.const(v, like.dtype) for v in (a, b)]
        return select(self.g, condition, *both)

    def named(self, x: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor:
        """Every tensor is computed once."""
        return use(x)

    def is_half(self, x: Tensor) -> bool:
        """Halves are computed in single precision."""
        return False

    def rank(self, x: Tensor) -> int:
        """Number of axes."""
        return x.rank

    def map(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Write the operators."""
        return function(self, *tensors)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Reduce over axes, which stay."""
        return self.g.reduce(_REDUCTIONS[kind], x, list(axes), True)


@widened
def _write(g: Builder, *operands: Any, body: Body) -> Any:
    return body(Portable(g), *operands)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""

    def write(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
        return _write(g, *operands, body=body)

    adopt(OPS, elements=write, tensors=write, dtypes={"PRelu": NUMBERS}, default=REALS)
