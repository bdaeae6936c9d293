"""What is started with our Python imports nothing from the folder that it is started in."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.convert.lower.tvm import apple
from edgeinfer.errors import NotAvailableError

PACKAGE = Path(apple.__file__).parents[3]


def test_a_strangers_folder_is_no_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang/__init__.py").touch()
    mark = tmp_path / "mark"
    (tmp_path / "ziglang/__main__.py").write_text(f"open({str(mark)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    begun: list[Any] = []
    run = subprocess.run

    def started(command: Any, **options: Any) -> Any:
        begun.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", started)
    with pytest.raises(NotAvailableError, match="zig cc"):
        apple.link(str(tmp_path / "x.dylib"), str(tmp_path / "x.o"))
    assert begun
    assert not mark.exists()


def test_every_start_of_our_python_leaves_that_folder_out() -> None:
    files = [p for half in ("convert", "kernels") for p in PACKAGE.joinpath(half).rglob("*.py")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r'sys\.executable, "-[cm]', line)
    ]
    assert not found
