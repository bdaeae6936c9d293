"""The notebooks run from top to bottom, hold nobody's outputs, and open in Jupyter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("conversions_apart")

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    document = json.loads((FOLDER / name).read_text("utf-8"))
    assert document["nbformat"] == 4
    found: list[dict[str, Any]] = document["cells"]
    return found


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.sweep
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    assert len(code) >= 4
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_holds_no_outputs(name: str) -> None:
    for cell in cells(name):
        assert cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
