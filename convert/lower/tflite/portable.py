"""TFLite's names for what shared lowerings write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core.portable import Emitted, binary, unary
from edgeinfer.convert.lower.core.table import COMPARISONS, LOGIC, NORMS, SUMS, Body, adopt
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import absolute, select
from edgeinfer.convert.lower.tflite.ops.reduce import Axes, axes_of, has_largest, reduced
from edgeinfer.convert.lower.tflite.ops.unary import logarithm
from edgeinfer.convert.lower.tflite.registry import ANY, INTEGERS, NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import DOUBLES, NUMBERS, REALS, is_real, widened

_BOOL = frozenset({ir.DataType.BOOL})
_SUMS = DOUBLES | INTEGERS | {ir.DataType.UINT32}
_DTYPES = {
    **dict.fromkeys(("PRelu", "Relu", "Max", "Min", *SUMS), NUMBERS),
    **dict.fromkeys(COMPARISONS, NUMBERS | _BOOL),
    **dict.fromkeys(LOGIC, _BOOL),
    "Where": ANY,
    **dict.fromkeys(("Exp", "Sqrt", "Floor", "Ceil", "Round"), DOUBLES),
    **dict.fromkeys(("Reciprocal", "Sum", "Mean"), DOUBLES),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd"), _SUMS),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare"), _SUMS),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), NUMBERS | _BOOL),
    # The axes are int64, the data is not.
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), DOUBLES | {ir.DataType.INT64}),
}


class Portable(Emitted):
    """Elements and tensors of a file."""

    g: Builder

    add, sub = binary("ADD"), binary("SUB")
    mul, div = binary("MUL"), binary("DIV")
    maximum, minimum = binary("MAXIMUM"), binary("MINIMUM")
    less, greater, equal = binary("LESS"), binary("GREATER"), binary("EQUAL")
    less_equal, greater_equal = binary("LESS_EQUAL"), binary("GREATER_EQUAL")
    logical_and, logical_or = binary("LOGICAL_AND"), binary("LOGICAL_OR")
    logical_xor, logical_not = binary("NOT_EQUAL"), unary("LOGICAL_NOT")
    neg, sign = unary("NEG"), unary("SIGN")
    exp, sqrt, rsqrt = unary("EXP"), unary("SQRT"), unary("RSQRT")
    tanh, sigmoid = unary("TANH"), unary("LOGISTIC")
    floor, ceil, round = unary("FLOOR"), unary("CEIL"), unary("ROUND")

    def abs(self, x: Tensor) -> Tensor:
        """Magnitude."""
        return absolute(self.g, x)

    def relu(self, x: Tensor) -> Tensor:
        """The positive part."""
        if x.dtype == np.float32:
            return self.g.unary("RELU", x)
        return self.g.binary("MAXIMUM", x, 0)

    def log(self, x: Tensor) -> Tensor:
        """Natural logarithm."""
        return logarithm(self.g, x) if x.dtype == np.float32 else self.g.unary("LOG", x)

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

    def axes(self, x: Tensor, given: Any, noop: int) -> Axes:
        """Return the axes, as a tensor where they are known only at run time."""
        return axes_of(x, given, noop)

    def reduce(self, kind: str, x: Tensor, axes: Axes, keep: bool = True) -> Tensor:
        """Reduce over axes."""
        return reduced(self.g, kind, x, axes, keep)

    def drop(self, x: Tensor, axes: Axes) -> Tensor:
        """Sum over single elements."""
        return reduced(self.g, "sum", x, axes, False)

    def positions(self, x: Tensor) -> list[int]:
        """Return the axes between the batch and the channels, which are last."""
        return list(range(1, x.rank - 1))

    def by_channel(self, x: Tensor, vector: Tensor) -> Tensor:
        """Return the vector: channels are last."""
        return vector

    def has_largest(self, x: Tensor, axes: Axes) -> bool:
        """Say whether the largest of known axes can be found."""
        return has_largest(x, axes)


def _as_given(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    return body(Portable(g), *operands)


@widened
def _wide(g: Builder, *operands: Any, body: Body) -> Any:
    return body(Portable(g), *operands)


def _write(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    return _wide(g, *operands, body=body)


def _reals(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    if not is_real(operands[0].dtype):
        raise Refusal(f"takes no {operands[0].dtype.name}", "unsupported_dtype")
    return _write(g, body, operands)


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""
    writers = {
        **dict.fromkeys(("elements", "tensors", "reduction"), _write),
        # The limits of what is empty are those of the narrow type.
        **dict.fromkeys(("ReduceMax", "ReduceMin", *NORMS), _as_given),
        **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), _reals),
    }
    domains = {"InstanceNormalization": NHWC}
    adopt(OPS, writers, dtypes=_DTYPES, default=REALS, known_axes=False, domains=domains)
