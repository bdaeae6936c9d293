"""Fourier transforms as matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

LIMIT = 1 << 24
"""Weights of the largest matrix that is made."""

_COMPLEX = 2


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
