"""Fused recurrent operators. Their state starts at zero in every run, as edgeinfer runs them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.conv import note_hybrid
from edgeinfer.convert.sources.tflite.registry import READERS
from edgeinfer.types import Array

STATE = (
    "the state of the file's recurrent operators starts at zero in each run; it is not kept from "
    "one run to the next"
)
_TANH = 4
_INPUT, _RECURRENT, _PEEPHOLE, _BIAS, _PROJECTION, _STATES, _NORM = 1, 5, 9, 12, 16, 18, 20
_ORDER = (0, 3, 1, 2)
"""Of TFLite's gates i, f, c, o in ONNX's order i, o, f, c."""


@READERS.reader("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(
    g: Importer, o: Options, x: Operand, *rest: Operand | None
) -> ir.Value:
    """LSTM; four weights of each kind become one constant."""
    operands: list[Operand | None] = [x, *rest, *[None] * (24 - len(rest))]
    _check(o, operands)
    for w in operands[_INPUT:_PEEPHOLE]:
        if w is not None:
            note_hybrid(g, x, w)
    time_first = bool(o.time_major)
    data = x.real if time_first else g.emit("Transpose", x, perm=[1, 0, 2])
    weights = _gates(operands, _INPUT)
    recurrent = _gates(operands, _RECURRENT)
    biases = _gates(operands, _BIAS)
    if weights is None or recurrent is None:
        raise Refusal("an input gate that is joined with the forget gate")
    hidden = recurrent[0].shape[-1]
    bias = None
    if biases is not None:
        joined = np.concatenate([biases[i] for i in _ORDER])
        bias = g.const(np.concatenate([joined, np.zeros_like(joined)])[None])
    peephole = None
    if any(operands[_PEEPHOLE : _PEEPHOLE + 3]):
        i, f, out = (_array(p) for p in operands[_PEEPHOLE : _PEEPHOLE + 3])
        peephole = g.const(np.concatenate([i, out, f])[None])
    if STATE not in g.notes.lines:
        g.notes.add(STATE)
    y, _, _ = g.emit_many(
        "LSTM",
        3,
        data,
        g.const(np.concatenate([weights[i] for i in _ORDER])[None]),
        g.const(np.concatenate([recurrent[i] for i in _ORDER])[None]),
        bias,
        None,
        None,
        None,
        peephole,
        hidden_size=hidden,
    )
    y = g.emit("Squeeze", y, g.shape([1]))
    return y if time_first else g.emit("Transpose", y, perm=[1, 0, 2])


def _check(o: Options, operands: list[Operand | None]) -> None:
    if o.fused_activation_function != _TANH:
        raise Refusal(f"activation {o.fused_activation_function}: only Tanh can be read")
    if o.cell_clip or o.proj_clip:
        raise Refusal("clipped states")
    if o.diagonal_recurrent_tensors:
        raise Refusal("diagonal recurrent weights")
    if any(operands[_PROJECTION:_STATES]) or any(operands[_NORM : _NORM + 4]):
        raise Refusal("a projection or a normalisation inside of the cell")
    for state in operands[_STATES:_NORM]:
        if state is None or not state.tensor.is_variable:
            raise Refusal("a state that is no variable of the operator")
    if operands[0] is None or not operands[0].is_float:
        raise Refusal("integers", "unsupported_dtype")


def _gates(operands: list[Operand | None], first: int) -> list[Array] | None:
    four = operands[first : first + 4]
    if not any(four):
        return None
    return [_array(p) for p in four]


def _array(operand: Operand | None) -> Array:
    if operand is None or operand.weights is None:
        raise Refusal("weights must be constant, of all gates", "requires_constant")
    array = np.asarray(operand.weights.tensor.numpy(), np.float32)
    scale = operand.weights.scale
    if scale is None:
        return array
    shape = [-1 if i == scale.axis else 1 for i in range(array.ndim)]
    wide = shape if scale.scale.size > 1 else ()
    return (array - scale.zero_point.reshape(wide).astype(np.float32)) * scale.scale.reshape(wide)
