"""A recording to the tensor of an ``AudioInput`` record."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.types import Array, AudioInput

INSTALL = 'pip install "edgeinfer[media]"'
BLOCK = 1 << 20
"""Frames read at once, so that a long stereo recording is never held in full."""


def load_audio(path: str | Path, record: AudioInput) -> Array:
    """Read a recording as the model takes it: mono, -1..1, at the record's rate.

    Channels are averaged; another sample rate is converted by soxr. When the record fixes
    ``samples``, a longer recording is cut into consecutive windows and zeros fill the last one, so
    that nothing that was recorded is dropped.

    Returns:
        (windows, samples), float32; one window when it fits or ``samples`` is None.

    Raises:
        InputError: the file is no recording, is damaged or holds no sound.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    signal, rate = _read(Path(path))
    if rate != record.sample_rate:
        signal = _resampled(signal, rate, record.sample_rate)
    samples = record.samples or max(len(signal), 1)
    windows = max(-(-len(signal) // samples), 1)
    padded = np.zeros(windows * samples, dtype=np.float32)
    padded[: len(signal)] = signal
    return padded.reshape(windows, samples)


def _read(path: Path) -> tuple[Array, int]:
    try:
        import soundfile
    # soundfile raises OSError when its native library is missing.
    except (ImportError, OSError) as e:
        raise NotAvailableError(f"reading recordings needs soundfile: {INSTALL}") from e
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    expected = "a recording (WAV, FLAC, OGG, ...)"
    try:
        with soundfile.SoundFile(path) as file:
            rate = int(file.samplerate)
            blocks = [
                block.mean(axis=1, dtype=np.float32)
                for block in file.blocks(blocksize=BLOCK, dtype="float32", always_2d=True)
            ]
    except soundfile.LibsndfileError as e:
        received = f"a damaged file or one of another kind ({' '.join(str(e).split())})"
        raise InputError(str(path), expected, received) from e
    signal = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)
    if not len(signal):
        raise InputError(str(path), expected, "a file without sound")
    if not np.isfinite(signal).all():
        raise InputError(str(path), "finite samples", "NaN or infinite ones")
    return signal, rate


def _resampled(signal: Array, rate: int, wanted: int) -> Array:
    try:
        import soxr
    except ImportError as e:
        raise NotAvailableError(
            f"changing the sample rate from {rate} to {wanted} Hz needs soxr: {INSTALL}"
        ) from e
    return np.asarray(soxr.resample(signal, rate, wanted, quality="HQ"), dtype=np.float32)
