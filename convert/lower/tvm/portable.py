"""What shared lowerings write for TVM: expressions of one element, one loop an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm_ffi import structural_equal

from edgeinfer.convert.families import COMPARISONS
from edgeinfer.convert.lower.core.portable import have_elements, known_axes
from edgeinfer.convert.lower.core.table import LOGIC, SIGNS, SUMS, Body, adopt
from edgeinfer.convert.lower.registry import Const
from edgeinfer.convert.lower.tvm.addends import is_added
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import (
    convert,
    function,
    is_not_number,
    larger,
    smaller,
)
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.ops.norm import standardised
from edgeinfer.convert.lower.tvm.ops.reduce import reduced
from edgeinfer.convert.lower.tvm.registry import BOOL, FLOATS, NUMBERS, OPS
from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.math import (
    constant,
    element_type,
    kind_of,
    named,
    unknown_zero,
)

Value = Any

_SERIES = -0.01
"""From here to zero exp(x) - 1 is its series."""


def _function(name: str) -> Callable[[Any, Value], Value]:
    def write(scalars: Scalars, x: Value) -> Value:
        # Halves were widened before, and vectors of single precision have the machine's own.
        kind = "float64" if element_type(x).startswith("float64") else "float32"
        return function(scalars.g, name, Tensor(kind, ()))(x)

    return write


class Scalars:
    """Elements as expressions; of vectors where a kernel computes several at once."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def _pair(self, a: Any, b: Any) -> tuple[Value, Value]:
        if isinstance(a, (int, float)):
            return constant(a, b), b
        return a, constant(b, a) if isinstance(b, (int, float)) else b

    def add(self, a: Any, b: Any) -> Value:
        """Sum."""
        a, b = self._pair(a, b)
        return unknown_zero(a) + unknown_zero(b)

    def sub(self, a: Any, b: Any) -> Value:
        """Difference; of floats the sum with the opposite, which is the same number.

        TVM's simplifier takes floats for integers there: of ``(x + y) - x`` it leaves ``y``.
        """
        a, b = self._pair(a, b)
        is_zero = isinstance(a, tirx.FloatImm) and a.value == 0
        if is_zero or not element_type(b).startswith("float"):
            return a - b
        return a + unknown_zero(b * constant(-1.0, b))

    def mul(self, a: Any, b: Any) -> Value:
        """Product."""
        a, b = self._pair(a, b)
        return unknown_zero(a) * unknown_zero(b)

    def div(self, a: Any, b: Any) -> Value:
        """Quotient."""
        a, b = self._pair(a, b)
        return unknown_zero(a) / b

    def power(self, a: Any, b: Any) -> Value:
        """A power."""
        return tirx.pow(*self._pair(a, b))

    def maximum(self, a: Any, b: Any) -> Value:
        """The larger; NaN stays."""
        return larger(*self._pair(a, b))

    def minimum(self, a: Any, b: Any) -> Value:
        """The smaller; NaN stays."""
        return smaller(*self._pair(a, b))

    def less(self, a: Any, b: Any) -> Value:
        """Whether a < b."""
        return self._compared(tirx.LT, a, b)

    def greater(self, a: Any, b: Any) -> Value:
        """Whether a > b."""
        return self._compared(tirx.GT, a, b)

    def equal(self, a: Any, b: Any) -> Value:
        """Whether a = b."""
        return self._compared(tirx.EQ, a, b)

    def greater_equal(self, a: Any, b: Any) -> Value:
        """Whether a >= b."""
        return self._compared(tirx.GE, a, b)

    def less_equal(self, a: Any, b: Any) -> Value:
        """Whether a <= b."""
        return self._compared(tirx.LE, a, b)

    def _compared(self, relation: Callable[[Any, Any], Value], a: Any, b: Any) -> Value:
        """Hold two numbers against each other.

        The compiler has one side of a comparison be the opposite of the other, and a number what it
        is itself, which NaN is not; so of floats it sees an integer alone.
        """
        a, b = self._pair(a, b)
        if not element_type(a).startswith("float"):
            return relation(a, b)
        if structural_equal(a, b):
            holds = tirx.Not(is_not_number(a))
            return holds if relation not in (tirx.LT, tirx.GT) else tirx.And(holds, tirx.Not(holds))
        byte = relation(a, b).astype(kind_of(a, "int8"))
        return tirx.bitwise_and(byte, constant(1, byte)) != constant(0, byte)

    def logical_and(self, a: Value, b: Value) -> Value:
        """Both."""
        return tirx.And(a, b)

    def logical_or(self, a: Value, b: Value) -> Value:
        """Either."""
        return tirx.Or(a, b)

    def logical_xor(self, a: Value, b: Value) -> Value:
        """One but not the other."""
        return tirx.NE(a.astype("int8"), b.astype("int8"))

    def logical_not(self, x: Value) -> Value:
        """The opposite."""
        return tirx.Not(x)

    def select(self, condition: Value, a: Any, b: Any) -> Value:
        """Take one or the other."""
        return tirx.Select(condition, *self._pair(a, b))

    def abs(self, x: Value) -> Value:
        """Magnitude."""
        kind = element_type(x)
        if kind.startswith("float"):
            return tirx.abs(x)
        return x if kind.startswith("u") else tirx.Select(x < constant(0, x), self.neg(x), x)

    def neg(self, x: Value) -> Value:
        """Change the sign, of zero too."""
        return x * constant(-1.0, x) if element_type(x).startswith("float") else constant(0, x) - x

    def sign(self, x: Value) -> Value:
        """-1, 0 or 1; NaN stays."""
        zero = constant(0, x)
        if element_type(x).startswith("u"):
            return tirx.Select(x > zero, constant(1, x), zero)
        below = tirx.Select(x < zero, constant(-1, x), x)
        return tirx.Select(x > zero, constant(1, x), below)

    exp, log, sqrt = _function("exp"), _function("log"), _function("sqrt")
    tanh, sigmoid, erf = _function("tanh"), _function("sigmoid"), _function("erf")
    sin, cos, tan = _function("sin"), _function("cos"), _function("tan")
    asin, acos, atan = _function("asin"), _function("acos"), _function("atan")
    sinh, cosh = _function("sinh"), _function("cosh")
    floor, ceil, round = _function("floor"), _function("ceil"), _function("nearbyint")

    def rsqrt(self, x: Value) -> Value:
        """One over the root."""
        return constant(1, x) / self.sqrt(x)

    def relu(self, x: Value) -> Value:
        """The positive part; NaN stays."""
        return tirx.Select(x < constant(0, x), constant(0, x), x)

    def expm1(self, x: Value) -> Value:
        """Near zero exp(x) - 1 has no digits left; its series has."""

        def below(v: Value) -> Value:
            series = v + v * v * constant(0.5, v) + v * v * v * constant(1 / 6, v)
            rest = self.exp(v) - constant(1, v)
            return tirx.Select(v > constant(_SERIES, v), series, rest)

        return named(self.minimum(x, 0), below)

    def named(self, x: Value, use: Callable[[Value], Value]) -> Value:
        """Compute once what is used several times."""
        return named(x, use)

    def is_half(self, x: Value) -> bool:
        """Halves are computed in single precision."""
        return False


class Whole:
    """Tensors of a function."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def rank(self, x: Tensor) -> int:
        """Number of axes."""
        return x.rank

    def map(self, function: Callable[..., Value], *tensors: Tensor) -> Tensor:
        """Write one loop."""
        return self.g.map(lambda *values: function(Scalars(self.g), *values), *tensors)

    def axes(self, x: Tensor, given: Const | None, noop: int) -> list[int]:
        """Return known axes."""
        return known_axes(x.rank, given, noop)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool = True) -> Tensor:
        """Reduce over axes."""
        return reduced(self.g, kind, x, axes, keepdims=keep)

    def drop(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Leave out axes of size 1."""
        return reshape(self.g, x, tuple(s for a, s in enumerate(x.shape) if a not in axes))

    def has_largest(self, x: Tensor, axes: Sequence[int]) -> bool:
        """Say whether there are axes, and none of them is empty."""
        return have_elements(x.shape, axes)

    def const(self, value: Any, dtype: Any = None) -> Tensor:
        """Return a constant."""
        return self.g.const(np.asarray(value, dtype))

    def single(self, x: Tensor) -> Tensor:
        """Convert halves to single precision."""
        return convert(self.g, x, "float32") if x.dtype == "float16" else x

    def like(self, x: Tensor, other: Tensor) -> Tensor:
        """Convert to the element type of another tensor."""
        return convert(self.g, x, other.dtype)

    def positions(self, x: Tensor) -> list[int]:
        """Return the axes after the batch and the channels."""
        return list(range(2, x.rank))

    def channels(self, x: Tensor) -> int:
        """Return the axis of channels: the second."""
        return 1

    def sizes(self, x: Tensor) -> list[Any]:
        """Return the sizes; dynamic ones are expressions."""
        return list(x.shape)

    def reshape(self, x: Tensor, sizes: Sequence[Any]) -> Tensor:
        """Give another shape."""
        return reshape(self.g, x, tuple(sizes))

    def standardised(self, x: Tensor, steps: Sequence[Sequence[int]], epsilon: float) -> Tensor:
        """Write one kernel where there is one."""
        return standardised(self.g, x, steps, epsilon)

    def by_channel(self, x: Tensor, vector: Tensor) -> Tensor:
        """Append an axis for each position."""
        return reshape(self.g, vector, (vector.shape[0], *(1,) * (x.rank - 2)))


def _widened(g: Builder, operands: tuple[Any, ...], write: Callable[..., Tensor]) -> Tensor:
    own = operands[0].dtype
    if own != "float16":
        return write(*operands)
    wide = [
        convert(g, v, "float32") if isinstance(v, Tensor) and v.dtype == own else v
        for v in operands
    ]
    return convert(g, write(*wide), own)


def _elements(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    def loop(*tensors: Tensor) -> Tensor:
        return g.map(lambda *values: body(Scalars(g), *values), *tensors)

    return _widened(g, operands, loop)


def _as_given(g: Builder, body: Body, operands: tuple[Any, ...], dtype: str | None = None) -> Any:
    return g.map(lambda *values: body(Scalars(g), *values), *operands, dtype=dtype)


def _product(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    """A product that is rounded before it is added; those of sums that are ours need not be."""

    def write(*values: Value) -> Value:
        made = body(Scalars(g), *values)
        return math.rounded(made, cuda=not g.on_cpu)

    if operands[0].dtype.startswith("float") and is_added(g.current()):
        return g.map(write, *operands)
    return _as_given(g, body, operands)


def _compared(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    pair = [convert(g, v, "int8") if v.dtype == "bool" else v for v in operands]
    return _as_given(g, body, tuple(pair), "bool")


def _tensors(g: Builder, body: Body, operands: tuple[Any, ...]) -> Any:
    return _widened(g, operands, lambda *tensors: body(Whole(g), *tensors))


def adopt_shared() -> None:
    """Add the shared lowerings to the table."""
    writers = {
        "elements": _elements,
        **dict.fromkeys(("tensors", "reduction"), _tensors),
        **dict.fromkeys(COMPARISONS, _compared),
        "Constant": lambda g, body, _: body(Whole(g)),
        **dict.fromkeys(("Max", "Min", *SIGNS, *SUMS), _as_given),
        "Mul": _product,
    }
    dtypes = {
        **dict.fromkeys(("PRelu", "Relu", "Max", "Min", *SIGNS, *SUMS), NUMBERS),
        **dict.fromkeys((*COMPARISONS, "Where", "Constant"), OPS.dtypes),
        **dict.fromkeys(LOGIC, BOOL),
    }
    adopt(OPS, writers, dtypes=dtypes, default=FLOATS)
