"""Recurrent layers.

A reversed layer walks the sequence from its end and gives its outputs in the order of computing;
only the backward half of a bidirectional LSTM is reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edgeinfer.backends.coreml_reference.ops.activation import sigmoid
from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array

Activation = Callable[[Array], Array]

_ACTIVATIONS: dict[str, Activation] = {
    "hard_sigmoid": lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1),
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    # The layers' scaled_tanh has both of its factors at 1.
    "scaled_tanh": np.tanh,
    "sigmoid": sigmoid,
    "sigmoid_hard": lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1),
    "tanh": np.tanh,
}


@op("rnn")
def rnn(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> tuple[Array, Array]:
    function = _activation(activation)
    h, outputs = initial_h, []
    offset = np.float32(0) if bias is None else bias
    for step in _steps(x, direction):
        h = function(step @ weight_ih.T + h @ weight_hh.T + offset)
        outputs.append(h)
    return _sequence(outputs, output_sequence), h


@op("gru")
def gru(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: bool = False,
    input_bias: Array | None = None,
) -> tuple[Array, Array]:
    """Gates are reset, output, update.

    The reset gate meets the hidden state, or with ``reset_after`` its product with the weights and
    the hidden bias; only then do the two biases differ.
    """
    gate, function = _activation(recurrent_activation), _activation(activation)
    size = weight_hh.shape[1]
    none = np.zeros(3 * size, np.float32)
    hidden = none if bias is None else bias
    given = none if input_bias is None else input_bias
    r_in, o_in, z_in = np.split(weight_ih, 3)
    r_hid, o_hid, z_hid = np.split(weight_hh, 3)
    r_off, o_off, z_off = np.split(hidden + given, 3)
    o_given, o_hidden = given[size : 2 * size], hidden[size : 2 * size]
    h, outputs = initial_h, []
    for step in _steps(x, direction):
        r = gate(step @ r_in.T + h @ r_hid.T + r_off)
        z = gate(step @ z_in.T + h @ z_hid.T + z_off)
        if reset_after:
            o = function(step @ o_in.T + o_given + r * (h @ o_hid.T + o_hidden))
        else:
            o = function(step @ o_in.T + (r * h) @ o_hid.T + o_off)
        h = (1 - z) * o + z * h
        outputs.append(h)
    return _sequence(outputs, output_sequence), h


@op("lstm")
def lstm(
    x: Array,
    initial_h: Array,
    initial_c: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    peephole: Array | None = None,
    weight_ih_back: Array | None = None,
    weight_hh_back: Array | None = None,
    bias_back: Array | None = None,
    peephole_back: Array | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: float | None = None,
) -> tuple[Array, Array, Array]:
    names = (recurrent_activation, cell_activation, activation)
    functions = tuple(_activation(name) for name in names)
    if direction != "bidirectional":
        start = (initial_h, initial_c)
        outputs, h, c = _lstm(
            x, start, weight_ih, weight_hh, bias, peephole, functions, clip, direction
        )
        return _sequence(outputs, output_sequence), h, c
    if weight_ih_back is None or weight_hh_back is None:
        raise ValueError("a bidirectional layer needs weights of both directions")
    size = weight_hh.shape[1]
    first, second = ((initial_h[:, p], initial_c[:, p]) for p in (slice(size), slice(size, None)))
    there, h, c = _lstm(x, first, weight_ih, weight_hh, bias, peephole, functions, clip, "forward")
    back, h_back, c_back = _lstm(
        x,
        second,
        weight_ih_back,
        weight_hh_back,
        bias_back,
        peephole_back,
        functions,
        clip,
        "reverse",
    )
    h, c = np.concatenate([h, h_back], -1), np.concatenate([c, c_back], -1)
    if not output_sequence:
        return h[None], h, c
    return np.concatenate([np.stack(there), np.stack(back[::-1])], -1), h, c


def _lstm(
    x: Array,
    start: tuple[Array, Array],
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None,
    peephole: Array | None,
    functions: tuple[Activation, ...],
    clip: float | None,
    direction: str,
) -> tuple[list[Array], Array, Array]:
    """Gates are input, forget, output, cell."""
    gate, cell, function = functions
    h, c = start
    offset = np.float32(0) if bias is None else bias
    outputs = []
    look_i, look_f, look_o = (None,) * 3 if peephole is None else np.split(peephole, 3)
    for step in _steps(x, direction):
        i, f, o, z = np.split(step @ weight_ih.T + h @ weight_hh.T + offset, 4, axis=-1)
        i = gate(i if look_i is None else i + c * look_i)
        f = gate(f if look_f is None else f + c * look_f)
        c = f * c + i * cell(z)
        c = c if clip is None else np.clip(c, -np.float32(clip), np.float32(clip))
        o = gate(o if look_o is None else o + c * look_o)
        h = o * function(c)
        outputs.append(h)
    return outputs, h, c


def _activation(name: str) -> Activation:
    if name.lower() not in _ACTIVATIONS:
        raise ValueError(f"the activation {name!r} is not known")
    return _ACTIVATIONS[name.lower()]


def _steps(x: Array, direction: str) -> Iterator[Array]:
    if direction not in ("forward", "reverse"):
        raise ValueError(f"the direction {direction!r} is not known")
    return iter(x if direction == "forward" else x[::-1])


def _sequence(outputs: list[Array], every: bool) -> Array:
    return np.stack(outputs) if every else outputs[-1][None]
