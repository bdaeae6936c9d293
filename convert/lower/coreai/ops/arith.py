"""Arithmetic, comparisons and logic, element by element."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import ALL, BOOL, FLOATS, INTEGERS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal

_UNARY = {"Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh"}
"""The engine's own, where others compose them."""

_BINARY = {
    **{"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"},
}


def _plain(op: str, name: str) -> None:
    def lowering(g: Builder, input: Tensor) -> Tensor:
        return g.unary(name, input)

    OPS.lower(op, dtypes=FLOATS)(lowering)


def _two(op: str, name: str) -> None:
    def lowering(g: Builder, a: Tensor, b: Tensor) -> Tensor:
        return g.binary(name, a, b)

    OPS.lower(op, dtypes=INTEGERS)(lowering)


for _op, _name in _UNARY.items():
    _plain(_op, _name)
for _op, _name in _BINARY.items():
    _two(_op, _name)


@OPS.lower("Identity")
def identity(g: Builder, input: Tensor) -> Tensor:
    return input


@OPS.lower("BitwiseNot", dtypes=INTEGERS)
def bitwise_not(g: Builder, x: Tensor) -> Tensor:
    return g.binary("bitwise_xor", x, x.dtype.type(np.array(-1).astype(x.dtype)))


@OPS.lower("IsNaN", dtypes=FLOATS | BOOL)
def is_nan(g: Builder, X: Tensor) -> Tensor:
    return g.binary("not_equal", X, X)


@OPS.lower("IsInf", dtypes=FLOATS | BOOL)
def is_inf(g: Builder, x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    signs = [s for s, on in ((-np.inf, detect_negative), (np.inf, detect_positive)) if on]
    if not signs:
        return g.binary("and", g.binary("equal", x, x), False)
    found = [g.binary("equal", x, s) for s in signs]
    return found[0] if len(found) == 1 else g.binary("or", *found)


@OPS.lower("Div", dtypes=NUMBERS)
def div(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    return g.binary("divide", a, b)


@OPS.lower("Mod", dtypes=NUMBERS)
def mod(g: Builder, a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    rest = g.binary("modulo", a, b)
    if fmod or a.dtype.kind == "u":
        return rest
    # The result has the divisor's sign.
    other = g.binary("not_equal", g.less(rest, 0), g.less(b, 0))
    moved = g.binary("and", g.binary("not_equal", rest, 0), other)
    return g.select(moved, g.binary("add", rest, b), rest)


@OPS.lower("Pow", dtypes=NUMBERS)
def pow_(g: Builder, X: Tensor, Y: Tensor) -> Tensor:
    if Y.data is not None and Y.data.size == 1 and X.is_float:
        exponent = float(Y.data.reshape(()))
        wide = [Y.rank - X.rank] if Y.rank > X.rank else []
        if exponent == 2 and not wide:
            return g.binary("mul", X, X)
        if exponent == 0.5 and not wide:
            return g.unary("sqrt", X)
    if not X.is_float:
        # Powers of integers go through doubles, which hold them up to 2**53.
        double = g.binary("pow", g.cast(X, np.float64), g.cast(Y, np.float64))
        return g.cast(double, X.dtype)
    return g.binary("pow", X, g.cast(Y, X.dtype))


@OPS.lower("Cast")
def cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    wanted = ir.DataType(to)
    if wanted not in ALL:
        raise Refusal(f"to {wanted.name.lower()}", "unsupported_dtype")
    return g.cast(input, wanted.numpy())


@OPS.lower("CastLike")
def cast_like(g: Builder, input: Tensor, target_type: Tensor) -> Tensor:
    return g.cast(input, target_type.dtype)


@OPS.lower("Dropout", dtypes=FLOATS | BOOL)
def dropout(
    g: Builder, data: Tensor, ratio: Tensor | None = None, training_mode: Const | None = None
) -> tuple[Tensor, Tensor]:
    if training_mode is not None and bool(np.any(training_mode.array)):
        raise Refusal("training_mode draws random numbers")
    return data, g.expand(g.const(np.ones([1] * data.rank, np.bool_)), g.extents(data))
