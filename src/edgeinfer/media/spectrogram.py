"""Mel spectrograms by their records, with the numbers of librosa."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from edgeinfer.media.stages import possible
from edgeinfer.types import Array, SpectrogramInput

_LEAST_FLOOR = 1e-37
"""Below it float32 loses digits; compiled code takes logarithms in it."""
_BLOCK = 1 << 20
"""Samples that are transformed at once."""
_LINEAR_HZ = 1000.0
"""Slaney's scale is linear below, logarithmic above."""
_HZ_PER_MEL = 200.0 / 3.0
_LOG_STEP = np.log(6.4) / 27.0


def mel_spectrogram(signal: Array, record: SpectrogramInput) -> Array:
    """Compute the spectrogram of one call.

    Args:
        signal: (samples,), at the record's rate, -1..1.
        record: what kind.

    Returns:
        (frames, mels), or (mels, frames) unless ``time_first``; float32.
    """
    frames, gather = _frames(signal, record), filters(record).T
    energy = np.empty((len(frames), record.mels))
    step = max(1, _BLOCK // record.fft)
    for start in range(0, len(frames), step):
        block = frames[start : start + step] * window(record)
        energy[start : start + step] = np.abs(np.fft.rfft(block, axis=1)) ** record.power @ gather
    values = (_logarithm(energy, record) - record.mean) / record.std
    return np.ascontiguousarray(values if record.time_first else values.T, dtype=np.float32)


@lru_cache(maxsize=16)
def filters(record: SpectrogramInput) -> Array:
    """Return the triangles that gather frequencies into bands: (mels, fft // 2 + 1)."""
    high = record.sample_rate / 2 if record.high is None else record.high
    ends = np.linspace(_mel(record.low, record), _mel(high, record), record.mels + 2)
    edges = _hertz(ends, record)
    bins = np.fft.rfftfreq(record.fft, 1.0 / record.sample_rate)
    rising = (bins - edges[:-2, np.newaxis]) / np.diff(edges)[:-1, np.newaxis]
    falling = (edges[2:, np.newaxis] - bins) / np.diff(edges)[1:, np.newaxis]
    triangles: Array = np.minimum(rising, falling).clip(0.0, None)
    if record.norm == "slaney":
        triangles *= (2.0 / (edges[2:] - edges[:-2]))[:, np.newaxis]
    return triangles


def unfit(record: SpectrogramInput) -> str:
    """Tell why there is no compiled code for a record; empty where there is some."""
    if not possible(record.fft):
        return f"no code for transforms of {record.fft} samples: a factor of it is too large"
    if record.power not in (1, 2):
        return f"no code for power {record.power:g}"
    if record.log != "none" and record.floor < _LEAST_FLOOR:
        return f"no code for a floor of {record.floor:g}, below {_LEAST_FLOOR:g}"
    return ""


def function_name(record: SpectrogramInput) -> str:
    """Name the compiled function of a record: by all that is fixed in it."""
    floor = 0.0 if record.log == "none" else record.floor
    bits = int(np.float32(floor).view(np.uint32))
    order = "time" if record.time_first else "band"
    sizes = f"{record.fft}_{record.hop}_{record.mels}"
    return f"mel_{sizes}_{record.power:g}_{record.log}_{bits:08x}_{order}"


def _frames(signal: Array, record: SpectrogramInput) -> Array:
    side = record.fft // 2 if record.centered else 0
    padded = np.pad(np.asarray(signal, np.float64), (side, side))
    padded = np.pad(padded, (0, max(record.fft - len(padded), 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, record.fft)
    return views[:: record.hop]


@lru_cache(maxsize=16)
def window(record: SpectrogramInput) -> Array:
    """Return what samples are multiplied by: (fft,)."""
    length = record.window or record.fft
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / length)
    before = (record.fft - length) // 2
    return np.pad(hann, (before, record.fft - length - before))


def _logarithm(energy: Array, record: SpectrogramInput) -> Array:
    if record.log == "none":
        return energy
    reference = 1.0 if record.reference == "one" else float(energy.max(initial=0.0))
    low = np.maximum(energy, record.floor)
    levels: Array
    if record.log == "natural":
        levels = np.log(low) - np.log(max(reference, record.floor))
    else:
        levels = np.log10(low) - np.log10(max(reference, record.floor))
    if record.log == "db":
        levels = 10.0 * levels
    if record.range_db is not None and levels.size:
        levels = np.maximum(levels, levels.max() - record.range_db)
    return levels


def _mel(hertz: float, record: SpectrogramInput) -> float:
    if record.scale == "htk":
        return float(2595.0 * np.log10(1.0 + hertz / 700.0))
    if hertz < _LINEAR_HZ:
        return hertz / _HZ_PER_MEL
    return float(_LINEAR_HZ / _HZ_PER_MEL + np.log(hertz / _LINEAR_HZ) / _LOG_STEP)


def _hertz(mels: Array, record: SpectrogramInput) -> Array:
    if record.scale == "htk":
        return np.asarray(700.0 * (10.0 ** (mels / 2595.0) - 1.0))
    knee = _LINEAR_HZ / _HZ_PER_MEL
    above = _LINEAR_HZ * np.exp(_LOG_STEP * (mels - knee))
    return np.where(mels < knee, mels * _HZ_PER_MEL, above)
