"""The plugin printed in docs/backends.md works and passes the conformance kit as it stands."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.testing import checks, run_checks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_printed_plugin_conforms(blocks: list[str]) -> None:
    module = ModuleType("acme_edgeinfer")
    exec(compile(blocks[0], str(PAGE), "exec"), module.__dict__)
    outcomes = run_checks(module.AcmeBackend())
    assert [o for o in outcomes if o.status != "passed"] == []
    assert len(outcomes) == len(checks())


def test_printed_test_is_for_that_plugin(blocks: list[str]) -> None:
    compile(blocks[1], str(PAGE), "exec")
    assert "from acme_edgeinfer import AcmeBackend" in blocks[1]
    assert all(f'"{name}"' not in blocks[2] or name in checks() for name in _quoted(blocks[2]))


def _quoted(text: str) -> list[str]:
    return re.findall(r'"(check_\w+)"', text)


def test_page_lists_each_backend_with_its_formats() -> None:
    table = PAGE.read_text().split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|", table, re.MULTILINE))
    assert rows.keys() == registry.BUILT_IN.keys()
    for name, cell in rows.items():
        assert set(re.findall(r"`(\w+)`", cell)) == registry.get(name).capabilities().formats
