"""A recording to the tensor of an ``AudioInput`` record."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgeinfer.bounded import absence
from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.types import Array, AudioInput

BLOCK = 1 << 20
"""Frames read at once, so that a long stereo recording is never held in full."""

MOST_SAMPLES, MOST_TIMES = 1 << 27, 64
"""Samples that any recording may have, and how many more for each byte of its file.

Silence is packed to almost nothing.
"""

MOST_GROWTH = 8
"""Times that a recording of more samples may grow by another sample rate."""


def load_audio(path: str | Path, record: AudioInput) -> Array:
    """Read a recording as the model takes it: mono, -1..1 times the gain, at the record's rate.

    Channels are averaged; another sample rate is converted by soxr. When the record fixes
    ``samples``, a longer recording is cut into windows and zeros fill the last one, so that nothing
    that was recorded is dropped.

    Returns:
        (windows, samples), float32; one window when it fits or ``samples`` is None.

    Raises:
        InputError: the file is no recording, is damaged or holds no sound.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    return cut(open_recording(path, record.sample_rate), record)


def open_recording(source: str | Path | bytes, rate: int) -> Array:
    """Read a recording, a file or its contents: (samples,), float32, mono, -1..1, at a rate.

    Raises:
        InputError: the file is no recording, is damaged or holds no sound.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    signal, own = _read(source if isinstance(source, bytes) else Path(source))
    return signal if own == rate else resampled(signal, own, rate)


def cut(signal: Array, record: AudioInput) -> Array:
    """Cut a recording, at the record's rate, into the windows of its calls."""
    framer = Framer(record.samples or record.lead + max(len(signal), 1), record.hop, record.lead)
    windows = [*framer.feed(signal), *framer.finish()]
    return np.stack(windows) * np.float32(record.gain)


class Framer:
    """Windows of a recording that comes in pieces; the same windows for any size of pieces.

    As many come as begin within the recording, one a ``hop``, and until its end is in one; at least
    one. Zeros lie before and behind it.

    Args:
        samples: of a window.
        hop: from a window's first sample to the next one's; None: no overlap.
        lead: zeros before the recording.
    """

    def __init__(self, samples: int, hop: int | None = None, lead: int = 0) -> None:
        self.samples, self.hop, self.lead = samples, hop or samples, lead
        self.received = self.given = 0
        self._kept = np.zeros(lead, np.float32)

    def feed(self, piece: Array) -> Iterator[Array]:
        """Take a piece (n,), float32, and yield the windows that are now complete."""
        self.received += len(piece)
        self._kept = np.concatenate([self._kept, piece])
        while len(self._kept) >= self.samples:
            yield self._next()

    def finish(self) -> Iterator[Array]:
        """Yield the windows that end behind the recording."""
        to_the_end = -(-(self.received + self.lead - self.samples) // self.hop) + 1
        wanted = max(-(-self.received // self.hop), to_the_end, 1)
        while self.given < wanted:
            missing = max(self.samples - len(self._kept), 0)
            self._kept = np.concatenate([self._kept, np.zeros(missing, np.float32)])
            yield self._next()

    def end_of(self, number: int) -> int:
        """Return where window ``number`` ends, in samples from the beginning of the recording."""
        return number * self.hop - self.lead + self.samples

    def _next(self) -> Array:
        window: Array = self._kept[: self.samples].copy()
        self._kept = self._kept[self.hop :]
        self.given += 1
        return window


def _read(source: Path | bytes) -> tuple[Array, int]:
    try:
        import soundfile
    # soundfile raises OSError when its native library is missing.
    except (ImportError, OSError) as e:
        raise NotAvailableError(f"reading recordings needs soundfile: {install('media')}") from e
    name = "recording" if isinstance(source, bytes) else str(source)
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(source, Path) and not source.is_file():
        raise UsageError(f"{source}: {absence(source)}")
    expected = "a recording (WAV, FLAC, OGG, ...)"
    try:
        with soundfile.SoundFile(opened) as file:
            rate = int(file.samplerate)
            blocks, left = [], MOST_SAMPLES + MOST_TIMES * _size(source)
            for block in file.blocks(blocksize=BLOCK, dtype="float32", always_2d=True):
                blocks.append(block.mean(axis=1, dtype=np.float32))
                left -= len(block)
                if left < 0:
                    raise InputError(name, "a recording that is no bomb", "too many samples")
    except soundfile.LibsndfileError as e:
        received = f"a damaged file or one of another kind ({' '.join(str(e).split())})"
        raise InputError(name, expected, received) from e
    signal = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)
    if not len(signal):
        raise InputError(name, expected, "a file without sound")
    if not np.isfinite(signal).all():
        raise InputError(name, "finite samples", "NaN or infinite ones")
    return signal, rate


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def resampled(signal: Array, rate: int, wanted: int) -> Array:
    """Convert the sample rate by soxr, high quality.

    Raises:
        InputError: it would grow beyond what any recording needs.
        NotAvailableError: soxr is not installed.
    """
    if len(signal) * wanted > rate * max(MOST_SAMPLES, MOST_GROWTH * len(signal)):
        received = f"{len(signal)} samples at {rate} Hz, for a model of {wanted} Hz"
        raise InputError("recording", "a sample rate that sound has", received)
    try:
        import soxr
    except ImportError as e:
        raise NotAvailableError(
            f"changing the sample rate from {rate} to {wanted} Hz needs soxr: {install('media')}"
        ) from e
    return np.asarray(soxr.resample(signal, rate, wanted, quality="HQ"), dtype=np.float32)
