"""Weights rounded so that products on calibration text stay near: GPTQ (Frantar et al., 2022).

Columns are rounded one after the other; what a column loses is made up for by those behind it, as
the inputs of the text go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgeinfer.bounded import read_bounded
from edgeinfer.convert.llm import pack
from edgeinfer.convert.llm.blocks import Factors, Integers
from edgeinfer.convert.llm.judge import encoded
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.errors import UsageError
from edgeinfer.kernels.defs.llm.form import STEP
from edgeinfer.types import Array

ROW = 256
"""Tokens of calibration text that are read together."""

ROWS = 16
"""Of them, at most."""

_MOST_BYTES = 64 << 20
_PART = 1 << 14
"""Characters that are made tokens of at once."""

_LEAST = 64
"""Tokens without which there is nothing to calibrate with."""

_DAMPING = 0.01
_COLUMNS = 128
"""Columns after which what they lost is made up for in all others at once."""


def read(path: Path, tokenizer: bytes) -> list[Array]:
    """Return rows of tokens of a text, from all over it.

    Raises:
        UsageError: it is no text, or too short.
    """
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"calibration {path}: expected a file of text: {e}") from e
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
    ids = [token for part in encoded(tokenizer, parts) for token in part]
    if len(ids) < _LEAST:
        raise UsageError(f"calibration {path}: {len(ids)} tokens, expected at least {_LEAST}")
    starts = range(0, max(1, len(ids) - ROW + 1), ROW)
    chosen = np.linspace(0, len(starts) - 1, min(ROWS, len(starts))).astype(int)
    return [np.array(ids[starts[i] : starts[i] + ROW], np.int32) for i in chosen]


def rounded_layers(
    oracle: Oracle, sequences: Sequence[Array], bits: int, block: int
) -> dict[str, Integers]:
    """Round the matrices of all layers that are not experts'.

    Args:
        oracle: the model in float32.
        sequences: tokens of calibration text.
        bits: Number of bits of a weight.
        block: neighbours that share a scale.
    """
    made: dict[str, Integers] = {}
    oracle.grams = {}
    for _ in oracle.layers(list(sequences)):
        for names, gram in oracle.grams.items():
            upper = inverse_root(gram)
            for name in names:
                made[name] = rounded(oracle.tensors[name].float32(), upper, bits, block)
        oracle.grams.clear()
    oracle.grams = None
    return made


def rounded(weights: Array, upper: Array, bits: int, block: int) -> Integers:
    """Round a matrix.

    Args:
        weights: (rows, columns) float32.
        upper: (columns, columns) of ``inverse_root``.
        bits: Number of bits of a weight.
        block: neighbours that share a scale, a multiple of 32.
    """
    rows, columns = weights.shape
    size = block if columns % block == 0 else STEP
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    # A column lies together.
    left = np.array(weights.T, np.float32, order="C")
    values = np.zeros((columns, rows), np.int8)
    scales = np.zeros((rows, columns // size), np.float16)
    step = max(_COLUMNS // size, 1) * size
    for first in range(0, columns, step):
        end = min(first + step, columns)
        lost = np.zeros((end - first, rows), np.float32)
        for at in range(first, end):
            if at % size == 0:
                group = pack.rounded(left[at : at + size].T, bits, size)
                scales[:, at // size] = group.scales.numbers[:, 0]
                scale = scales[:, at // size].astype(np.float32)
                inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
            found = np.clip(np.rint(left[at] * inverse), low, high)
            values[at] = found
            error = lost[at - first]
            error[...] = (left[at] - found * scale) / upper[at, at]
            left[at + 1 : end] -= upper[at, at + 1 : end, None] * error
        left[end:] -= upper[first:end, end:].T @ lost
    return Integers(np.ascontiguousarray(values.T), low, high, size, Factors(scales))


def inverse_root(gram: Array) -> Array:
    """The upper triangle whose square is the inverse of the sums of products of inputs."""
    wide = gram.astype(np.float64)
    diagonal = np.einsum("ii->i", wide)
    # Inputs that were always zero say nothing; the others stay what they are.
    diagonal[diagonal == 0] = 1.0
    diagonal += _DAMPING * diagonal.mean()
    return np.ascontiguousarray(np.linalg.cholesky(np.linalg.inv(wide)).T.astype(np.float32))
