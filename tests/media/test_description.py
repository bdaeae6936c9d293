"""Pipeline files: what goes into a model and what its outputs mean."""

import json
from pathlib import Path

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, DetectAnchors, ReadText
from edgeinfer.media import parse_description
from edgeinfer.types import ImageInput, StateInput, TextInput

FULL = """
labels = "names.txt"

[inputs.image]
kind = "image"
width = 8
height = 8
antialias = false

[inputs.h]
kind = "state"
output = "hn"

[inputs.ids]
kind = "text"
vocabulary = "vocab.txt"
max_tokens = 16

[output]
kind = "read_text"
charset = "chars.txt"
"""


def written(folder: Path, text: str, name: str = "p.toml") -> Path:
    for file, content in {
        "names.txt": "a\nb\n",
        "vocab.txt": "[UNK]\n",
        "chars.txt": "x\n",
    }.items():
        (folder / file).write_text(content)
    (folder / name).write_text(text)
    return folder / name


def test_everything_is_read_and_files_come_along(tmp_path: Path) -> None:
    found = parse_description(written(tmp_path, FULL))
    assert found.preprocessing == {
        "image": ImageInput(8, 8, antialias=False),
        "h": StateInput("hn"),
        "ids": TextInput("vocab.txt", 16),
    }
    assert found.head == ReadText("chars.txt")
    assert found.labels == ("a", "b")
    assert found.files == {"vocab.txt": b"[UNK]\n", "chars.txt": b"x\n"}


def test_json_says_the_same(tmp_path: Path) -> None:
    data = {"output": {"kind": "classify", "top": 3}, "inputs": {"x": {"kind": "image"}}}
    found = parse_description(written(tmp_path, json.dumps(data), "p.json"))
    assert found.head == Classify(top=3)
    assert found.preprocessing == {"x": ImageInput(None, None)}


def test_tables_in_tables(tmp_path: Path) -> None:
    text = """
    [output]
    kind = "anchors"
    boxes = ["b"]
    scores = ["s"]
    [[output.layers]]
    stride = 8
    widths = [1, 2.5]
    """
    head = parse_description(written(tmp_path, text)).head
    assert isinstance(head, DetectAnchors)
    assert head.layers[0].widths == (1.0, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "says nothing; write [inputs.NAME] and [output]"),
        ("x = [", "not TOML"),
        ("lables = 'x'", "lables: unknown key"),
        ("[output]\nkind = 'clasify'", "output.kind: expected one of anchors, boxes, classify, "),
        (
            "[output]\nkind = 'classify'\ntopp = 3",
            "output.topp: unknown key (classify has output, ",
        ),
        ("[output]\nkind = 'classify'\ntop = 0", "output.top: expected at least 1, received 0"),
        ("[output]\nkind = 'word'", "output.word: missing"),
        (
            "[output]\nkind = 'grid'\nextra = {kind = 'points'}",
            "output.extra.kind: expected one of keypoints, prototypes, turned, received 'points'",
        ),
        (
            "[output]\nkind = 'grid'\nextra = {kind = 'keypoints', count = 0}",
            "output.extra.count: expected 1 to 512, received 0",
        ),
        (
            "[output]\nkind = 'rows'\nextra = {kind = 'turned'}",
            "output.box: expected 'xywh' of rotated boxes",
        ),
        (
            "[output]\nkind = 'grid'\nbox = 'xyxy'\nextra = {kind = 'turned'}",
            "output.box: expected 'xywh' of rotated boxes",
        ),
        (
            "[output]\nkind = 'grid'\nunit = 'cells'\nstrides = [8]\nextra = {kind = 'turned'}",
            "output.extra: expected only with unit = 'pixels' or 'share'",
        ),
        ("[output]\nkind = 'grid'\noverlap = 1.5", "output.overlap: expected 0 to 1, received 1.5"),
        ("[output]\nkind = 'grid'\nunit = 'cells'", "output.strides: expected with unit = 'cells'"),
        (
            "[output]\nkind = 'voice'\nthreshold = 0.2",
            "output.release: expected at most the threshold 0.2",
        ),
        (
            "[output]\nkind = 'anchors'\nboxes = ['a']\nscores = []\nlayers = []",
            "output.boxes, scores: expected as many outputs of each, at least one; "
            "output.layers: expected 1 to 64, received 0",
        ),
        ("[output]\nkind = 'read_text'\ncharset = '../c.txt'", "has a '..' component"),
        ("[output]\nkind = 'read_text'\ncharset = 'none.txt'", "none.txt: No such file"),
        ("labels = 'none.txt'\n[output]\nkind = 'classify'", "none.txt: no such file"),
        ("[inputs.x]\nkind = 'image'\nresize = 'limit'", "inputs.x.side: expected with resize"),
        (
            "[inputs.x]\nkind = 'image'\nresize = 'limit'\nside = 9\nlongest = 8",
            "inputs.x.longest: expected with side, and at least as long, received 8",
        ),
        ("[inputs.x]\nkind = 'image'\nresize = 'line'", "inputs.x.width: missing; resize = 'line'"),
        (
            "[inputs.x]\nkind = 'image'\ninterpolation = 'bicubic'\nantialias = false",
            "inputs.x.antialias: false is for bilinear, not bicubic",
        ),
        (
            "[inputs.x]\nkind = 'audio'\nsample_rate = 8000\nsamples = 100\nhop = 101",
            "inputs.x.hop: expected at most samples = 100, received 101",
        ),
        (
            "[inputs.x]\nkind = 'audio'\nsample_rate = 8000\nhop = 9",
            "hop: expected only with samples",
        ),
        ("[inputs.x]\nkind = 'frames'\nframes = 3\nhop = 4", "hop: expected at most frames = 3"),
        ("[inputs.x]\nkind = 'constant'\nvalues = []", "inputs.x.values: expected at least one"),
        (
            "[inputs.x]\nkind = 'text'\nvocabulary = 'v.bin'\nmax_tokens = 4",
            "inputs.x.vocabulary: expected a .json or .txt file",
        ),
        (
            "[inputs.x]\nkind='spectrogram'\nsample_rate=8000\nfft=256\nhop=64\nmels=8\nhigh=5000",
            "inputs.x.low, high: expected 0 <= low < high <= sample_rate / 2",
        ),
        (
            "[x]\nkind = 'audio'\nsample_rate = 9",
            "x: unknown key; tables of inputs alone are for --p",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        parse_description(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "expected a JSON object"), ("{", "not JSON")]
)
def test_bad_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_description(written(tmp_path, text, "p.json"))


@pytest.mark.parametrize("name", ["../names.txt", "/etc/names.txt", "C:/names.txt", "link.txt"])
@pytest.mark.parametrize(
    "text",
    [
        "labels = {0!r}\n[output]\nkind = 'classify'",
        "[output]\nkind = 'read_text'\ncharset = {0!r}",
        "[inputs.ids]\nkind = 'text'\nvocabulary = {0!r}\nmax_tokens = 4",
    ],
)
def test_files_of_other_folders_are_refused(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("secret\n")
    (tmp_path / "own").mkdir()
    path = written(tmp_path / "own", text.format(name))
    (tmp_path / "own" / "link.txt").symlink_to(tmp_path / "names.txt")
    refusal = r"has a '\.\.'|is absolute|the character ':'|names a drive|is a link that"
    with pytest.raises(UsageError, match=refusal):
        parse_description(path)
