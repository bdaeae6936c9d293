"""The fuzzer itself: what it kept is read well by now, and it finds what misbehaves."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer
from tests.fuzz import mutate
from tests.fuzz.readers import Reader

CORPUS = Path(__file__).parent / "corpus"
CHECK = ["check", "{}", "-t", "onnxruntime", "-t", "android"]
COMMANDS = {"numbers": CHECK, "onnx-check": CHECK, "tabular": CHECK}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.*")), ids=lambda p: p.name)
def test_what_was_found_is_a_finding_in_one_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS.get(path.parent.name, ["inspect", "{}"])
    assert guarded(edgeinfer, [a.replace("{}", str(path)) for a in command]) == 1
    assert "this is a bug" not in capsys.readouterr().err


def test_mutations_are_the_same_for_the_same_seed() -> None:
    raw = bytes(range(256))
    first = [mutate.in_bytes(raw, random.Random(i)) for i in range(50)]
    assert first == [mutate.in_bytes(raw, random.Random(i)) for i in range(50)]
    assert len(set(first)) > 40


@pytest.mark.parametrize("how", ["signal", "bug", "memory", "hang", "well"])
def test_what_misbehaves_is_found(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz = pytest.importorskip("tests.fuzz.__main__")

    def act(path: Path) -> int:
        if path.read_bytes() != b"bad":
            return 1
        if how == "signal":
            os.kill(os.getpid(), signal.SIGABRT)
        if how == "memory":
            held = bytearray(400 << 20)
            held[::4096] = bytes(len(held[::4096]))
        if how == "hang":
            time.sleep(60)
        return 70 if how == "bug" else 1

    monkeypatch.setattr(fuzz, "LONGEST_S", 1.0)
    # What libraries made of its signals decides nothing.
    reader = Reader("test", ".bin", [b"good"], [], [act])
    kept = signal.signal(signal.SIGABRT, signal.SIG_IGN)
    try:
        ended, problem = fuzz.run_apart(reader, tmp_path / "x", [b"good", b"bad", b"good"])
    finally:
        signal.signal(signal.SIGABRT, kept)
    told = {
        "signal": "SIGABRT",
        "bug": "exit code 70",
        "memory": " MB for 3 bytes",
        "hang": "no end after 1 s",
        "well": "",
    }
    assert told[how] in problem
    assert len(ended) == (3 if how == "well" else 2)
