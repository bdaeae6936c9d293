"""What looks at a file may take what a file of its size explains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.process import bounds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def ended(code: str, *, size: int = 0, grown: int = 0, seconds: float = 30.0) -> str:
    process = subprocess.Popen([sys.executable, "-c", code])
    with bounds.BoundedLook(process.pid, size, 100 << 20, seconds) as watch:
        watch.grow(grown)
        process.wait()
    assert (process.returncode == -9) == bool(watch.over)
    return watch.over


MEMORY = "import time; held = bytearray(b'a' * (300 << 20)); time.sleep(0.5)"


def test_memory_has_a_bound() -> None:
    assert ended(MEMORY) == "100 MB of memory"
    assert ended(MEMORY, size=30 << 20) == ""
    assert ended(MEMORY, grown=30 << 20) == ""


def test_processor_time_has_a_bound() -> None:
    assert ended("while True: pass", seconds=0.3) == "0 s of processor time"
    assert ended("import time; time.sleep(1)", seconds=0.9) == ""


def test_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/b").write_bytes(b"de")
    assert bounds.size_of(tmp_path) == 5
    assert bounds.size_of(tmp_path / "a") == 3
    assert bounds.size_of(tmp_path / "no") == 0
