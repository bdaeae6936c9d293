"""Operators on element types that their kernels lack, as several operators that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite import doubles, unsigned
from edgeinfer.convert.lower.tflite.graph import STABLEHLO, Tensor, name_of

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.builder import Builder

_FLOAT64, _UINT64 = "float64", "uint64"
_RARE = frozenset({_FLOAT64, _UINT64, "bfloat16"})

# Kernels that move values of any of these types, or hand them on (LiteRT 2.3.0).
_TAKE_ALL = frozenset(
    {
        *("RESHAPE", "SLICE", "STRIDED_SLICE", "TRANSPOSE", "BROADCAST_TO", "TILE", "SELECT_V2"),
        *("EXPAND_DIMS", "SQUEEZE", "SHAPE", "BITCAST", "IF", "WHILE"),
        *STABLEHLO,
    }
)
_TAKE_REALS = frozenset({"SIGN", "CAST"})

_MOVED: dict[str, Sequence[int]] = {"GATHER": (0,), "GATHER_ND": (0,), "PAD": (0,), "FILL": (1,)}
"""Moves by kernels that lack these types, and which operands have values: bits go through."""

_CARRIER = {_FLOAT64: np.dtype(np.int64), _UINT64: np.dtype(np.int64)}


def is_needed(code: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> bool:
    """Whether no kernel takes the operands."""
    types = {name_of(t.dtype) for t in (*inputs, *outputs) if t is not None} & _RARE
    if not types or code in _TAKE_ALL:
        return False
    return _UINT64 in types or code not in _TAKE_REALS


def composed(
    g: Builder,
    code: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    options: Mapping[str, Any],
) -> Tensor:
    """Return the result of the operators that stand for one.

    Raises:
        Refusal: nothing stands for it.
    """
    operands = [t for t in inputs if t is not None]
    kind = next((t.dtype for t in operands if t.dtype.name in _RARE), outputs[0].dtype)
    known = doubles.BINARY if kind.name == _FLOAT64 else unsigned.BINARY
    if code == "CAST":
        return _converted(g, operands[0], outputs[0].dtype)
    if kind.name in _CARRIER and (code in _MOVED or code in ("CONCATENATION", "PACK")):
        return _carried(g, code, operands, outputs[0], options)
    same = all(t.dtype == kind for t in operands)
    if kind.name in _CARRIER and code in known and len(operands) == 2 and same:
        return known[code](g, operands[0], operands[1])
    if kind.name == _FLOAT64 and code in doubles.UNARY:
        return doubles.UNARY[code](g, operands[0])
    if kind.name == _FLOAT64 and code in doubles.FOLDS and operands[1].data is not None:
        axes = [int(a) % operands[0].rank for a in operands[1].data.reshape(-1)]
        return doubles.reduced(g, code, operands[0], axes, bool(options["keep_dims"]))
    raise Refusal(f"{code} of {kind.name}", "unsupported_dtype")


def _carried(
    g: Builder, code: str, operands: list[Tensor], output: Tensor, options: Mapping[str, Any]
) -> Tensor:
    to = _CARRIER[output.dtype.name]
    which = _MOVED.get(code, range(len(operands)))
    inner = [_bits(g, t, to) if i in which else t for i, t in enumerate(operands)]
    made = g.emit(code, inner, output.shape, to, **options)
    return g.emit("BITCAST", [made], output.shape, output.dtype)


def _bits(g: Builder, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if x.data is not None:
        return g.const(x.data.view(dtype))
    return g.emit("BITCAST", [x], x.shape, dtype)


def _converted(g: Builder, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """To or from uint64."""
    if x.dtype.name == _UINT64:
        if dtype == np.bool_:
            return g.binary("NOT_EQUAL", unsigned.signed(g, x), 0)
        if dtype.kind in "iu":
            return g.cast(unsigned.signed(g, x), dtype)
        return unsigned.to_real(g, x, dtype)
    if x.dtype.kind in "iub":
        return unsigned.unsigned(g, g.cast(x, np.int64))
    return unsigned.of_real(g, x if x.dtype == np.float64 else g.cast(x, np.float32))
