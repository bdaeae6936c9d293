"""Pipes that nobody writes to, wherever a command takes the name of a file: each is refused."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from tests.trust import marked
from tests.trust.marked import Mark

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")

LATE_S = 20
CONVERT = ("convert", "MODEL", "-t", "onnxruntime", "-o", "OUT")
COMMANDS: dict[str, tuple[str, ...]] = {
    **{f"inspect {s}": ("inspect", f"PIPE.{s}") for s in ("onnx", "tflite", "pt2", "gguf", "npz")},
    **{f"check {s}": ("check", f"PIPE.{s}", "-t", "onnxruntime") for s in ("onnx", "gguf")},
    "calibration": (*CONVERT, "--calibration", "PIPE.npz"),
    "data": (*CONVERT, "--data", "PIPE.npz"),
    "convert": ("convert", "PIPE.onnx", "-t", "onnxruntime", "-o", "OUT"),
    "a profile": ("convert", "MODEL", "-t", "PIPE.toml", "-o", "OUT"),
    "labels": (*CONVERT, "--labels", "PIPE.txt"),
    "a description": (*CONVERT, "--pipeline", "PIPE.toml"),
    "an input": ("run", "BUNDLE", "PIPE.npz"),
    "a picture": ("run", "BUNDLE", "PIPE.png"),
    "a signature": ("verify", "BUNDLE", "--signature", "PIPE", "--trusted", "PIPE"),
    "trusted": ("verify", "BUNDLE", "--trusted", "PIPE.pub"),
    "revoked": ("verify", "BUNDLE", "--revoked", "PIPE"),
    "a key to sign": ("sign", "BUNDLE", "--key", "PIPE"),
    "a key to encrypt": ("encrypt", "BUNDLE", "-o", "OUT", "--key", "PIPE"),
    "keys": ("serve", "BUNDLE", "--port", "0", "--keys", "PIPE"),
    "a certificate": (
        "serve",
        "BUNDLE",
        "--port",
        "0",
        "--certificate",
        "PIPE",
        "--private-key",
        "PIPE",
    ),
    "a bundle": ("extract", "PIPE.edge", "-o", "OUT"),
}


@pytest.fixture
def late() -> Iterator[None]:
    """Interrupt what waits."""

    def interrupt(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(LATE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("what", COMMANDS)
def test_pipes_are_refused(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], late: None
) -> None:
    bundle = marked.write(tmp_path / "b.edge", tmp_path, Mark(tmp_path / "mark"), formats=("onnx",))
    names = {"MODEL": str(tmp_path / "m.onnx"), "BUNDLE": str(bundle), "OUT": str(tmp_path / "out")}
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(marked.GRAPH).SerializeToString())
    words = []
    for word in COMMANDS[what]:
        if word.startswith("PIPE"):
            place = tmp_path / word
            if not place.exists():
                os.mkfifo(place)
            word = str(place)
        words.append(names.get(word, word))
    code = guarded(group, words)
    told = capsys.readouterr().err
    assert code in (1, 2), told
    assert "this is a bug" not in told
    assert "PIPE" in told
