"""A recording to the tensor of an ``AudioInput`` record."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import absence, open_file
from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.media.mpeg import is_crowded
from edgeinfer.types import Array, AudioInput

BLOCK = 1 << 20
"""Values that are read at once."""

MOST_VALUES, MOST_TIMES = 1 << 27, 128
"""Values, of all channels or at another rate, that any recording may have, and how many more for
each byte of its file.

Silence is packed to almost nothing.
"""

MOST_HELD, HELD_TIMES, HELD_BYTES = 10 << 20, 1, 16
"""Samples of a recording that a model takes as one, how many more for each byte of its file, and
what each takes: it is held four times."""

MOST_GROWTH = 8
"""Times that a file's samples, or many of an array, may grow by another sample rate."""


def load_audio(path: str | Path, record: AudioInput) -> Array:
    """Read a recording as the model takes it: mono, -1..1 times the gain, at the record's rate.

    Channels are averaged; another sample rate is converted by soxr. When the record fixes
    ``samples``, a longer recording is cut into windows and zeros fill the last one, so that nothing
    that was recorded is dropped.

    Returns:
        (windows, samples), float32; one window when it fits or ``samples`` is None.

    Raises:
        InputError: the file is no recording, is damaged or holds no audio.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    return np.stack([*windows(Path(path), record)])


def windows(path: Path, record: AudioInput) -> Iterator[Array]:
    """Yield the windows (samples,) of ``load_audio`` one after another."""
    if record.samples is None:
        return cut([open_recording(path, record.sample_rate)], record)
    return cut(pieces(path, record.sample_rate), record)


def cut(parts: Iterable[Array], record: AudioInput) -> Iterator[Array]:
    """Yield the windows of a recording, at the record's rate; of all of it where it is one."""
    samples = record.samples
    if samples is None:
        parts = [np.concatenate([*parts])]
        samples = record.lead + max(len(parts[0]), 1)
    framer = Framer(samples, record.hop, record.lead)
    for part in parts:
        yield from (window * np.float32(record.gain) for window in framer.feed(part))
    yield from (window * np.float32(record.gain) for window in framer.finish())


def open_recording(source: str | Path | bytes, rate: int) -> Array:
    """Read a recording, a file or its contents: (samples,), float32, mono, -1..1, at a rate.

    Raises:
        InputError: the file is no recording, is damaged, holds no audio or too much to be held.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    source = source if isinstance(source, bytes) else Path(source)
    whole, most = np.zeros(0, np.float32), MOST_HELD + HELD_TIMES * _size(source)
    for piece in pieces(source, rate):
        begin = len(whole)
        if begin + len(piece) > most:
            received = f"more than {most} samples at {rate} Hz"
            raise InputError(_name(source), "a recording that is held as one", received, "cut it")
        # Memory that is its own grows where it lies.
        whole.resize(begin + len(piece), refcheck=False)
        whole[begin:] = piece
    return whole


def pieces(source: str | Path | bytes, rate: int) -> Iterator[Array]:
    """Yield a recording piece by piece, each as ``open_recording`` gives the whole.

    Raises:
        InputError: the file is no recording, is damaged or holds no audio.
        NotAvailableError: soundfile, or soxr where the rates differ, is not installed.
        UsageError: no such file.
    """
    source = source if isinstance(source, bytes) else Path(source)
    left, name = MOST_VALUES + MOST_TIMES * _size(source), _name(source)
    with contextlib.closing(_blocks(source, name)) as blocks:
        own, channels = next(blocks)
        if own * MOST_GROWTH < rate:
            at_least = (
                f"a recording of {rate / MOST_GROWTH:g} Hz at least, for a model of {rate} Hz"
            )
            raise InputError(name, at_least, f"{own} Hz")
        resample = None if own == rate else _resampling(own, rate)
        # What is made of a block is no longer than one.
        step = max(1, min(BLOCK, BLOCK * own // rate))
        for block in blocks:
            left -= len(block) * max(channels, rate / own)
            if left < 0:
                raise InputError(name, "a recording that is no bomb", "too many samples")
            if resample is None:
                yield block
                continue
            for begin in range(0, len(block), step):
                yield resample(block[begin : begin + step], last=False)
        if resample is not None:
            yield resample(np.zeros(0, np.float32), last=True)


class Framer:
    """Windows of a recording that comes in chunks; the same windows for any size of chunks.

    As many come as begin within the recording, one a ``hop``, and until its end is in one; at least
    one. Zeros lie before and behind it.

    Args:
        samples: Samples of a window.
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


def measured(given: bytes, rate: int) -> tuple[int, int]:
    """Return a recording's values, and its samples at a rate; zeros where it is none.

    Raises:
        NotAvailableError: soundfile is not installed.
    """
    library = _soundfile()
    if (sound := _sound(io.BytesIO(given))) is None:
        return 0, 0
    try:
        info = library.info(sound)
    # What is wrong is reported when it is read.
    except Exception:
        return 0, 0
    frames = int(info.frames)
    return frames * int(info.channels), frames * rate // max(int(info.samplerate), 1)


_SECONDS, _SECONDS_PER_MB = 10.0, 2.0
"""Of a processor, for a recording and for each megabyte of its file; a hundredth is usual.

A damaged frame of MP3 takes libmpg123 the longer the further behind it lies.
"""

KINDS = "a recording (WAV, FLAC, OGG, MP3, AIFF, AU, CAF)"
_MPEG = bytes(b for b in range(0xE0, 0x100) if b & 0x06 in (2, 4) and b & 0x18 != 8)
"""Second bytes of frames of MPEG's layers II and III: behind eleven bits that are set, a version
and a layer that there are. Layer I, which no file has, is what libmpg123 complains of most."""

_BEGIN = re.compile(
    rb"(RIFF|RIFX|RF64)....WAVE|FORM....AIF[FC]|fLaC|OggS|\.snd|dns\.|caff....desc"
    # The first is Wave64.
    rb"|riff\x2e\x91\xcf\x11|\xff[" + re.escape(_MPEG) + rb"]",
    re.DOTALL,
)
"""How recordings begin, by all that libsndfile goes by; its readers of rarer kinds may not end."""

_MOST_TAGS = 16
"""Tags of ID3 before a recording; there is one, or two."""


class _Behind:
    """A file from a place in it on; libsndfile reads a tag, and then anything behind it."""

    def __init__(self, file: Any, start: int) -> None:
        self._file, self._start, self._end = file, start, file.seek(0, io.SEEK_END)
        file.seek(start)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go there, or as near as there is anything: whoever asks for more reads where it is."""
        begin = {io.SEEK_SET: self._start, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._end}
        self._file.seek(max(self._start, min(begin[whence] + offset, self._end)))
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell()) - self._start

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))

    def read(self, size: int = -1) -> bytes:
        return bytes(self._file.read(size))


def _sound(file: Any) -> Any:
    """Return what libsndfile reads of a file; None where it does not begin as recordings do."""
    start = 0
    for _ in range(_MOST_TAGS):
        file.seek(start)
        head = file.read(12)
        if not head.startswith(b"ID3"):
            if not _BEGIN.match(head) or (head[0] == 0xFF and is_crowded(file, start)):
                return None
            return _Behind(file, start)
        if len(head) < 10:
            return None
        size = 0
        for byte in head[6:10]:
            size = size << 7 | byte & 0x7F
        start += 10 + size
    return None


def _soundfile() -> Any:
    try:
        import soundfile
    # soundfile raises OSError when its native library is missing.
    except (ImportError, OSError) as e:
        raise NotAvailableError(f"reading recordings needs soundfile: {install('media')}") from e
    return soundfile


def _blocks(source: Path | bytes, name: str) -> Generator[Any, None, None]:
    """Yield the sample rate and channels, then blocks (n,), float32, mono."""
    soundfile = _soundfile()
    if isinstance(source, Path) and not source.is_file():
        raise UsageError(f"{source}: {absence(source)}")
    count, left_s = 0, _SECONDS + _SECONDS_PER_MB * _size(source) / 1e6
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else open_file(source)
        with opened:
            if (sound := _sound(opened)) is None:
                raise InputError(name, KINDS, "a damaged file or one of another kind")
            with soundfile.SoundFile(sound) as file:
                yield int(file.samplerate), int(file.channels)
                frames = max(1, BLOCK // int(file.channels))
                while True:
                    begun = time.thread_time()
                    # Some kinds can only be read on and on: that is all that is requested.
                    block = file.read(frames, dtype="float32", always_2d=True)
                    left_s -= time.thread_time() - begun
                    if left_s < 0:
                        raise InputError(name, "a recording that is soon decoded", "damaged parts")
                    if not len(block):
                        break
                    if not np.isfinite(block).all():
                        raise InputError(name, "finite samples", "NaN or infinite ones")
                    count += len(block)
                    yield block.mean(axis=1, dtype=np.float32)
    except soundfile.LibsndfileError as e:
        received = f"a damaged file or one of another kind ({' '.join(str(e).split())})"
        raise InputError(name, KINDS, received) from e
    except OSError as e:
        raise UsageError(f"{name}: cannot be read: {e.strerror or e}") from e
    if not count:
        raise InputError(name, KINDS, "a file without audio")


def _name(source: Path | bytes) -> str:
    return "recording" if isinstance(source, bytes) else str(source)


def _size(source: Path | bytes) -> int:
    if isinstance(source, bytes):
        return len(source)
    return source.stat().st_size if source.is_file() else 0


def _resampling(rate: int, wanted: int) -> Callable[..., Array]:
    """Return what converts blocks that come one after another, by soxr, high quality."""
    stream = _soxr(rate, wanted).ResampleStream(rate, wanted, 1, dtype="float32", quality="HQ")
    return lambda block, last: np.asarray(stream.resample_chunk(block, last=last))


def _soxr(rate: int, wanted: int) -> Any:
    try:
        import soxr
    except ImportError as e:
        raise NotAvailableError(
            f"changing the sample rate from {rate} to {wanted} Hz needs soxr: {install('media')}"
        ) from e
    return soxr


def resampled(signal: Array, rate: int, wanted: int) -> Array:
    """Convert the sample rate by soxr, high quality.

    Raises:
        InputError: it would grow beyond what any recording needs.
        NotAvailableError: soxr is not installed.
    """
    if len(signal) * wanted > rate * max(MOST_VALUES, MOST_GROWTH * len(signal)):
        received = f"{len(signal)} samples at {rate} Hz, for a model of {wanted} Hz"
        raise InputError("recording", "a sample rate that audio has", received)
    found = _soxr(rate, wanted).resample(signal, rate, wanted, quality="HQ")
    return np.asarray(found, dtype=np.float32)
