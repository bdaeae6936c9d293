"""LSTM and GRU; each direction is one kernel, on a GPU some for each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.matrix import product, reshape, transpose
from edgeinfer.convert.lower.tvm.ops.steps import Weights, stepped
from edgeinfer.convert.lower.tvm.registry import OPS
from edgeinfer.kernels.defs import recurrent as kernel

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


@OPS.lower("LSTM")
def lstm(
    g: Builder,
    X: Tensor,
    W: Const,
    R: Const,
    B: Const | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activations: Sequence[str] | None,
    clip: float | None,
    direction: str,
    input_forget: int,
    layout: int,
) -> tuple[Tensor, ...]:
    """Long short-term memory."""
    if P is not None or input_forget:
        raise Refusal("peepholes or coupled gates")
    _check(g, X, "LSTM", activations, clip, sequence_lens)
    return _layer(g, "LSTM", X, (W, R, B), (initial_h, initial_c), direction, layout, False)


@OPS.lower("GRU")
def gru(
    g: Builder,
    X: Tensor,
    W: Const,
    R: Const,
    B: Const | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activations: Sequence[str] | None,
    clip: float | None,
    direction: str,
    layout: int,
    linear_before_reset: int,
) -> tuple[Tensor, ...]:
    """Gated recurrent unit."""
    _check(g, X, "GRU", activations, clip, sequence_lens)
    return _layer(
        g, "GRU", X, (W, R, B), (initial_h,), direction, layout, bool(linear_before_reset)
    )


def _check(
    g: Builder,
    x: Tensor,
    kind: str,
    activations: Sequence[str] | None,
    clip: float | None,
    lengths: Tensor | None,
) -> None:
    if x.dtype != "float32":
        raise Refusal(f"{x.dtype} elements", "unsupported_dtype")
    wanted = _DEFAULTS[kind]
    if activations is not None and tuple(activations) not in (wanted, wanted * 2):
        raise Refusal("other activations")
    if clip is not None:
        raise Refusal("clip")
    if lengths is not None:
        raise Refusal("sequence_lens")
    if not x.is_static or not all(x.shape):
        raise Refusal("an open or empty size", "dynamic_shape")


def _layer(
    g: Builder,
    kind: str,
    x: Tensor,
    weights: tuple[Const, Const, Const | None],
    first: tuple[Tensor | None, ...],
    direction: str,
    layout: int,
    before_reset: bool,
) -> tuple[Tensor, ...]:
    if layout:
        x = transpose(g, x, (1, 0, 2))
        first = tuple(t if t is None else transpose(g, t, (1, 0, 2)) for t in first)
    hidden = weights[1].array.shape[-1]
    steps, batch = x.shape[:2]
    ways = 2 if direction == "bidirectional" else 1
    results = []
    for way in range(ways):
        cell = kernel.CellSizes(
            kind,
            steps,
            batch,
            hidden,
            backwards=direction == "reverse" or way == 1,
            before_reset=before_reset,
            inputs=x.shape[2] if kernel.takes_inputs(steps, batch, kind, before_reset) else 0,
        )
        results.append(_direction(g, cell, x, weights, first, way))
    sequence = [reshape(g, r[0], (cell.steps, 1, cell.batch, hidden)) for r in results]
    states = [
        [reshape(g, r[i], (1, cell.batch, hidden)) for r in results]
        for i in range(1, len(results[0]))
    ]
    out = [_joined(g, sequence, 1), *(_joined(g, s, 0) for s in states)]
    if layout:
        out[0] = transpose(g, out[0], (2, 0, 1, 3))
        out[1:] = [transpose(g, t, (1, 0, 2)) for t in out[1:]]
    return tuple(out)


def _joined(g: Builder, parts: list[Tensor], axis: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return g.emit(relax.op.concat([g.expr(t) for t in parts], axis))


def _direction(
    g: Builder,
    cell: kernel.CellSizes,
    x: Tensor,
    weights: tuple[Const, Const, Const | None],
    first: tuple[Tensor | None, ...],
    way: int,
) -> list[Tensor]:
    w, r, b = weights
    rows, state = cell.gates * cell.hidden, (cell.batch, cell.hidden)
    bias = np.zeros(2 * rows, np.float32) if b is None else b.array[way].astype(np.float32)
    if not g.on_cpu:
        given_weights = Weights(w.array[way], r.array[way], bias)
        return stepped(
            g,
            cell.kind,
            x,
            given_weights,
            [_start(g, t, way, state) for t in first],
            backwards=cell.backwards,
            before_reset=cell.before_reset,
        )
    inner, state_bias = bias[:rows].copy(), bias[rows:].copy()
    # All of the state's bias can be added before, but what stands behind a reset gate.
    kept = np.zeros(rows, np.float32)
    if cell.kind == "GRU" and cell.before_reset:
        kept[2 * cell.hidden :] = state_bias[2 * cell.hidden :]
        state_bias[2 * cell.hidden :] = 0
    inner += state_bias
    of_state = r.array[way]
    if cell.inputs:
        given = [g.expr(x), relax.const(inner, "float32")]
        of_state = np.concatenate([w.array[way], of_state], axis=1)
    else:
        wx = product(g, x, g.const(np.ascontiguousarray(w.array[way].T)))
        given = [g.expr(g.map(lambda v, c: v + c, wx, g.const(inner)))]
    starts = [g.expr(_start(g, t, way, state)) for t in first]
    packed = relax.const(kernel.pack_state(of_state, cell, g.cpu), "float32")
    operands = [*given, packed, relax.const(kept, "float32"), *starts]
    shapes = [(cell.steps, *state), state, *([state] if cell.kind == "LSTM" else [])]
    return g.tir_many(kernel.recurrent(g.cpu, cell), operands, [(s, "float32") for s in shapes])


def _start(g: Builder, given: Tensor | None, way: int, shape: tuple[int, int]) -> Tensor:
    if given is None:
        return g.const(np.zeros(shape, np.float32))
    if given.shape[0] == 1:
        return reshape(g, given, shape)
    from edgeinfer.convert.lower.tvm.ops.cut import piece

    return reshape(g, piece(g, given, [way, 0, 0], [1, *shape], [1, 1, 1]), shape)
