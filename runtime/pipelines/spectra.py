"""Audio to mel spectrograms: by compiled code where the bundle has some, else by NumPy.

Before the code is used it has to give what NumPy gives in float64 on a few sounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from edgeinfer.backends.tvm.plain_functions import Functions, HeldArray
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.spectrogram import filters, function_name, mel_spectrogram, unfit, window
from edgeinfer.media.stages import tables
from edgeinfer.runtime.pipelines.canvas import UnfitError
from edgeinfer.types import Array, SpectrogramInput

_CLOSE = 1e-5
"""Of the largest value: how far the code may be from NumPy."""
_LOUDEST = 2.0**20
"""Energies of what is louder may leave float32."""
_MOST = 2**31 - 1
"""Samples and values of one call of the code."""

_LEVELS = {"natural": 1.0, "log10": 1 / np.log(10), "db": 10 / np.log(10)}
"""By which the natural logarithm is multiplied."""


class Spectra(Protocol):
    """What turns the audio of one call into a spectrogram.

    Attributes:
        about: how, for people.
    """

    about: str

    def __call__(self, signal: Array) -> Array:
        """Return what ``media.spectrogram.mel_spectrogram`` gives of (samples,), float32."""
        ...


class SpectraByNumpy:
    """NumPy in float64.

    Args:
        record: Record of the input.
        reason: why.
    """

    def __init__(self, record: SpectrogramInput, reason: str) -> None:
        self.about = f"spectrograms by NumPy: {reason}"
        self._record = record

    def __call__(self, signal: Array) -> Array:
        """Compute one."""
        return mel_spectrogram(signal, self._record)


def spectra(functions: Functions | None, without: str, record: SpectrogramInput) -> Spectra:
    """Choose how spectrograms are computed for one input.

    Args:
        functions: Functions of the bundle for this CPU; None if it has none that can be used.
        without: why.
        record: Record of the input.
    """
    if functions is None:
        return SpectraByNumpy(record, unfit(record) or without)
    try:
        made = SpectraByCode(functions, record)
        made.check()
    except UnfitError as e:
        return SpectraByNumpy(record, str(e))
    except EdgeInferError as e:
        return SpectraByNumpy(record, f"the bundle's code cannot be used: {e}")
    return made


class SpectraByCode:
    """Compiled code.

    Args:
        functions: Functions of the library.
        record: Record of the input.

    Raises:
        UnfitError: there is none for this record.
    """

    def __init__(self, functions: Functions, record: SpectrogramInput) -> None:
        if reason := unfit(record):
            raise UnfitError(reason)
        self._name = function_name(record)
        if not functions.has(self._name):
            raise UnfitError("the bundle's code has no function for this record")
        self.about = f"spectrograms by compiled code for {functions.machine}"
        self._functions, self._record = functions, record
        self._tables = [HeldArray(t) for t in tables(window(record), filters(record), "float64")]
        self._block = min(_MOST // record.mels, (_MOST - record.fft) // record.hop)

    def __call__(self, signal: Array) -> Array:
        """Compute one; what is louder than any sound NumPy computes."""
        if signal.size and max(signal.max(), -signal.min()) > _LOUDEST:
            return mel_spectrogram(signal, self._record)
        return self._finished(self._bands(self._padded(signal)))

    def check(self) -> None:
        """Hold the code against NumPy.

        Raises:
            UnfitError: it gives something else.
        """
        record = self._record
        for sound in _sounds(record):
            want, found = mel_spectrogram(sound, record), self(sound)
            largest = max(float(np.abs(want).max()), abs(record.mean / record.std))
            # What is NaN is not close.
            if want.shape != found.shape or not np.abs(found - want).max() <= _CLOSE * largest:
                raise UnfitError("the bundle's code gives other numbers than NumPy here")

    def _padded(self, signal: Array) -> Array:
        record = self._record
        side = record.fft // 2 if record.centered else 0
        samples = max(len(signal) + 2 * side, record.fft)
        if samples == len(signal):
            return np.ascontiguousarray(signal, np.float32)
        padded = np.zeros(samples, np.float32)
        padded[side : side + len(signal)] = signal
        return padded

    def _bands(self, sound: Array) -> Array:
        record = self._record
        count = (len(sound) - record.fft) // record.hop + 1
        parts = []
        for first in range(0, count, self._block):
            frames = min(self._block, count - first)
            begin = first * record.hop
            piece = sound[begin : begin + (frames - 1) * record.hop + record.fft]
            shape = (frames, record.mels) if record.time_first else (record.mels, frames)
            out = np.empty(shape, np.float32)
            self._functions.call(self._name, (piece, *self._tables, out))
            parts.append(out)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 0 if record.time_first else 1)

    def _finished(self, levels: Array) -> Array:
        """What follows the logarithm, in place."""
        record, shift = self._record, self._record.mean
        if record.log != "none":
            if record.reference == "max":
                # By itself: what is equal to it becomes zero.
                levels -= levels.max()
            else:
                shift += _LEVELS[record.log] * float(np.log(max(1.0, record.floor)))
            if record.range_db is not None:
                np.maximum(levels, levels.max() - np.float32(record.range_db), out=levels)
        if shift:
            levels -= np.float32(shift)
        if record.std != 1:
            levels /= np.float32(record.std)
        return levels


def _sounds(record: SpectrogramInput) -> Iterator[Array]:
    """A few sounds that differ in what may go wrong."""
    rng = np.random.default_rng(0)
    samples = 10 * record.hop + record.fft + 1
    noise = rng.normal(0, 0.1, samples).astype(np.float32)
    yield noise
    noise[: samples // 3] = 0
    yield noise
    yield np.zeros(samples, np.float32)
    yield np.sign(np.sin(np.arange(samples) * 0.3)).astype(np.float32)
    yield np.sin(np.arange(samples) * 0.05).astype(np.float32)
    yield np.full(1, 0.5, np.float32)
