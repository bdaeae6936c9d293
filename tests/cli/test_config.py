"""Options from a file, and the file that the options of a command line make."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }
    """
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_file_says_what_else_is_typed(cli: Any, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(
        f"""
        model = '{model}'
        target = ["onnxruntime"]
        output = "{tmp_path}/a.edge"
        input-shape = ["x=2,3"]
        input-range = "x=-3:3"
        time-limit = 60
        compress-weights = false
        """
    )
    done = cli("convert", "--config", config)
    assert done.code == 0, done.err
    (told,) = json.loads(cli("inspect", tmp_path / "a.edge", "--json").out)["inputs"]
    assert told["shape"] == [2, 3]
    # What is typed goes before what the file says, and what it does not say is added.
    again = cli(
        "convert", "--config", config, "-o", tmp_path / "b.edge", "--name", "other", "--json"
    )
    assert again.code == 0, again.err
    assert '"name": "other"' in again.out
    assert (tmp_path / "b.edge").exists()


def test_what_is_saved_asks_for_the_same(cli: Any, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.toml"
    asked = ("-t", "onnxruntime", "--input-shape", "x=2,3", "--name", 'a "b"', "--overwrite")
    done = cli("convert", model, *asked, "-o", tmp_path / "a.edge", "--save-config", saved)
    assert done.code == 0, done.err
    assert tomllib.loads(saved.read_text()) == {
        "model": str(model),
        "target": ["onnxruntime"],
        "input-shape": ["x=2,3"],
        "name": 'a "b"',
        "output": str(tmp_path / "a.edge"),
    }
    first = (tmp_path / "a.edge").read_bytes()
    second = tmp_path / "again.toml"
    done = cli("convert", "--config", saved, "--save-config", second, "--overwrite")
    assert done.code == 0, done.err
    assert second.read_text() == saved.read_text()
    assert len((tmp_path / "a.edge").read_bytes()) == pytest.approx(len(first), rel=0.05)


def test_nothing_is_saved_of_what_failed(cli: Any, tmp_path: Path) -> None:
    done = cli("convert", tmp_path / "no.onnx", "-t", "cpu", "--save-config", tmp_path / "s.toml")
    assert done.code == 2
    assert not (tmp_path / "s.toml").exists()


def test_every_problem_of_a_file_is_listed(cli: Any, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text('modell = "m.onnx"\nclassifier = "yes"\nname = ["a"]\n[target]\nx = 1\n')
    done = cli("convert", "--config", config)
    assert done.code == 2
    lines = done.err.splitlines()
    assert "'modell' is no option; known: " in lines[0]
    assert "'classifier' is a flag: expected true or false, not 'yes'" in lines[1]
    assert "'name' expected a text or a number, not a list" in lines[2]
    assert "'target' expected a text, a number or a list of them, not a dict" in lines[3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "net.py:make"', "would run Python code: type it"),
        ('metric = "score.py:f1"', "would run Python code: type it"),
        ("trust-source = true", "type --trust-source"),
        ("overwrite = true", "type --overwrite"),
        ("force = true", "type --force"),
        ("unverified = true", "type --unverified"),
    ],
)
def test_what_a_user_decides_is_typed(cli: Any, tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(text)
    done = cli("convert", "--config", config, "-t", "cpu")
    assert done.code == 2
    assert said in done.err


def test_many_problems_and_large_numbers_stay_short(cli: Any, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text("".join(f"k{n} = 1\n" for n in range(50_000)))
    done = cli("convert", "--config", config)
    assert (done.code, len(done.err.splitlines())) == (2, 21)
    for number in ("9" * 5000, "0x" + "f" * 5000, "9" * 30):
        config.write_text(f"time-limit = {number}\n")
        done = cli("convert", "--config", config)
        assert done.code == 2
        assert len(done.err) < 500


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = ", "no TOML"),
        (b"\xff", "no TOML"),
        (b"a=" + b"[" * 100_000, "no TOML"),
        (b"#" * (1 << 20) + b"#", "more than 1 MiB"),
        (None, "No such file"),
    ],
)
def test_what_is_no_configuration(
    cli: Any, tmp_path: Path, content: bytes | None, said: str
) -> None:
    config = tmp_path / "edge.toml"
    if content is not None:
        config.write_bytes(content)
    done = cli("convert", "--config", config)
    assert done.code == 2
    assert said in done.err
