"""LSTM, GRU and RNN with every option that they have.

The ONNX reference leaves out sequence lengths, functions of one's own, clipping and coupled gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.activations import with_numbers
from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Attributes = Mapping[str, Any]
Function = Callable[[Array], Array]
Step = Callable[["_Way", Array, list[Array]], list[Array]]
Noise = Callable[[Array, Array], Array]
"""Moves a state by what the sums of a step round off."""

NOISE = "#noise"
"""The attribute under which somebody hands it in."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction.

    Attributes:
        r: (gates * hidden, hidden), what the state is multiplied by.
        of_state: (gates * hidden,), the bias that is added to that product.
        peephole: (3, hidden), the cell's share in input, output and forget gate; None for none.
        functions: as ``activations`` names them.
        clip: the bound of what goes into a function; infinity for none.
    """

    r: Array
    of_state: Array
    peephole: Array | None
    functions: tuple[Function, ...]
    clip: float

    def apply(self, index: int, x: Array) -> Array:
        """Clip, then the function."""
        return self.functions[index](np.clip(x, -self.clip, self.clip))


def lstm(attrs: Attributes, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """LSTM; operands X, W, R, B, sequence_lens, initial_h, initial_c and P."""
    step = partial(_lstm, coupled=bool(attrs.get("input_forget", 0)))
    return _layer(attrs, inputs, 4, ("Sigmoid", "Tanh", "Tanh"), 2, step)


def gru(attrs: Attributes, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """GRU; operands X, W, R, B, sequence_lens and initial_h."""
    step = partial(_gru, after=bool(attrs.get("linear_before_reset", 0)))
    return _layer(attrs, inputs, 3, ("Sigmoid", "Tanh"), 1, step)


def rnn(attrs: Attributes, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """RNN; operands X, W, R, B, sequence_lens and initial_h."""
    return _layer(attrs, inputs, 1, ("Tanh",), 1, _rnn)


def _layer(
    attrs: Attributes,
    inputs: list[Array | None],
    gates: int,
    default: tuple[str, ...],
    states: int,
    step: Step,
) -> tuple[Array, ...]:
    given: list[Array | None] = [*inputs, *[None] * (8 - len(inputs))]
    (x, w, r, bias, lengths), rest = given[:5], given[5:]
    if x is None or w is None or r is None:
        raise Unhandled
    layout, ways, hidden = bool(attrs.get("layout", 0)), w.shape[0], r.shape[-1]
    if layout:
        x = np.swapaxes(x, 0, 1)
    count, batch = x.shape[:2]
    live = np.full(batch, count) if lengths is None else np.asarray(lengths, np.int64)
    functions = _functions(attrs, default, ways)
    clip = float(attrs.get("clip", 0.0)) or np.inf
    shown, last = [], []
    for way in range(ways):
        both = np.zeros((2, gates * hidden), x.dtype)
        if bias is not None:
            both = bias[way].reshape(2, -1)
        peephole = rest[2] if states == 2 else None
        peephole = None if peephole is None else peephole[way].reshape(3, -1)
        own = _Way(r[way], both[1], peephole, functions[way], clip)
        first = [_first(rest[i], way, (batch, hidden), layout, x.dtype) for i in range(states)]
        backwards = way == 1 or attrs.get("direction", "forward") == "reverse"
        products = x @ w[way].T + both[0]
        rows, state = _run(step, own, products, first, live, backwards, attrs.get(NOISE))
        shown.append(rows)
        last.append(state)
    results = [np.stack(shown, 1), *(np.stack(s) for s in zip(*last, strict=True))]
    if layout:
        results = [results[0].transpose(2, 0, 1, 3), *(np.swapaxes(s, 0, 1) for s in results[1:])]
    return tuple(results)


def _first(
    given: Array | None, way: int, shape: tuple[int, int], layout: bool, dtype: np.dtype[Any]
) -> Array:
    if given is None:
        return np.zeros(shape, dtype)
    return given[:, way] if layout else given[way]


def _run(
    step: Step,
    way: _Way,
    products: Array,
    state: list[Array],
    live: Array,
    backwards: bool,
    noise: Noise | None,
) -> tuple[Array, list[Array]]:
    """Make all steps; a sequence that has ended shows zeros and keeps its state."""
    count = len(products)
    rows = np.zeros((count, *state[0].shape), products.dtype)
    for index in reversed(range(count)) if backwards else range(count):
        runs = (live > index)[:, None]
        after = step(way, products[index], state)
        if noise is not None:
            after = [noise(each, products[index]) for each in after]
        rows[index] = np.where(runs, after[0], 0)
        state = [np.where(runs, new, old) for new, old in zip(after, state, strict=True)]
    return rows, state


def _rnn(way: _Way, x: Array, state: list[Array]) -> list[Array]:
    return [way.apply(0, x + state[0] @ way.r.T + way.of_state)]


def _lstm(way: _Way, x: Array, state: list[Array], *, coupled: bool) -> list[Array]:
    h, c = state
    i, o, f, new = np.split(x + h @ way.r.T + way.of_state, 4, axis=1)
    p = np.zeros((3, h.shape[1]), h.dtype) if way.peephole is None else way.peephole
    i = way.apply(0, i + p[0] * c)
    f = 1 - i if coupled else way.apply(0, f + p[2] * c)
    c = f * c + i * way.apply(1, new)
    return [way.apply(0, o + p[1] * c) * way.functions[2](c), c]


def _gru(way: _Way, x: Array, state: list[Array], *, after: bool) -> list[Array]:
    (h,) = state
    hidden = h.shape[1]
    gates, new = way.r[: 2 * hidden], way.r[2 * hidden :]
    of_gates, of_new = way.of_state[: 2 * hidden], way.of_state[2 * hidden :]
    both = way.apply(0, x[:, : 2 * hidden] + h @ gates.T + of_gates)
    z, r = np.split(both, 2, axis=1)
    back = r * (h @ new.T + of_new) if after else (r * h) @ new.T + of_new
    return [(1 - z) * way.apply(1, x[:, 2 * hidden :] + back) + z * h]


def _functions(
    attrs: Attributes, default: tuple[str, ...], ways: int
) -> list[tuple[Function, ...]]:
    names: Sequence[str] = attrs.get("activations") or default * ways
    if len(names) < len(default) * ways:
        raise Unhandled
    given = with_numbers(names, attrs.get("activation_alpha"), attrs.get("activation_beta"))
    found = [_function(*each) for each in given]
    return [tuple(found[i * len(default) : (i + 1) * len(default)]) for i in range(ways)]


def _function(name: str, alpha: float | None, beta: float | None) -> Function:
    def a(default: float) -> float:
        return default if alpha is None else alpha

    def b(default: float) -> float:
        return default if beta is None else beta

    known: dict[str, Function] = {
        "sigmoid": lambda x: 0.5 * (1 + np.tanh(0.5 * x)),
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.logaddexp(0, x),
        "leakyrelu": lambda x: np.where(x < 0, a(0.01) * x, x),
        "thresholdedrelu": lambda x: np.where(x > a(1.0), x, 0),
        "elu": lambda x: np.where(x < 0, a(1.0) * np.expm1(np.minimum(x, 0)), x),
        "hardsigmoid": lambda x: np.clip(a(0.2) * x + b(0.5), 0, 1),
        "affine": lambda x: a(1.0) * x + b(0.0),
        "scaledtanh": lambda x: a(1.0) * np.tanh(b(1.0) * x),
    }
    if name.lower() not in known:
        raise Unhandled
    return known[name.lower()]
