"""Which input values an artifact is right for: a variant's constraints ``inputs``, ``integers``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json
from edgeinfer.types import Array, InputRange

KEY = "inputs"
"""The name of the constraint on floating-point inputs."""

INTEGERS = "integers"
"""The name of the constraint on integer inputs: JSON with lowest and highest value by input."""

NOT_NAN = "not_nan"
BELOW_INFINITY = "below_infinity"
NOT_INFINITE = "not_infinite"
FINITE = "finite"

LEVELS = (NOT_NAN, BELOW_INFINITY, NOT_INFINITE, FINITE)
"""Its values; ``below_infinity`` lets negative infinity in, for masks, and ``not_infinite`` NaN,
for models that fill in what is missing."""

WORDS = {
    NOT_INFINITE: "values without infinity",
    NOT_NAN: "values without NaN",
    BELOW_INFINITY: "values below infinity, without NaN",
    FINITE: "finite values",
}


SLACK = 2.0
"""How many times further than what half precision was judged for values may reach: layers that
leave its range there were kept in single precision."""

_ENDS = frozenset({NOT_INFINITE, FINITE})
"""Levels that look at both ends."""

_ADDED = (np.dtype(np.float32), np.dtype(np.float64))
"""Types whose sums reach their end only where the elements are about to."""

_SHORT = 1 << 13
"""Elements up to which BLAS adds in the calling thread."""

_HALF_ARITHMETIC = frozenset({"onnx", "onnx_tvm", "mlprogram", "aimodel", "tvm"})
"""Formats whose values are halves between operators; others unpack their weights and compute in
single precision."""


def reaches(
    precision: str, format: str, ranges: Mapping[str, InputRange]
) -> dict[str, tuple[float, InputRange]]:
    """Return the largest magnitude by input name that a variant was judged for.

    Args:
        precision: Precision of the variant.
        format: likewise.
        ranges: Ranges of the bundle.
    """
    if not in_half(precision) or format not in _HALF_ARITHMETIC:
        return {}
    return {name: (max(abs(r.low), abs(r.high)), r) for name, r in ranges.items()}


def in_half(precision: str) -> bool:
    """Whether something of a precision is computed in half precision, which ends at 65504."""
    return any(p == "fp16" or p.endswith("_afp16") for p in precision.split("+"))


def largest(array: Array) -> float:
    """Return the largest magnitude; NaN where there is one."""
    # Two reductions allocate nothing; the magnitudes of all elements would.
    return float(max(array.max(), -array.min())) if array.size else 0.0


def stricter(one: str, other: str) -> str:
    """Return the mildest level that refuses what either does; an empty one refuses nothing."""
    if not one or not other or one == other:
        return one or other
    apart = NOT_INFINITE in (one, other)
    return FINITE if apart else max(one, other, key=LEVELS.index)


def unfit(level: str, array: Array) -> str:
    """Say what an array holds that the level refuses; empty when it holds nothing of it."""
    if array.dtype.kind in "biuOSUT" or not array.size:
        return ""
    is_simple = level == FINITE and array.dtype in _ADDED and array.flags.c_contiguous
    if is_simple and math.isfinite(_total(array.reshape(-1))):
        return ""
    if array.dtype.kind == "f":
        # A reduction hands NaN on, allocates nothing and takes half the time of a mask.
        top = array.max()
        if top < np.inf and (level not in _ENDS or array.min() > -np.inf):
            return ""
        if level == NOT_NAN and top == np.inf:
            return ""
    wrong = _wrong(level, array)
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    what = {NOT_NAN: "NaN", NOT_INFINITE: "infinite"}.get(level, "NaN or infinite")
    where = [int(i) for i in np.argwhere(wrong)[0]]
    return f"{count} of {array.size} {what}, the first at {where}"


def _total(flat: Array) -> float:
    """Add up in one look at the elements: finite where they all are, unless it is too large itself.

    Neither way asks for the processor's flags, and the first is the shorter one after a model's run
    has emptied the caches; of long vectors BLAS would wake threads of its own.
    """
    return float(np.dot(flat, flat) if flat.size <= _SHORT else np.einsum("i->", flat))


def _wrong(level: str, array: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    # Types that NumPy itself does not know have no comparison with a Python number everywhere.
    known = array if array.dtype.kind in "fc" else array.astype(np.float32)
    if level == NOT_NAN:
        return np.asarray(np.isnan(known))
    if level == NOT_INFINITE:
        return np.asarray(np.isinf(known))
    if level == FINITE:
        return np.asarray(~np.isfinite(known))
    return np.asarray(~(known < np.inf))


def integer_bounds(text: str) -> dict[str, tuple[int, ...]]:
    """Read lowest and highest values by input name.

    Behind them may be others for more elements than so many: (number, lowest, highest) each.

    Raises:
        ValueError: the text says something else.
    """
    try:
        found = parse_json(text).items()
        bounds = {str(name): tuple(int(v) for v in values) for name, values in found}
    except (AttributeError, TypeError, ValueError) as e:
        raise ValueError(f"expected bounds by input name, received {text!r}") from e
    if any(len(values) % 3 != 2 for values in bounds.values()):
        raise ValueError(f"expected bounds by input name, received {text!r}")
    return bounds


def beyond(bounds: Sequence[int], array: Array) -> str:
    """Say which values lie outside of the bounds; empty when none does."""
    if array.dtype.kind not in "iuf" or not array.size:
        return ""
    least, most = ends(bounds, array.size)
    low, high = array.min().item(), array.max().item()
    if not (low < least or high > most):
        return ""
    of = f" of {array.size} elements" if len(bounds) > 2 else ""
    return f"{low if low < least else high}{of} is not between {least} and {most}"


def ends(bounds: Sequence[int], size: int) -> tuple[int, int]:
    """Return the lowest and the highest value for so many elements."""
    least, most = bounds[0], bounds[1]
    for place in range(2, len(bounds), 3):
        if size > bounds[place]:
            least, most = bounds[place + 1], bounds[place + 2]
    return least, most


def fits(constraints: Mapping[str, str], feeds: Mapping[str, Array]) -> bool:
    """Whether a variant with these constraints is right for these inputs."""
    bounds = integer_bounds(constraints.get(INTEGERS, "{}"))
    if any(name in feeds and beyond(span, feeds[name]) for name, span in bounds.items()):
        return False
    level = constraints.get(KEY)
    return level is None or not any(unfit(level, array) for array in feeds.values())
