"""Normalisations.

Operators with channels have them last, as the layout pass leaves them. Variances are taken of what
is left after the mean: the difference of two large numbers would lose the digits that matter.
"""

from __future__ import annotations

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, NHWC, OPS


@OPS.lower("LRN", domain=NHWC, dtypes=FLOATS)
def lrn(g: Builder, x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Divide by a power of the squares of neighbouring channels."""
    if size % 2 and x.rank == 4:
        options = {"radius": size // 2, "bias": bias, "alpha": alpha / size, "beta": beta}
        return g.emit("LOCAL_RESPONSE_NORMALIZATION", [x], x.shape, **options)
    total = _window_sum(g, g.binary("MUL", x, x), size)
    scaled = g.binary("ADD", g.binary("MUL", total, alpha / size), bias)
    return g.binary("DIV", x, g.binary("POW", scaled, beta))


def _window_sum(g: Builder, x: Tensor, size: int) -> Tensor:
    """Sum of neighbours along the last axis; an even window has more of the later ones."""
    channels = x.shape[-1]
    if channels is None:
        raise Refusal("the number of channels is not known", "dynamic_shape")
    before = [(0, 0)] * (x.rank - 1)
    padded = g.pad(x, [*before, ((size - 1) // 2, size // 2)])
    total: Tensor | None = None
    for start in range(size):
        begin = [0] * (x.rank - 1) + [start]
        end = [None] * (x.rank - 1) + [start + channels]
        part = g.slice(padded, begin, end, [1] * x.rank)
        total = part if total is None else g.binary("ADD", total, part)
    return x if total is None else total
