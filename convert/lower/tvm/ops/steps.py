"""LSTM and GRU on a GPU: each step is a product and what is made of it, for all threads at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.matrix import product, reshape
from edgeinfer.records import dataclass
from edgeinfer.types import Array

MOST_STEPS = 64
"""Each step is kernels of its own, which all have to be compiled."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one direction, as ONNX has them: gates one after the other.

    Attributes:
        inputs: (gates * hidden, inputs).
        state: (gates * hidden, hidden).
        bias: Bias of both, one after the other.
    """

    inputs: Array
    state: Array
    bias: Array


def stepped(
    g: Builder,
    kind: str,
    x: Tensor,
    weights: Weights,
    starts: list[Tensor],
    *,
    backwards: bool,
    before_reset: bool,
) -> list[Tensor]:
    """Return the state after each step, and the last states.

    Args:
        g: the graph.
        kind: ``LSTM`` or ``GRU``.
        x: (steps, batch, inputs).
        weights: Weights of this direction.
        starts: states before the first step, (batch, hidden).
        backwards: the last step comes first.
        before_reset: a GRU's reset gate acts on the product, not on the state.
    """
    steps = x.shape[0]
    if steps > MOST_STEPS:
        raise Refusal(f"a recurrent layer of {steps} steps on a GPU; up to {MOST_STEPS} are taken")
    half = len(weights.bias) // 2
    wx = product(g, x, g.const(np.ascontiguousarray(weights.inputs.T)))
    wx = g.map(lambda v, b: v + b, wx, g.const(weights.bias[:half]))
    cell = _Cell(g, weights.state.shape[-1], wx, weights, before_reset)
    state, found = list(starts), []
    order = range(steps - 1, -1, -1) if backwards else range(steps)
    for step in order:
        state = cell.lstm(step, *state) if kind == "LSTM" else [cell.gru(step, *state)]
        found.append(state[0])
    if backwards:
        found.reverse()
    shape = (1, *state[0].shape)
    parts = [g.expr(reshape(g, h, shape)) for h in found]
    sequence = g.emit(relax.op.concat(parts, 0)) if steps > 1 else reshape(g, found[0], shape)
    return [sequence, *state]


class _Cell:
    def __init__(
        self, g: Builder, hidden: int, wx: Tensor, weights: Weights, before_reset: bool
    ) -> None:
        self.g, self.hidden, self.wx, self.before_reset = g, hidden, wx, before_reset
        bias = weights.bias[len(weights.bias) // 2 :]
        transposed = np.ascontiguousarray(weights.state.T)
        self.bias, self.weights = g.const(bias), g.const(transposed)
        both = 2 * hidden
        self.gate_bias, self.gates = g.const(bias[:both]), g.const(transposed[:, :both].copy())
        self.new_bias, self.new = g.const(bias[both:]), g.const(transposed[:, both:].copy())

    def lstm(self, step: int, h: Tensor, c: Tensor) -> list[Tensor]:
        g, size = self.g, self.hidden
        own = self._product(h, self.weights, self.bias)

        def gate(wx: Any, own: Any, index: Any, place: int) -> Any:
            row, column = index
            at = column + place * size
            return wx(step, row, at) + own(row, at)

        def kept(wx: Any, own: Any, c: Any) -> Any:
            # Gates of ONNX: input, output, forget, new.
            return te.compute(
                c.shape,
                lambda *i: (
                    tirx.sigmoid(gate(wx, own, i, 2)) * c(*i)
                    + tirx.sigmoid(gate(wx, own, i, 0)) * tirx.tanh(gate(wx, own, i, 3))
                ),
                name="kept",
            )

        def shown(wx: Any, own: Any, c: Any) -> Any:
            return te.compute(
                c.shape,
                lambda *i: tirx.sigmoid(gate(wx, own, i, 1)) * tirx.tanh(c(*i)),
                name="shown",
            )

        new = g.te(kept, self.wx, own, c, name="kept")
        return [g.te(shown, self.wx, own, new, name="shown"), new]

    def gru(self, step: int, h: Tensor) -> Tensor:
        g, size = self.g, self.hidden
        own = self._product(h, self.gates, self.gate_bias)

        def gate(wx: Any, own: Any, index: Any, place: int) -> Any:
            row, column = index
            at = column + place * size
            return tirx.sigmoid(wx(step, row, at) + own(row, at))

        def reset(wx: Any, own: Any, h: Any) -> Any:
            return te.compute(h.shape, lambda *i: gate(wx, own, i, 1) * h(*i), name="reset")

        if self.before_reset:
            made = self._product(h, self.new, self.new_bias)
            made = g.te(reset, self.wx, own, made, name="reset")
        else:
            left = g.te(reset, self.wx, own, h, name="reset")
            made = self._product(left, self.new, self.new_bias)

        def shown(wx: Any, own: Any, made: Any, h: Any) -> Any:
            def element(row: Any, column: Any) -> Any:
                z = gate(wx, own, (row, column), 0)
                new = tirx.tanh(wx(step, row, column + 2 * size) + made(row, column))
                return (tirx.const(1.0, "float32") - z) * new + z * h(row, column)

            return te.compute(h.shape, element, name="shown")

        return g.te(shown, self.wx, own, made, h, name="shown")

    def _product(self, h: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return self.g.map(lambda v, b: v + b, product(self.g, h, weights), bias)
