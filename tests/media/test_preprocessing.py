"""Preprocessing and label files; every mistake is named at once."""

from pathlib import Path

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.media import parse_preprocessing, read_labels
from edgeinfer.types import AudioInput, ImageInput, TokenInput

KINDS = "audio, constant, encoded, frames, image, noise, spectrogram, state, symbols, text, tokens"


def toml(folder: Path, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_kind(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        [image]
        kind = "image"
        width = 224
        height = 224
        resize = "crop"
        crop_ratio = 0.875
        mean = [127, 127, 127]
        std = [128, 128, 128]
        scale = 1

        ["serving/audio:0"]
        kind = "audio"
        sample_rate = 22050
        samples = 43844

        [ids]
        kind = "tokens"
        vocab_size = 30522
        """,
    )
    assert parse_preprocessing(path) == {
        "image": ImageInput(
            224,
            224,
            resize="crop",
            crop_ratio=0.875,
            mean=(127.0, 127.0, 127.0),
            std=(128.0, 128.0, 128.0),
            scale=1.0,
        ),
        "serving/audio:0": AudioInput(22050, 43844),
        "ids": TokenInput(30522),
    }


def test_a_size_that_is_not_given_is_the_picture_s_own(tmp_path: Path) -> None:
    path = toml(tmp_path, '[x]\nkind = "image"\n')
    assert parse_preprocessing(path) == {"x": ImageInput(None, None)}


def test_grey_pictures_have_one_mean(tmp_path: Path) -> None:
    path = toml(tmp_path, '[x]\nkind = "image"\ncolor = "GRAY"\n')
    assert parse_preprocessing(path) == {
        "x": ImageInput(None, None, color="GRAY", mean=(0.0,), std=(1.0,))
    }


def test_all_mistakes_are_listed(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        [x]
        kind = "image"
        widht = 3
        height = "4"
        color = "HSV"
        [y]
        kind = "audio"
        """,
    )
    with pytest.raises(UsageError) as caught:
        parse_preprocessing(path)
    assert str(caught.value) == (
        f"{path}: x.widht: unknown key;"
        " x.height: expected an integer or null, received '4';"
        " x.color: expected 'RGB' or 'BGR' or 'GRAY', received 'HSV';"
        " y.sample_rate: missing"
        " (image has width, height, resize, crop_ratio, interpolation, color, layout, scale, mean,"
        " std, pad, antialias, align, side, side_rule, longest, multiple, grow, kind;"
        " audio has sample_rate, samples, hop, lead, gain, kind)"
    )


def test_a_pipeline_file_is_another_options(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[inputs.x]\nkind = 'audio'\nsample_rate = 9\n[output]\nkind = 'classify'")
    with pytest.raises(UsageError, match=r"are for --pipeline$"):
        parse_preprocessing(path)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('kind = "video"', f"x.kind: expected one of {KINDS}, received 'video'"),
        ("width = 3", f"x.kind: expected one of {KINDS}, received null"),
        ('kind = "image"\nwidth = 0', "x.width: expected above 0, received 0"),
        ('kind = "image"\nstd = [1, 0, 1]', "x.std: a divisor is 0"),
        ('kind = "image"\nmean = [1, 2]', "x.mean: expected 3 values, received 2"),
        ('kind = "image"\nscale = nan', "x.scale: expected a finite number, received nan"),
        ('kind = "image"\nwidth = true', "x.width: expected an integer or null, received true"),
        ('kind = "image"\nresize = "crop"\nwidth = 3', "x.height: missing; resize = 'crop' needs"),
        ('kind = "audio"\nsample_rate = -1', "x.sample_rate: expected above 0, received -1"),
        (
            'kind = "image"\nwidth = 30000\nheight = 30000',
            "x.width, height: expected at most 16777216 pixels, received 900000000",
        ),
        (
            'kind = "audio"\nsample_rate = 16000\nsamples = 2000000000',
            "x.samples: expected at most 67108864, received 2000000000",
        ),
        (
            'kind = "audio"\nsample_rate = 1000000000',
            "x.sample_rate: expected at most 1048576, received 1000000000",
        ),
        (
            'kind = "audio"\nsample_rate = 16000\nsamples = 400000\nhop = 1',
            "x.hop: expected at least 782 of samples = 400000, received 1",
        ),
        (
            'kind = "text"\nvocabulary = "v.txt"\nmax_tokens = 2000000',
            "x.max_tokens: expected at most 1048576, received 2000000",
        ),
        ('kind = "tokens"\nvocab_size = 1.5', "x.vocab_size: expected an integer, received 1.5"),
    ],
)
def test_one_mistake(tmp_path: Path, body: str, problem: str) -> None:
    path = toml(tmp_path, f"[x]\n{body}\n")
    with pytest.raises(UsageError) as caught:
        parse_preprocessing(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no input is described"),
        ("[x", "not TOML"),
        ("x = 3", "'x' outside a table; start one with [input name]"),
        ("[x]\nkind = [1]", f"x.kind: expected one of {KINDS}, received an array"),
    ],
)
def test_not_a_table_an_input(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_preprocessing(toml(tmp_path, text))
    assert problem in str(caught.value)


@pytest.mark.parametrize("read", [parse_preprocessing, read_labels])
def test_a_file_that_cannot_be_read(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read(tmp_path / "b")


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes("\ufefftench, Tinca\r\ngoldfish\r\nÄffin \n\n".encode())
    assert read_labels(path) == ("tench, Tinca", "goldfish", "Äffin")


def test_labels_with_a_gap_or_none(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\n\ndog\n")
    with pytest.raises(UsageError, match="line 2 is empty"):
        read_labels(path)
    path.write_text(" \n")
    with pytest.raises(UsageError, match="no labels in it"):
        read_labels(path)
