"""TFLite's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Emitted, binary, unary
from edgeinfer.convert.lower.core.table import Body, adopt
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.ops.unary import logarithm
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import NUMBERS, REALS, widened

_REDUCTIONS = {"max": "REDUCE_MAX", "sum": "SUM", "mean": "MEAN"}


class Portable(Emitted):
    """Elements and tensors of a file."""

    g: Builder

    add, sub = binary("ADD"), binary("SUB")
    mul, div = binary("MUL"), binary("DIV")
    maximum, minimum = binary("MAXIMUM"), binary("MINIMUM")
    less, greater = binary("LESS"), binary("GREATER")
    abs, neg = unary("ABS"), unary("NEG")
    sign, exp = unary("SIGN"), unary("EXP")
    sqrt = unary("SQRT")
    tanh, sigmoid = unary("TANH"), unary("LOGISTIC")
    relu = unary("RELU")

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

    def is_half(self, x: Tensor) -> bool:
        """Halves are computed in single precision."""
        return False

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
