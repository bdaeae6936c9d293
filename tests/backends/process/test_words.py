"""What others print commands no terminal and fills no log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.process import words
from edgeinfer.backends.process.child import Child, ChildEndedError


def test_so_much_is_shown_and_then_more_again(tmp_path: Path) -> None:
    now = 0.0
    with (tmp_path / "log").open("wb") as log:
        shown = words.Words(log.fileno(), lambda: now)
        line = b"x" * 999 + b"\n"
        for _ in range(10_000):
            shown.show(line)
        first = (tmp_path / "log").stat().st_size
        assert words.MOST - 1000 < first < words.MOST + 100
        shown.show(line)
        assert (tmp_path / "log").stat().st_size == first
        now = 10.0
        shown.show(line)
        assert (tmp_path / "log").stat().st_size == first + 1000
    text = (tmp_path / "log").read_bytes()
    assert text.count(b"more is printed than is shown") == 1


def test_pieces_of_letters_are_put_together(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        shown = words.Words(log.fileno())
        for byte in "é\x1b[31m\r\x07ü\n".encode():
            shown.show(bytes([byte]))
    found = (tmp_path / "log").read_text()
    assert "é" in found
    assert "ü" in found
    assert "\x1b" not in found
    assert "\x07" not in found
    words.Words(-1).show(b"x")


_PRINTS = """
import os, sys, time
from edgeinfer.backends.process.words import native_words
with native_words():
    for i in range(3000):
        try:
            os.write(2, b"\\x1b[31m" + b"n" * 1000 + b"\\n")
        except BlockingIOError:
            time.sleep(0.001)
    print("own line", file=sys.stderr)
print("behind", file=sys.stderr)
os.write(2, b"straight")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs descriptors of POSIX")
def test_native_code_fills_no_log() -> None:
    """Of a damaged recording libmpg123 prints seven times the file, straight to standard error."""
    done = subprocess.run([sys.executable, "-c", _PRINTS], capture_output=True, check=True)
    assert len(done.stderr) < words.MOST + 1000
    assert done.stderr.count(b"n" * 1000) > 10
    assert b"\x1b" not in done.stderr
    assert b"own line\n" in done.stderr
    assert done.stderr.endswith(b"behind\nstraight")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")
def test_what_a_child_prints_is_cleaned_whatever_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output went straight to the terminal where its errors were kept."""
    (tmp_path / "printing.py").write_text("print('\\x1b[31mred', flush=True); raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    child = Child("printing", keep_errors=True)
    with pytest.raises(ChildEndedError, match="exit code 3"):
        child.receive()
    child.kill()
    shown = capfd.readouterr().err
    assert "red" in shown
    assert "\x1b" not in shown
