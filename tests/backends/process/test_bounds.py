"""What looks at a file may take what a file of its size explains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.process import bounds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def ended(
    code: str, *, size: int = 0, grown: int = 0, seconds: float = 30.0, looked: bool = False
) -> str:
    process = subprocess.Popen([sys.executable, "-c", code])
    with bounds.BoundedLook(process.pid, size, 100 << 20, seconds) as watch:
        watch.grow(grown)
        if looked:
            watch.looked()
        process.wait()
    assert (process.returncode == -9) == bool(watch.over)
    return watch.over


MEMORY = "import time; held = bytearray(b'a' * (300 << 20)); time.sleep(0.5)"


def test_memory_has_a_bound() -> None:
    assert ended(MEMORY).startswith("100 MB of memory, far more than a file")
    assert ended(MEMORY, size=30 << 20) == ""
    assert ended(MEMORY, grown=30 << 20) == ""


def test_processor_time_has_a_bound() -> None:
    over = ended("while True: pass", seconds=0.3)
    assert over.startswith("0 s of processor time, far more than a file")
    assert ended("import time; time.sleep(1)", seconds=0.9) == ""


def test_what_is_free_is_the_bound_once_the_file_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ended(MEMORY, looked=True) == ""
    assert (
        ended(
            "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass",
            seconds=0.1,
            looked=True,
        )
        == ""
    )
    monkeypatch.setattr(bounds, "free_mb", lambda *_: 100)
    over = ended(MEMORY, looked=True)
    assert over.endswith(" MB of memory, which is what this machine has left")
    assert 90 <= int(over.split()[0]) < 200
    monkeypatch.setattr(bounds, "free_mb", lambda *_: None)
    assert ended(MEMORY, looked=True) == ""


def test_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/b").write_bytes(b"de")
    assert bounds.size_of(tmp_path) == 5
    assert bounds.size_of(tmp_path / "a") == 3
    assert bounds.size_of(tmp_path / "no") == 0
