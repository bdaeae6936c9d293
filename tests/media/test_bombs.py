"""Pictures whose files are far too small for them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError
from edgeinfer.media import audio
from edgeinfer.media.audio import open_recording, resampled
from edgeinfer.media.geometry import steps
from edgeinfer.media.image import open_picture
from edgeinfer.types import ImageInput


def test_a_picture_of_more_pixels_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("1", (8000, 8000)).save(stream, "PNG", optimize=True)
    assert len(stream.getvalue()) < 50_000
    (tmp_path / "x.png").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="bytes for 8000 by 8000 pixels"):
        open_picture(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((60000, 1), {"resize": "crop"}),
        ((1, 60000), {"resize": "crop"}),
        ((60000, 1), {"resize": "pad"}),
        ((60000, 1), {"resize": "line", "grow": True}),
        ((60000, 1), {"resize": "limit", "side": 1000}),
    ],
)
def test_a_picture_of_one_line_does_not_grow_out_of_proportion(
    size: tuple[int, int], changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="one that the model's input has room for"):
        steps(size, ImageInput(width=224, height=2240, **changes))


@pytest.mark.parametrize("resize", ["crop", "pad", "letterbox", "stretch"])
def test_wide_pictures_are_still_taken(resize: Any) -> None:
    assert steps((12000, 2000), ImageInput(width=224, height=224, resize=resize))


def test_a_recording_of_few_samples_does_not_become_one_of_many() -> None:
    with pytest.raises(InputError, match="60000 samples at 1 Hz, for a model of 16000 Hz"):
        resampled(np.zeros(60_000, np.float32), 1, 16_000)


def test_silence_is_not_unpacked_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(1_000_000, np.int16), 16_000, format="FLAC")
    assert len(open_recording(stream.getvalue(), 16_000)) == 1_000_000
    monkeypatch.setattr(audio, "MOST_SAMPLES", 100_000)
    monkeypatch.setattr(audio, "MOST_TIMES", 1)
    with pytest.raises(InputError, match="a recording that is no bomb"):
        open_recording(stream.getvalue(), 16_000)
