"""Recordings to tensors: exact samples, and resampling against the sine it must give."""

import contextlib
import itertools
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.media import load_audio
from edgeinfer.media.audio import measured, open_recording
from edgeinfer.types import Array, AudioInput

soundfile = pytest.importorskip("soundfile")


def write(path: Path, samples: Array, rate: int = 16_000, subtype: str = "FLOAT") -> Path:
    soundfile.write(path, samples, rate, subtype=subtype)
    return path


def sine(rate: int, seconds: float, hertz: float = 440.0) -> Array:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def test_float_samples_are_kept_bit_for_bit(tmp_path: Path) -> None:
    signal = sine(16_000, 0.1)
    result = load_audio(write(tmp_path / "a.wav", signal), AudioInput(16_000))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, signal[np.newaxis])


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_sixteen_bit_samples_are_divided_by_32768(tmp_path: Path, name: str) -> None:
    pcm = np.array([-32768, -1, 0, 1, 32767], dtype=np.int16)
    result = load_audio(write(tmp_path / name, pcm, subtype="PCM_16"), AudioInput(16_000))
    np.testing.assert_array_equal(result[0], pcm.astype(np.float32) / 32768)


def test_channels_are_averaged(tmp_path: Path) -> None:
    stereo = np.array([[1.0, 0.0], [0.5, -0.5], [0.25, 0.75]], dtype=np.float32)
    result = load_audio(write(tmp_path / "a.wav", stereo), AudioInput(16_000))
    np.testing.assert_array_equal(result, [[0.5, 0.0, 0.5]])


@pytest.mark.parametrize(("source", "wanted"), [(44_100, 16_000), (8_000, 22_050)])
def test_another_rate_is_resampled(tmp_path: Path, source: int, wanted: int) -> None:
    pytest.importorskip("soxr")
    path = write(tmp_path / "a.wav", sine(source, 1.0), source)
    result = load_audio(path, AudioInput(wanted))[0]
    expected = sine(wanted, 1.0)
    assert abs(len(result) - wanted) <= 1
    inner = slice(wanted // 10, -wanted // 10)
    assert np.abs(result[: len(expected)][inner] - expected[: len(result)][inner]).max() < 1e-3


def test_resampling_does_not_alias(tmp_path: Path) -> None:
    """A tone above half the new rate must vanish, not fold back."""
    pytest.importorskip("soxr")
    path = write(tmp_path / "a.wav", sine(44_100, 1.0, hertz=12_000), 44_100)
    result = load_audio(path, AudioInput(16_000))[0]
    assert np.abs(result[2000:-2000]).max() < 1e-3


def test_a_short_recording_is_filled_with_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.array([0.5, 0.25], dtype=np.float32))
    np.testing.assert_array_equal(load_audio(path, AudioInput(16_000, 4)), [[0.5, 0.25, 0, 0]])


def test_a_long_recording_becomes_windows(tmp_path: Path) -> None:
    signal = np.arange(5, dtype=np.float32) / 8
    result = load_audio(write(tmp_path / "a.wav", signal), AudioInput(16_000, 2))
    np.testing.assert_array_equal(result, [[0, 0.125], [0.25, 0.375], [0.5, 0]])


def test_an_exact_fit_is_one_window(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.ones(4, dtype=np.float32))
    assert load_audio(path, AudioInput(16_000, 4)).shape == (1, 4)


@pytest.mark.parametrize("content", [b"", b"hello", b"RIFF\x24\0\0\0WAVEfmt "])
def test_another_kind_of_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected a recording") as caught:
        load_audio(path, AudioInput(16_000))
    assert "\n" not in str(caught.value)


def test_silence_of_no_length_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.zeros(0, dtype=np.float32))
    with pytest.raises(InputError, match="a file without audio"):
        load_audio(path, AudioInput(16_000))


def test_nan_samples_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.array([0.0, np.nan], dtype=np.float32))
    with pytest.raises(InputError, match="expected finite samples"):
        load_audio(path, AudioInput(16_000))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_audio(tmp_path / "none.wav", AudioInput(16_000))


def test_without_soundfile_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'edgeinfer\[media\]'"):
        load_audio("a.wav", AudioInput(16_000))


def test_without_soxr_only_another_rate_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    path = write(tmp_path / "a.wav", np.ones(4, dtype=np.float32))
    assert load_audio(path, AudioInput(16_000)).shape == (1, 4)
    with pytest.raises(NotAvailableError, match="from 16000 to 8000 Hz needs soxr"):
        load_audio(path, AudioInput(8_000))


def test_a_rate_that_no_sound_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sine(1000, 1.0), 1)
    with pytest.raises(InputError, match="expected a recording of 2000 Hz at least"):
        load_audio(path, AudioInput(16_000))


@pytest.mark.parametrize("form", ["WAV", "AIFF", "FLAC", "OGG", "MP3", "AU", "CAF", "W64", "RF64"])
def test_the_kinds_that_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "sound"
    soundfile.write(path, sine(16_000, 1.0), 16_000, format=form)
    found = load_audio(path, AudioInput(16_000))
    assert np.abs(found[0, 4000:12_000]).max() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("form", ["SVX", "MAT4", "VOC", "IRCAM", "NIST", "PVF"])
def test_rare_kinds_are_refused_unread(form: str, tmp_path: Path) -> None:
    """libsndfile's reader of 8SVX does not end on many empty chunks."""
    path = tmp_path / "sound.wav"
    soundfile.write(path, sine(16_000, 0.1), 16_000, format=form, subtype="PCM_16")
    with pytest.raises(InputError, match="expected a recording"):
        load_audio(path, AudioInput(16_000))
    assert measured(path.read_bytes(), 16_000) == (0, 0)


GSM = struct.pack("<HHIIHHHH", 0x31, 1, 8000, 1625, 65, 0, 2, 320)


def wav(form: bytes, data: bytes) -> bytes:
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_kinds_that_can_only_be_read_on(tmp_path: Path) -> None:
    """Telephones record in GSM; of such files nobody can say where a sample is."""
    signal = sine(8000, 2.0)
    soundfile.write(tmp_path / "a.wav", signal, 8000, format="WAV", subtype="GSM610")
    found = open_recording((tmp_path / "a.wav").read_bytes(), 8000)
    assert not soundfile.SoundFile(tmp_path / "a.wav").seekable()
    assert 0 <= len(found) - len(signal) < 320
    assert np.abs(found[: len(signal)] - signal).mean() < 0.1
    assert len(open_recording(wav(GSM, bytes(6500)), 8000)) == 32_000
    unknown = b".snd" + struct.pack(">IIIII", 24, 0xFFFFFFFF, 23, 8000, 1) + b"\x55" * 4000
    assert len(open_recording(unknown, 8000)) > 0


def test_places_that_no_file_has_are_asked_for_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """libsndfile seeks by what the file says."""
    common = struct.pack(">HIH", 1, 100, 16) + b"\x40\x0b\xfa" + bytes(7)
    chunks = ((b"COMM", common), (b"COMT", b"\xff\xff" + bytes(20)), (b"SSND", bytes(208)))
    body = b"AIFF" + b"".join(kind + struct.pack(">I", len(c)) + c for kind, c in chunks)
    given = b"FORM" + struct.pack(">I", len(body)) + body
    with contextlib.suppress(InputError):
        open_recording(given, 8000)
    measured(given, 8000)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("second", [0xFF, 0xFE, 0xF7, 0xE9, 0xEB, 0xF1, 0xF9])
def test_frames_of_mpeg_that_no_file_has_are_refused_unread(second: int) -> None:
    """Layer I, and versions and layers that there are not."""
    given = (bytes((0xFF, second)) + b"\x10" + bytes(29)) * 100
    assert measured(given, 16_000) == (0, 0)
    with pytest.raises(InputError, match="expected a recording"):
        open_recording(given, 16_000)


def test_damaged_frames_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took longer than the one before."""
    given = (b"\xff\xf3\x10\xc0" + b"\xff" * 22) * 10_000
    assert len(open_recording(given, 22_050)) > 1 << 20
    ticks = itertools.count(step=6)
    monkeypatch.setattr(time, "thread_time", lambda: float(next(ticks)))
    with pytest.raises(InputError, match="that is soon decoded"):
        open_recording(given, 22_050)


def tag(size: int, version: int = 3) -> bytes:
    """Return a tag of ID3, of so many bytes behind its head."""
    sizes = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3" + bytes([version, 0, 0]) + sizes + bytes(size)


TAGS = [b"", tag(0), tag(10), tag(10, 4), tag(200), tag(4096), tag(10) * 2, tag(20, 2) + tag(300)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("before", [*TAGS, tag(0) * 20, tag(0)[:8], tag(10)[:6] + b"\xff" * 4])
def test_empty_chunks_without_end(before: bytes, tmp_path: Path) -> None:
    """Also behind a tag, which libsndfile skips and then reads any kind."""
    path = tmp_path / "sound.wav"
    path.write_bytes(before + b"FORM\x00\x01\x38\x80" + b"8SVX" + b"ANNO\x00\x00\x00\x00" * 10_000)
    script = (
        "import sys, pathlib\n"
        "from edgeinfer.errors import InputError\n"
        "from edgeinfer.media.audio import load_audio, measured\n"
        "from edgeinfer.types import AudioInput\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "print(measured(path.read_bytes(), 16_000))\n"
        "try:\n    load_audio(path, AudioInput(16_000))\n"
        "except InputError as e:\n    print(e)\n"
    )
    # What does not end holds the interpreter's lock.
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith("(0, 0)")
    assert "expected a recording" in done.stdout


@pytest.mark.parametrize("before", TAGS)
@pytest.mark.parametrize("form", ["MP3", "FLAC", "WAV"])
def test_what_is_behind_a_tag_is_the_recording(before: bytes, form: str, tmp_path: Path) -> None:
    plain, tagged = tmp_path / "plain", tmp_path / "tagged"
    soundfile.write(plain, sine(16_000, 1.0), 16_000, format=form)
    tagged.write_bytes(before + plain.read_bytes())
    found = [load_audio(path, AudioInput(16_000)) for path in (plain, tagged)]
    np.testing.assert_array_equal(found[0], found[1])
    assert measured(tagged.read_bytes(), 16_000) == measured(plain.read_bytes(), 16_000)


@pytest.mark.parametrize("form", ["RIFF", "RIFX", "riff", "RF64", "caff"])
def test_a_container_of_something_else_is_refused_unread(form: str) -> None:
    """libsndfile would go on guessing, and add why it refuses."""
    given = form.encode() + bytes(4) + b"8SVX" + bytes(1000)
    with pytest.raises(InputError, match=r"one of another kind$"):
        open_recording(given, 16_000)
