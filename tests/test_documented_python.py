"""mypy --strict accepts the Python of README and docs as it stands there."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

GIVEN = """
import edgeinfer
import edgeinfer.runtime.session
from collections.abc import Iterable
from typing import Any
import numpy as np
import torch
from edgeinfer.types import Array
"""
"""What a page has imported before."""

NAMES = {
    **dict.fromkeys(("x", "chunk", "rate", "saved", "frame", "X", "X_test", "out"), "Array"),
    **dict.fromkeys(("microphone", "recording", "frames"), "Iterable[Array]"),
    **dict.fromkeys(("model", "net", "proto", "Net", "acme_file", "AcmeBackend"), "Any"),
    **dict.fromkeys(("messages", "tools"), "list[dict[str, Any]]"),
    "llm": "edgeinfer.LLM",
    "params": "edgeinfer.SamplingParams",
    "session": "edgeinfer.Session",
    "Subject": "Any",
}
"""What a page says in words that it has, with its type."""


BOUND = r"^(?:from|import) .*\b{0}\b|\bas {0}\b|\bfor {0} in\b|^(?:class|def) {0}\b|^ *{0} = "
"""Where a block gives a name itself."""


def program(block: str) -> str:
    """Return a block as a module of its own: what it awaits is in a function."""
    asks = [
        f"{name}: {kind}"
        for name, kind in NAMES.items()
        if re.search(rf"\b{name}\b", block)
        and not re.search(BOUND.format(name), block, re.MULTILINE)
    ]
    if "await " in block:
        block = "async def talk() -> None:\n" + textwrap.indent(block, "    ")
    future = "from __future__ import annotations\n"
    return "\n".join((future, GIVEN, *asks, block.replace(future, "")))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_snippet_is_typed(tmp_path: Path) -> None:
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text("utf-8"))):
            name = "acme_edgeinfer" if block.startswith('"""acme_edgeinfer.py') else ""
            path = tmp_path / f"{name or f'{page.stem}_{number}'}.py"
            path.write_text(program(block), encoding="utf-8")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml")
    files = sorted(map(str, tmp_path.glob("*.py")))
    done = subprocess.run(
        [*map(str, mypy), "--cache-dir", str(tmp_path / "cache"), *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": f"{ROOT / 'src'}:{tmp_path}", "PATH": ""},
    )
    # Remarks of a missing stub say nothing of a page.
    wrong = [line for line in done.stdout.splitlines() if str(tmp_path) in line and "error" in line]
    assert wrong == [], done.stdout
    assert len(files) > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_package_costs_a_type_checker_no_more_than_numpy_again(tmp_path: Path) -> None:
    """By processor time, without a cache, against a script that imports NumPy alone."""
    took = {}
    for name in ("numpy", "edgeinfer"):
        script = tmp_path / f"uses_{name}.py"
        script.write_text(f"import {name}\n")
        mypy = (sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*mypy, str(script)],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert took["edgeinfer"] <= 2 * took["numpy"], took
