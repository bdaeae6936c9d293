"""What `make test` takes of a sweep, and that `make test-sweep` has all the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CONFTEST = """
import pytest
from tests import samples

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    samples.mark(items)

def pytest_configure(config):
    for name in ("sample", "sweep", "slow"):
        config.addinivalue_line("markers", name)
"""

SLOW = "pytest.param(0, marks=pytest.mark.slow)"

TESTS = f"""
import pytest
rows = pytest.mark.parametrize
sample = pytest.mark.sample

@sample(3)
@rows("n", range(9))
def test_some(n): pass

@sample(5)
@rows("n", range(3))
def test_few(n): pass

@sample(1)
@rows("n", [{SLOW}, 1, 2])
def test_behind_a_slow_one(n): pass

@sample(each="kind")
@rows("kind, n", [("a", 1), ("a", 2), ("b", 1), ("b", 2)])
def test_one_of_each(kind, n): pass

@sample(each=("kind", "what"))
@rows("kind", ["a", "b", "c"])
@rows("what", [object(), object()], ids=["x", "y"])
def test_each_value_of_two(kind, what): pass

@sample(1)
class TestOfAClass:
    def test_alone(self): pass

    @rows("n", [1, 2])
    def test_rows(self, n): pass

@pytest.mark.sweep
def test_none(): pass

def test_other(): pass
"""


def _taken(folder: Path, which: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", which, "--rootdir", str(folder), str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return {line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line}


def test_what_is_left_out_is_in_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_rows.py").write_text(TESTS)
    taken = _taken(tmp_path, "not sweep and not slow")
    assert taken == {
        *(f"test_some[{n}]" for n in (0, 4, 8)),
        *(f"test_few[{n}]" for n in range(3)),
        "test_behind_a_slow_one[1]",
        *(f"test_one_of_each[{row}]" for row in ("a-1", "b-1")),
        *(f"test_each_value_of_two[{row}]" for row in ("x-a", "x-b", "x-c", "y-a")),
        "test_alone",
        "test_rows[1]",
        "test_other",
    }
    left = _taken(tmp_path, "sweep and not slow")
    assert not taken & left
    assert taken | left == _taken(tmp_path, "not slow")
    assert len(left) == 6 + 1 + 2 + 2 + 1 + 1
