"""MP3 files with many damaged places are refused before libmpg123 looks for the next frame."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest

from edgeinfer.errors import InputError
from edgeinfer.media.audio import measured, open_recording
from edgeinfer.media.mpeg import MOST_GAPS, is_crowded

soundfile = pytest.importorskip("soundfile")


def recorded(rate: int, channels: int = 1, seconds: int = 4) -> bytes:
    stream = io.BytesIO()
    wave = np.sin(np.arange(rate * seconds) / 9) / 3
    soundfile.write(stream, np.stack([wave] * channels, 1), rate, format="MP3")
    return stream.getvalue()


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 32000, 44100, 48000])
def test_frames_are_found_where_they_are(rate: int) -> None:
    raw = recorded(rate, 1 + rate % 2)
    assert not is_crowded(io.BytesIO(raw), 0)
    assert len(open_recording(raw, rate)) >= 4 * rate - 2304
    # Each frame but the last is damaged in its head.
    heads = [raw.index(raw[:2], 1)]
    while (found := raw.find(raw[:2], heads[-1] + 8)) >= 0:
        heads.append(found)
    damaged = bytearray(raw)
    for head in heads[1::2]:
        damaged[head + 1] = 0
    assert is_crowded(io.BytesIO(damaged), 0) == (len(heads) // 2 > MOST_GAPS + 1)


def test_a_recording_that_was_cut_is_read() -> None:
    raw = recorded(16000)
    for given in (raw[: len(raw) // 2] + raw[len(raw) * 2 // 3 :], raw + b"TAG" + bytes(125)):
        assert len(open_recording(given, 16000)) > 30_000


def test_many_damaged_places_are_refused_in_little_time() -> None:
    """Two megabytes of them took 4 s, and as many lines as bytes on standard error."""
    raw = recorded(16000)
    free = raw[:2] + bytes([raw[2] & 0x0F]) + raw[3:4]
    given = raw[:2000] + free * 500_000
    begun = time.process_time()
    with pytest.raises(InputError, match="a damaged file or one of another kind"):
        open_recording(given, 16000)
    assert measured(given, 16000) == (0, 0)
    assert time.process_time() - begun < 2
