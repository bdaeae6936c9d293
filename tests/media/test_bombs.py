"""Pictures whose files are far too small for them."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError
from edgeinfer.media import audio
from edgeinfer.media.audio import open_recording, resampled
from edgeinfer.media.geometry import TENSOR_BYTES, steps
from edgeinfer.media.image import measured, open_image
from edgeinfer.types import ImageInput


def test_a_picture_of_more_pixels_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("1", (8000, 8000)).save(stream, "PNG", optimize=True)
    assert len(stream.getvalue()) < 50_000
    (tmp_path / "x.png").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="bytes for 8000 by 8000 pixels"):
        open_image(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((60000, 1), {"resize": "crop"}),
        ((1, 60000), {"resize": "crop"}),
        ((60000, 1), {"resize": "pad"}),
        ((60000, 1), {"resize": "line", "grow": True}),
        ((60000, 1), {"resize": "limit", "side": 1000}),
        ((100, 12000), {"resize": "limit", "side": 736, "side_rule": "min", "multiple": 32}),
        ((6000, 4000), {"resize": "limit", "side": 736, "side_rule": "min", "multiple": 32}),
    ],
)
def test_a_picture_of_one_line_does_not_grow_out_of_proportion(
    size: tuple[int, int], changes: dict[str, Any]
) -> None:
    sides = (None, None) if changes["resize"] == "limit" else (224, 2240)
    with pytest.raises(InputError, match="one that the model's input has room for"):
        steps(size, ImageInput(*sides, **changes))


@pytest.mark.parametrize(
    ("size", "record", "bytes_a_picture"),
    [
        (
            (30, 300),
            ImageInput(None, None, resize="limit", side=736, side_rule="min", multiple=32),
            5_416_960,
        ),
        ((400, 300), ImageInput(width=64, height=64), 400 * 300),
    ],
)
def test_what_a_picture_takes_is_counted_with_what_it_becomes(
    size: tuple[int, int], record: ImageInput, bytes_a_picture: int
) -> None:
    """3.6 kB became 780 MB, and were counted as ten."""
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", size).save(stream, "PNG")
    pixels, needed = measured(stream.getvalue(), record)
    assert pixels == size[0] * size[1]
    times = TENSOR_BYTES if bytes_a_picture > pixels else 8
    assert needed == times * bytes_a_picture


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
    monkeypatch.setattr(audio, "MOST_VALUES", 100_000)
    monkeypatch.setattr(audio, "MOST_TIMES", 1)
    with pytest.raises(InputError, match="a recording that is no bomb"):
        open_recording(stream.getvalue(), 16_000)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rgba.png": ("RGBA", {}),
    "la.png": ("LA", {}),
    "p.png": ("P", {"transparency": 0}),
    "p.gif": ("P", {"transparency": 0}),
    "wide.png": ("I;16", {}),
    "cmyk.jpg": ("CMYK", {}),
    "progressive.jpg": ("RGB", {"progressive": True}),
    "lossless.webp": ("RGBA", {"lossless": True, "method": 0}),
    "lossy.webp": ("RGB", {"method": 0}),
    "strip.tif": ("RGB", {"compression": "tiff_adobe_deflate", "tiffinfo": {278: 9999}}),
    "turned.png": ("RGBA", {"turned": True}),
}

DECODE = """
import sys
from edgeinfer.errors import InputError
from edgeinfer.media.image import measured, open_image
import numpy, PIL.Image
PIL.Image.init()
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("VmHWM")][0] >> 10
before = peak()
try:
    open_image(sys.argv[1])
    print(peak() - before)
except InputError as e:
    print(-1 if "decompression bomb" in str(e) else e)
"""


@pytest.mark.sample(2)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of a process")
@pytest.mark.parametrize("name", KINDS)
def test_every_copy_of_a_picture_counts(name: str, tmp_path: Path) -> None:
    """The largest square that is taken stays within the limit; the next larger one is refused."""
    image = pytest.importorskip("PIL.Image")
    mode, options = KINDS[name]
    options = {**options}
    if options.pop("turned", False):
        options["exif"] = image.Exif()
        options["exif"][0x0112] = 6
    taken = 0
    for side in (3400, 4800, 7000):
        image.new(mode, (side, side)).save(tmp_path / name, **options)
        found = subprocess.run(
            [sys.executable, "-c", DECODE, str(tmp_path / name)], capture_output=True, check=True
        )
        peak = int(found.stdout)
        assert peak <= 200 + 20 * (tmp_path / name).stat().st_size / 2**20
        taken += peak > 0
    assert taken
    assert peak == -1


@pytest.mark.parametrize("channels", [1, 255])
def test_recordings_are_read_in_blocks_of_values(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros((5000, channels), np.int16), 16_000, format="WAV")
    monkeypatch.setattr(audio, "BLOCK", 1000)
    found = [*audio.pieces(stream.getvalue(), 16_000)]
    assert sum(map(len, found)) == 5000
    assert max(map(len, found)) * channels <= 1000


@pytest.mark.parametrize("rate", [8_000, 44_100, 16_000])
def test_pieces_are_the_whole(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    soxr = pytest.importorskip("soxr")
    stream, signal = io.BytesIO(), np.random.default_rng(0).uniform(-1, 1, 50_000)
    soundfile.write(stream, signal.astype(np.float32), rate, format="WAV", subtype="FLOAT")
    expected = signal.astype(np.float32)
    if rate != 16_000:
        expected = soxr.resample(expected, rate, 16_000, quality="HQ")
    for block in (997, 1 << 20):
        monkeypatch.setattr(audio, "BLOCK", block)
        np.testing.assert_array_equal(open_recording(stream.getvalue(), 16_000), expected)


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (1, "a recording of 2000 Hz at least"),
        (1999, "a recording of 2000 Hz at least"),
        (2000, "a recording that is no bomb"),
    ],
)
def test_a_false_rate_makes_no_endless_sound(
    rate: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(100_000, np.int16), rate, format="WAV")
    monkeypatch.setattr(audio, "MOST_VALUES", 100_000)
    monkeypatch.setattr(audio, "MOST_TIMES", 1)
    sizes: list[int] = []
    with pytest.raises(InputError, match=said):
        sizes.extend(map(len, audio.pieces(stream.getvalue(), 16_000)))
    assert max(sizes, default=0) <= 2 * audio.BLOCK


def test_a_thin_picture_is_not_scaled_along_its_length_first() -> None:
    with pytest.raises(InputError, match="one that the model's input has room for"):
        steps((20, 1_000_000), ImageInput(width=224, height=224, resize="stretch"))
