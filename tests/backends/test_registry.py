"""Backends are found by name; a plugin that cannot be used is reported, never swallowed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import BACKENDS

Install = Callable[..., None]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Return a function that registers plugins, with their modules on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(modules: dict[str, str], *entries: tuple[str, str]) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        points = [EntryPoint(name, place, BACKENDS) for name, place in entries]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)

    return install


GOOD = """
from edgeinfer.backends.base import Device, Probe
class Acme:
    name = "acme"
    def probe(self): return Probe("acme", "1.0", (Device("npu", "Acme"),))
    def capabilities(self): ...
    def load(self, artifact, options): ...
"""


def test_ours_are_there() -> None:
    assert registry.names()[:4] == ("onnxruntime", "openvino", "litert", "reference")
    assert registry.names()[4:6] == ("coreml", "coreml-reference")
    for name in registry.BUILT_IN:
        assert isinstance(registry.get(name), Backend)
        assert registry.get(name) is registry.get(name)


def test_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        UsageError, match="unknown backend 'ort'; did you mean 'onnxruntime'\\? there are"
    ):
        registry.get("ort")


def test_plugin_is_found_and_probed(install: Install) -> None:
    install({"acme_good": GOOD}, ("acme", "acme_good:Acme"))
    assert registry.names() == (*registry.BUILT_IN, "acme")
    assert registry.probe_all()[-1].version == "1.0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_engine", "ModuleNotFoundError: No module named 'no_such_engine'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("Acme = 1", "TypeError"),
        ("class Acme: name = 'acme'", "no backend of that name"),
        (GOOD.replace('name = "acme"', 'name = "other"'), "no backend of that name"),
    ],
)
def test_broken_plugin_is_reported(
    install: Install, text: str, reason: str, tmp_path: Path
) -> None:
    module = f"acme_{abs(hash((text, str(tmp_path))))}"
    install({module: text}, ("acme", f"{module}:Acme"))
    probe = registry.probe_all()[-1]
    assert (probe.backend, probe.available) == ("acme", False)
    assert reason in probe.reason
    with pytest.raises(NotAvailableError, match="acme"):
        registry.get("acme")


def test_raising_probe_is_reported(install: Install) -> None:
    text = GOOD.replace("return Probe(", "raise OSError(")
    install({"acme_raises": text}, ("acme", "acme_raises:Acme"))
    probe = registry.probe_all()[-1]
    assert (probe.backend, probe.available) == ("acme", False)
    assert "Acme" in probe.reason


def test_two_plugins_of_one_name_are_refused(install: Install) -> None:
    install({}, ("acme", "one:Acme"), ("acme", "two:Acme"))
    with pytest.raises(NotAvailableError, match="twice: one:Acme and two:Acme"):
        registry.get("acme")


def test_plugin_cannot_take_the_name_of_ours(install: Install) -> None:
    install({"usurper": GOOD}, ("onnxruntime", "usurper:Acme"))
    assert type(registry.get("onnxruntime")).__name__ == "OnnxRuntimeBackend"
    last = registry.probe_all()[-1]
    assert last.backend == "usurper:Acme"
    assert "belongs to edgeinfer" in last.reason


def test_what_a_device_is_without_says_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "edgeinfer.backends.coreml_reference.gone:Nothing"
    monkeypatch.setitem(registry.BUILT_IN, "coreml-reference", place)
    with pytest.raises(NotAvailableError, match="edgeinfer-runtime is without it; edgeinfer has"):
        registry.get("coreml-reference")


def test_metadata_and_table_agree() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][BACKENDS] == registry.BUILT_IN


def test_plain_checkout_works_without_metadata() -> None:
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **_: ();"
        "from edgeinfer.backends import registry; print(registry.names());"
        "print(registry.get('onnxruntime').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    ours = repr(tuple(registry.BUILT_IN))
    assert done.stdout.splitlines() == [ours, "onnxruntime"]
