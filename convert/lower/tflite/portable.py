"""TFLite's names for what shared lowerings write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

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
from edgeinfer.convert.lower.ops.recurrent import Direction
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite import recur
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.compare import steps
from edgeinfer.convert.lower.tflite.ops.integer import absolute, select
from edgeinfer.convert.lower.tflite.ops.matrix import expand, product
from edgeinfer.convert.lower.tflite.ops.reduce import Axes, axes_of, has_largest, reduced
from edgeinfer.convert.lower.tflite.ops.unary import logarithm
from edgeinfer.convert.lower.tflite.registry import ANY, FLOATS, INTEGERS, NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import DOUBLES, NUMBERS, REALS, is_real, widened

_BOOL = frozenset({ir.DataType.BOOL})
_SUMS = DOUBLES | INTEGERS | {ir.DataType.UINT32}
_DTYPES = {
    **dict.fromkeys(("PRelu", "Relu", "Max", "Min", *SIGNS, *SUMS), NUMBERS),
    **dict.fromkeys(COMPARISONS, NUMBERS | _BOOL),
    **dict.fromkeys(LOGIC, _BOOL),
    **dict.fromkeys(("Where", "Trilu", "Constant"), ANY),
    **dict.fromkeys(("Exp", "Sqrt", "Floor", "Ceil", "Round"), DOUBLES),
    **dict.fromkeys(("Reciprocal", "Sum", "Mean"), DOUBLES),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd"), _SUMS),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare"), _SUMS),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), NUMBERS | _BOOL),
    **dict.fromkeys(RECURRENT, FLOATS | INTEGERS),
    "DFT": FLOATS,
    "Einsum": DOUBLES | INTEGERS | {ir.DataType.UINT32},
    # So may masks, lengths and positions be.
    "Attention": REALS | INTEGERS | _BOOL,
    "RotaryEmbedding": REALS | INTEGERS,
    # The axes are int64, the data is not.
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), DOUBLES | {ir.DataType.INT64}),
}


class Portable(Moved):
    """Elements and tensors of a file."""

    g: Builder

    add, sub = binary("ADD"), binary("SUB")
    mul, div = binary("MUL"), binary("DIV")
    power = binary("POW")
    maximum, minimum = binary("MAXIMUM"), binary("MINIMUM")
    less, greater, equal = binary("LESS"), binary("GREATER"), binary("EQUAL")
    less_equal, greater_equal = binary("LESS_EQUAL"), binary("GREATER_EQUAL")
    logical_and, logical_or = binary("LOGICAL_AND"), binary("LOGICAL_OR")
    logical_xor, logical_not = binary("NOT_EQUAL"), unary("LOGICAL_NOT")
    neg = unary("NEG")
    exp, sqrt, rsqrt = unary("EXP"), unary("SQRT"), unary("RSQRT")
    tanh, sigmoid = unary("TANH"), unary("LOGISTIC")
    floor, ceil, round = unary("FLOOR"), unary("CEIL"), unary("ROUND")

    def abs(self, x: Tensor) -> Tensor:
        """Magnitude."""
        return absolute(self.g, x)

    def sign(self, x: Tensor) -> Tensor:
        """-1, 0 or 1."""
        if x.dtype not in (np.int64, np.uint64):
            return self.g.unary("SIGN", x)
        low = x if x.dtype == np.uint64 else self.g.binary("MAXIMUM", x, -1)
        return self.g.binary("MINIMUM", low, 1)

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

    def channels(self, x: Tensor) -> int:
        """Return the axis of channels: the last."""
        return x.rank - 1

    def expand_dims(self, x: Tensor, axis: int) -> Tensor:
        """Add an axis of size 1."""
        return expand(self.g, x, axis)

    def steps(self, x: Tensor, axis: int) -> Tensor:
        """Return 0, 1, 2, ... along an axis."""
        return steps(self.g, x, axis)

    def take(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Take slices along an axis."""
        return self.g.gather(x, indices, axis)

    def product(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply matrices."""
        return product(self.g, a, b, adj_y=transposed)

    def row(self, x: Tensor, index: int) -> Tensor:
        """Take one element of the first axis, whose size only directions may know.

        Not by a slice and a reshape: LiteRT 2.3 with XNNPACK gave a WHILE, of an open number of
        steps, a first state that the shape of another tensor had been written over, in 0.3 to 1 %
        of its interpreters. XNNPACK does not take UNPACK.
        """
        if x.data is not None:
            return self.g.const(x.data[index])
        return recur.unpacked(self.g, x, x.shape[0] or 1)[index]

    def split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        """Cut into parts: of integers each has the scales of its own rows."""
        if x.data is not None and x.rank == 2:
            edges = np.cumsum(sizes)[:-1]
            for known in (self.g.scales, self.g.dynamic, self.g.apart):
                whole = [s for s in known if s.size == sum(sizes)]
                known += [part for s in whole for part in np.split(s, edges)]
        return super().split(x, sizes, axis)

    def zeros(self, sizes: Sequence[Extent], dtype: Any) -> Tensor:
        """Return zeros."""
        shape = tuple(s if isinstance(s, int) else None for s in sizes)
        return recur.filled(self.g, sizes, shape)

    def linear(self, x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by transposed weights."""
        return recur.product(self.g, x, weights, bias)

    def run(self, direction: Direction) -> tuple[Tensor, Sequence[Tensor]]:
        """Repeat a step."""
        return recur.run(Portable, self.g, direction, reads_cell=self.g.wants(2))

    def softmax(self, x: Tensor) -> Tensor:
        """Exponentials over their sum."""
        return self.g.unary("SOFTMAX", x, beta=1.0)

    def any_last(self, x: Tensor, dtype: Any) -> Tensor:
        """Whether a truth value holds anywhere along the last axis."""
        return self.g.cast(self.g.reduce("REDUCE_ANY", x, [x.rank - 1], True), dtype)

    def pad_last(self, x: Tensor, size: Extent, value: Any) -> Tensor:
        """Append a value until the last axis has a size, which may be known only at run time."""
        have = self.g.extent(x, x.rank - 1)
        if isinstance(have, int) and isinstance(size, int):
            return self.g.pad(x, [*[(0, 0)] * (x.rank - 1), (0, size - have)], value)
        zeros = [self.g.const(0, np.int32)] * (2 * x.rank - 1)
        missing = self.g.binary("SUB", size, have)
        amounts = self.g.reshape(self.g.shape_vector([*zeros, missing]), [x.rank, 2])
        shape = (*x.shape[:-1], size if isinstance(size, int) else None)
        return self.g.emit("PADV2", [x, amounts, self.g.const(value, x.dtype)], shape)

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
        **dict.fromkeys(("elements", "tensors", "reduction", "moved"), _write),
        # The limits of what is empty are those of the narrow type.
        **dict.fromkeys(
            ("ReduceMax", "ReduceMin", "Trilu", "Constant", *RECURRENT, *NORMS), _as_given
        ),
        **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), _reals),
    }
    by_channel = ("InstanceNormalization", "GroupNormalization", "BatchNormalization")
    domains = dict.fromkeys((*by_channel, "RoiAlign", *POOLS), NHWC)
    adopt(OPS, writers, dtypes=_DTYPES, default=REALS, known_axes=False, domains=domains)
