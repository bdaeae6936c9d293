"""Fourier transforms as matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.registry import Const, Refusal, Registry
from edgeinfer.records import dataclass
from edgeinfer.types import Array

LIMIT = 1 << 24
"""Weights of the largest matrix that is made."""

_REAL, _COMPLEX = 1, 2


@dataclass(frozen=True, slots=True)
class Transform:
    """A DFT as a product over its axis and the parts, which come last.

    Attributes:
        weights: (results * their parts, size * parts of the signal).
        axis: Axis of the transform.
        order: Order of the axes before the product: the others, the transform's, the parts.
        parts: Parts of a result: 1 or 2.
    """

    weights: Array
    axis: int
    order: list[int]
    parts: int

    @property
    def others(self) -> list[int]:
        """Axes that the product does not touch."""
        return self.order[:-2]

    @property
    def results(self) -> int:
        """Length of the axis afterwards."""
        return len(self.weights) // self.parts

    @property
    def back(self) -> list[int]:
        """Where the axes of ``order`` belong."""
        return [self.order.index(a) for a in range(len(self.order))]


def dft_plan(
    shape: Sequence[object],
    dft_length: Const | None,
    axis: Const | None,
    inverse: int,
    onesided: int,
) -> Transform:
    """Plan ONNX's DFT of a signal of this shape.

    Raises:
        Refusal: the signal's length is open, or it has no such form.
    """
    rank = len(shape)
    at = (-2 if axis is None else _number(axis)) % rank
    size, parts = shape[at], shape[-1]
    if not (isinstance(size, int) and isinstance(parts, int)):
        raise Refusal("the length of the signal must be known", "dynamic_shape")
    if at == rank - 1 or parts not in (_REAL, _COMPLEX):
        raise Refusal(f"axis {at} of a signal of {parts} parts")
    length = _number(dft_length) if dft_length is not None else size
    if dft_length is None and inverse and onesided:
        length = 2 * (size - 1)
    weights = transform(size, parts, length, bool(inverse), bool(onesided))
    order = [*(a for a in range(rank - 1) if a != at), at, rank - 1]
    return Transform(weights, at, order, _REAL if inverse and onesided else _COMPLEX)


def stft_plan(
    parts: object, window: Const | None, frame_length: Const | None, onesided: int
) -> Array:
    """Return the windowed waves of ONNX's STFT: (results * 2, frame length, parts).

    Raises:
        Refusal: such a signal has no such transform.
    """
    if parts not in (_REAL, _COMPLEX) or not isinstance(parts, int):
        raise Refusal(f"a signal of {parts} parts")
    if onesided and parts == _COMPLEX:
        raise Refusal("onesided of a complex signal")
    if frame_length is not None:
        length = _number(frame_length)
    elif window is not None:
        length = window.array.size
    else:
        raise Refusal("neither window nor frame_length")
    waves = transform(length, parts, length, False, bool(onesided)).reshape(-1, length, parts)
    return waves if window is None else waves * window.array.reshape(1, -1, 1)


@dataclass(frozen=True, slots=True)
class StftPlan:
    """An STFT as a product of frames.

    Attributes:
        waves: Windowed waves: (results * 2, frame length, parts).
        step: Samples from frame to frame.
        parts: Parts of a sample: 1 or 2.
        window: What frames are multiplied by; None for ones.
        onesided: Whether half of the results is enough.
    """

    waves: Array
    step: int
    parts: int
    window: Array | None
    onesided: bool


def stft(ops: Registry, dtypes: frozenset[Any]) -> Callable[[Callable[..., Any]], None]:
    """Register a target's STFT, which takes the builder, the signal and its ``StftPlan``."""

    def register(body: Callable[..., Any]) -> None:
        @ops.lower("STFT", dtypes=dtypes)
        def lowered(
            g: Any,
            signal: Any,
            frame_step: Const,
            window: Const | None = None,
            frame_length: Const | None = None,
            *,
            onesided: int,
        ) -> Any:
            parts = 1 if signal.rank == 2 else signal.shape[2]
            waves = stft_plan(parts, window, frame_length, onesided)
            shape = None if window is None else window.array.reshape(-1)
            step = int(frame_step.array.ravel()[0])
            return body(g, signal, StftPlan(waves, step, int(parts), shape, bool(onesided)))

    return register


def _number(given: Const) -> int:
    return int(given.array.reshape(-1)[0])


def transform(size: int, parts: int, length: int, inverse: bool, onesided: bool) -> Array:
    """The transform of every unit signal: (results * their parts, size * parts)."""
    results = length // 2 + 1 if onesided and not inverse else length
    if size * parts * results * _COMPLEX > LIMIT:
        raise Refusal(f"a transform of {length} values needs too large a matrix")
    units = np.eye(size, dtype=np.complex128)
    signals = np.stack([units, 1j * units][:parts], axis=1).reshape(size * parts, size)
    if inverse and onesided:
        return np.fft.irfft(signals, length).T.astype(np.float32)
    spectra = np.fft.ifft(signals, length) if inverse else np.fft.fft(signals, length)
    spectra = spectra[:, :results]
    both = np.stack([spectra.real, spectra.imag], axis=-1).reshape(size * parts, -1)
    return np.ascontiguousarray(both.T, np.float32)
