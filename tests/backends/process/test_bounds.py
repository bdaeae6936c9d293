"""What looks at a file may take what a file of its size explains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeinfer.backends.process import bounds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def ended(
    code: str,
    *,
    files: Sequence[Path] = (),
    named: Sequence[str] = (),
    seconds: float = 30.0,
    looked: int = 0,
    works: bool = True,
) -> str:
    process = subprocess.Popen([sys.executable, "-c", code])
    with bounds.BoundedLook(process.pid, files, 100 << 20, seconds, works=works) as watch:
        watch.grow(named)
        for _ in range(looked):
            watch.looked()
        process.wait()
    assert (process.returncode == -9) == bool(watch.over)
    return watch.over


MEMORY = "import time; held = bytearray(b'a' * (300 << 20)); time.sleep(0.5)"


def sparse(file: Path, size: int = 30 << 20) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        stream.truncate(size)
    return file


def test_memory_has_a_bound(tmp_path: Path) -> None:
    assert ended(MEMORY).startswith("100 MB of memory, far more than a file")
    assert ended(MEMORY, files=[sparse(tmp_path / "a/large")]) == ""
    assert ended(MEMORY, files=[sparse(tmp_path / "b/small", 1)], named=[]) != ""


def test_what_is_beside_is_counted_by_who_waits(tmp_path: Path) -> None:
    """Whoever hands over the file may be in the process by then, and name what it likes."""
    model = sparse(tmp_path / "net/model.onnx", 1000)
    weights, below = sparse(tmp_path / "net/w.bin", 10), sparse(tmp_path / "net/more/w.bin", 100)
    other = sparse(tmp_path / "other/w.bin", 1 << 20)
    (tmp_path / "net/link").symlink_to(other)
    (tmp_path / "net/circle").symlink_to(tmp_path / "net/circle")
    watch = bounds.BoundedLook(0, [model], 0)
    watch.grow([str(weights), str(model), str(weights), str(below)])
    odd = ["../other/w.bin", "more", "no", "link", "circle", "\0", "", "x" * 5000]
    watch.grow([str(other), *(str(model.parent / name) for name in odd)])
    assert watch._size == 1110
    hub = sparse(tmp_path / "hub/blobs/w", 7)
    kept = sparse(tmp_path / "hub/snapshots/main/model.onnx", 1)
    (kept.parent / "w").symlink_to(hub)
    watch = bounds.BoundedLook(0, [kept], 0)
    watch.grow([str(kept.parent / "w")])
    assert watch._size == 8


def test_who_only_looks_keeps_the_bounds_of_it() -> None:
    assert ended(MEMORY, looked=1, works=False).startswith("100 MB of memory, far more than")


def test_the_rest_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it would be a share of what is left by then besides what it holds."""
    free = iter([100, 10_000, 10_000])
    monkeypatch.setattr(bounds, "free_mb", lambda *_: next(free))
    assert "which is what this machine has left" in ended(MEMORY, looked=3)


def test_processor_time_has_a_bound() -> None:
    over = ended("while True: pass", seconds=0.3)
    assert over.startswith("0 s of processor time, far more than a file")
    assert ended("import time; time.sleep(1)", seconds=0.9) == ""


def test_what_is_free_is_the_bound_once_the_file_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ended(MEMORY, looked=1) == ""
    assert (
        ended(
            "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass",
            seconds=0.1,
            looked=1,
        )
        == ""
    )
    monkeypatch.setattr(bounds, "free_mb", lambda *_: 100)
    over = ended(MEMORY, looked=1)
    assert over.endswith(" MB of memory, which is what this machine has left")
    assert 90 <= int(over.split()[0]) < 200
    monkeypatch.setattr(bounds, "free_mb", lambda *_: None)
    assert ended(MEMORY, looked=1) == ""


def test_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/b").write_bytes(b"de")
    assert bounds.size_of(tmp_path) == 5
    assert bounds.size_of(tmp_path / "a") == 3
    assert bounds.size_of(tmp_path / "no") == 0
