"""``edgeinfer run`` where the bundle says what its outputs mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.heads import Classify, DetectGrid
from edgeinfer.media import read_arrays
from tests.cli.conftest import write_bundle

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def named(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "named.edge", head=Classify(top=2))


@pytest.fixture
def red(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), (255, 0, 0)).save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_names_instead_of_tensors(cli: Any, named: Path, red: Path) -> None:
    result = cli("run", named, red, "--threads", "1")
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    assert first.endswith("(cpu), 1 threads")
    assert rest == ["", " score  label", "1.0000  red", "0.0000  green"]


def test_json(cli: Any, named: Path, red: Path) -> None:
    data = json.loads(cli("run", named, red, red, "--json", "--repeat", "2").out)
    assert [r["input"] for r in data["results"]] == [str(red), str(red)]
    assert data["results"][0]["found"] == [
        {"kind": "class", "index": 0, "label": "red", "score": 1.0},
        {"kind": "class", "index": 1, "label": "green", "score": 0.0},
    ]
    assert data["engines"][0]["backend"] == "onnxruntime"
    assert data["latency_ms"]["runs"] == 4


def test_tensors_on_request(cli: Any, named: Path, red: Path) -> None:
    assert "scores" in json.loads(cli("run", named, red, "--raw", "--json").out)["outputs"]
    saved = named.with_name("out.npz")
    assert cli("run", named, red, "-o", saved).code == 0
    assert list(read_arrays(saved)) == ["scores"]
    by_name = cli("run", named, f"image={red}", "--json")
    assert "outputs" in json.loads(by_name.out)


def test_a_picture_drawn_on(cli: Any, named: Path, red: Path) -> None:
    drawn = red.with_name("drawn.png")
    assert cli("run", named, red, "--overlay", drawn).out.endswith(f"drawn into {drawn}\n")
    with Image.open(drawn) as image:
        assert image.size == (40, 30)
        assert len(image.getcolors()) > 1
    again = cli("run", named, red, "--overlay", drawn)
    assert (again.code, again.err.endswith("exists; add --overwrite\n")) == (2, True)
    assert cli("run", named, red, "--overlay", drawn, "--overwrite").code == 0


def test_timed(cli: Any, named: Path, red: Path) -> None:
    out = cli("run", named, red, "--repeat", "3").out
    assert "3 runs with pre- and post-processing: median " in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("red.png", "--then", "none.edge"), 2, "none.edge"),
        (("red.png", "--overlay", "x.jpg"), 2, "expected a name that ends with .png"),
        (("red.png", "red.png", "--overlay", "x.png"), 2, "expected one INPUT, received 2"),
        (("red.png", "--raw", "--then", "x"), 2, "leave -o and --raw out"),
        (("x.npz", "--overlay", "x.png"), 2, "take images, recordings or texts, not arrays"),
        (("none.png",), 2, "none.png: no such file"),
        (("words.txt",), 1, "received a file of another kind"),
        ((), 2, "no INPUT given"),
    ],
)
def test_mistakes(
    cli: Any, named: Path, red: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (red.parent / "words.txt").write_text("words")
    there = [a if a.startswith("-") else str(red.with_name(a)) for a in arguments]
    result = cli("run", named, *there)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_bundle_that_does_not_say_it(cli: Any, bundle: Path, red: Path) -> None:
    result = cli("run", bundle, red, "--overlay", red.with_name("x.png"))
    assert result.code == 2
    assert "does not say what its outputs mean; convert the model again" in result.err


def test_a_head_that_does_not_fit(cli: Any, tmp_path: Path, red: Path) -> None:
    wrong = write_bundle(tmp_path / "wrong.edge", head=DetectGrid())
    result = cli("run", wrong, red)
    assert (result.code, result.out) == (3, "")
    assert "head: expected over 4 numbers a box, received 3" in result.err


def test_inspect_says_it(cli: Any, named: Path) -> None:
    out = cli("inspect", named).out
    assert "input 'image' takes: image, width=2, height=2, layout=NHWC" in out
    assert "outputs mean: classify, top=2" in out
    assert json.loads(cli("inspect", named, "--json").out)["head"]["kind"] == "classify"


def test_convert_takes_a_pipeline_file(cli: Any, model: Path, red: Path) -> None:
    path = model.with_name("p.toml")
    path.write_text(
        "labels = 'l.txt'\n[inputs.image]\nkind = 'image'\nwidth = 2\nheight = 2\nlayout = 'NHWC'\n"
        "[output]\nkind = 'classify'\ntop = 1\n"
    )
    path.with_name("l.txt").write_text("red\ngreen\nblue\n")
    made = model.with_name("made.edge")
    assert cli("convert", model, "-t", "onnxruntime", "--pipeline", path, "-o", made).code == 0
    assert cli("run", made, red).out.splitlines()[-1] == "1.0000  red"
    wrong = path.read_text().replace("inputs.image", "inputs.picture")
    path.write_text(wrong + "output = 'y'\n")
    result = cli("convert", model, "-t", "onnxruntime", "--pipeline", path, "-o", "x.edge")
    assert result.code == 2
    assert "'image'" in result.err
    assert "no output is named 'y', there are 'scores'" in result.err
