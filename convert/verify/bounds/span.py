"""Intervals of numbers, one for a whole tensor or one for each of its elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgeinfer.records import dataclass

Ends = npt.NDArray[np.float64]

_MOST = 1 << 16
"""Elements up to which each one may have an interval of its own."""


@dataclass(frozen=True, slots=True)
class Span:
    """Lowest and highest values; both arrays broadcast to the shape of the tensor.

    Attributes:
        low: minus infinity where nothing is known.
        high: infinity where nothing is known.
    """

    low: Ends
    high: Ends

    @classmethod
    def of(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> Span:
        """Return the interval between two numbers or arrays of them."""
        return cls(np.asarray(low, np.float64), np.asarray(high, np.float64))

    @property
    def is_open(self) -> bool:
        """Whether nothing at all is known."""
        return bool(np.isneginf(self.low).all() and np.isposinf(self.high).all())

    @property
    def is_empty(self) -> bool:
        """Whether an element has no value left."""
        return bool((self.low > self.high).any())

    @property
    def is_scalar(self) -> bool:
        """Whether one interval serves all elements."""
        return self.low.ndim == 0 and self.high.ndim == 0

    @property
    def is_known(self) -> bool:
        """Whether each element has one value only."""
        return bool(np.isfinite(self.low).all() and (self.low == self.high).all())

    @property
    def least(self) -> float:
        """The lowest value of any element."""
        return float(self.low.min(initial=np.inf))

    @property
    def most(self) -> float:
        """The highest value of any element."""
        return float(self.high.max(initial=-np.inf))

    def hull(self) -> Span:
        """Return one interval that covers those of all elements."""
        return Span.of(self.least, self.most)

    def core(self) -> Span:
        """Return the interval that all elements' intervals have in common."""
        return Span.of(self.low.max(initial=-np.inf), self.high.min(initial=np.inf))

    def meet(self, other: Span) -> Span:
        """Return what both allow; without a common form, what all elements have in common."""
        try:
            return Span(np.maximum(self.low, other.low), np.minimum(self.high, other.high))
        except ValueError:
            return self.core().meet(other.core())

    def join(self, other: Span) -> Span:
        """Return one interval that covers both."""
        return Span.of(min(self.least, other.least), max(self.most, other.most))

    def fitted(self, shape: Sequence[int | None] | None) -> Span:
        """Return it for an operand that was broadcast: all that read an element must be content."""
        if self.is_scalar:
            return self
        if shape is None:
            return self.core()
        return Span(_folded(self.low, shape, np.max), _folded(self.high, shape, np.min))

    def full(self, shape: Sequence[int | None] | None) -> Span | None:
        """Return it with every element by itself; None where that is not known or too much."""
        if shape is None or any(d is None for d in shape):
            return None
        sizes = [int(d or 0) for d in shape]
        if np.prod(sizes, dtype=np.int64) > _MOST:
            return None
        try:
            return Span(np.broadcast_to(self.low, sizes), np.broadcast_to(self.high, sizes))
        except ValueError:
            return None


ANY = Span.of(-np.inf, np.inf)
"""All there is."""


def _folded(ends: Ends, shape: Sequence[int | None], fold: np._core._ReduceFn) -> Ends:  # type: ignore[name-defined]
    missing = len(shape) - ends.ndim
    ends = ends.reshape((1,) * max(0, missing) + ends.shape)
    extra = ends.ndim - len(shape)
    if extra > 0:
        ends = fold(ends, axis=tuple(range(extra)))
    axes = tuple(a for a, d in enumerate(shape) if ends.shape[a] != 1 and d != ends.shape[a])
    return np.asarray(fold(ends, axis=axes, keepdims=True) if axes else ends)
