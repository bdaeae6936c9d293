"""Lines that install what is missing name the package that is here."""

import importlib
from importlib import metadata
from typing import Any

import pytest

import edgeinfer
from edgeinfer import installed
from edgeinfer.cli import failures
from edgeinfer.errors import NotAvailableError


@pytest.mark.parametrize(
    ("there", "line"),
    [
        ({"edgeinfer"}, "pip install 'edgeinfer[media]'"),
        ({"edgeinfer-runtime"}, "pip install 'edgeinfer-runtime[media]'"),
        (set(), "pip install 'edgeinfer[media]'"),
    ],
)
def test_the_line(there: set[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> object:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return object()

    monkeypatch.setattr(metadata, "distribution", found)
    assert installed.install("media") == line


@pytest.mark.parametrize(("there", "place"), [("edgeinfer", "."), ("edgeinfer-runtime", "./")])
def test_what_has_nothing_yet_gets_it_from_no_index(
    there: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "package", lambda: there)
    assert installed.anew().startswith(place)
    wheel = f"./edgeinfer_runtime-{edgeinfer.__version__}-py3-none-any.whl"
    assert installed.anew() == ("." if place == "." else wheel)


def test_extras_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"convert", "media"} <= installed.extras()
    monkeypatch.setattr(installed, "package", lambda: "edgeinfer-nowhere")
    assert installed.extras() == frozenset()


def test_without_the_converter_what_converts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("edgeinfer.remote.board", "edgeinfer.comparisons", "edgeinfer.cli.roofline"):
        assert installed.without_converter(ModuleNotFoundError(name=name))
    for name in ("edgeinfer", "edgeinfer.runtime.session", "convert"):
        assert not installed.without_converter(ModuleNotFoundError(name=name))
    error = ModuleNotFoundError("No module named 'edgeinfer.convert'", name="edgeinfer.convert")
    told = failures.describe(error)
    assert (told.code, told.kind) == (3, "NotAvailableError")
    assert told.message.startswith("edgeinfer-runtime runs bundles and converts nothing")
    other = failures.describe(ModuleNotFoundError("No module named 'x'", name="x"))
    assert other.code == failures.BUG

    real = importlib.import_module

    def refuse(name: str, *more: Any) -> Any:
        if name.startswith("edgeinfer.convert"):
            raise error
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.delitem(vars(edgeinfer), "export", raising=False)
    with pytest.raises(NotAvailableError, match=r"edgeinfer\.export: edgeinfer-runtime runs"):
        _ = edgeinfer.export
