"""The tree of errors drawn in errors.py is the tree there is."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import edgeinfer
from edgeinfer import errors
from edgeinfer.errors import EdgeInferError
from tests.architecture.tree import modules, statements

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, EdgeInferError)
}


def _drawn() -> dict[str, tuple[str | None, int | None]]:
    """Return each name in the drawing with its parent and exit code."""
    found: dict[str, tuple[str | None, int | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))?\s+(\d|exit code)\b", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        code = int(match[4]) if match[4].isdigit() else None
        found[match[2]] = (path[depth - 1] if depth else None, code)
    return found


def test_drawing_has_every_class_and_no_other() -> None:
    assert _drawn().keys() == CLASSES.keys()


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "EdgeInferError"])
def test_class_is_where_it_is_drawn(name: str) -> None:
    parent, code = _drawn()[name]
    kind = CLASSES[name]
    assert kind.__bases__[0].__name__ == parent
    assert kind.exit_code == code


def test_every_error_is_defined_there() -> None:
    strays = [
        f"{module.where}: {line.strip()}"
        for module in modules()
        if module.name != "edgeinfer.errors"
        for line in module.text.splitlines()
        if re.match(rf"class \w+\((?:{'|'.join(CLASSES)})\b", line)
    ]
    assert strays == []


def test_errors_are_public() -> None:
    assert "errors" in edgeinfer.__all__
    assert edgeinfer.errors is errors


def test_no_bare_except_and_no_assert() -> None:
    found = []
    for module in modules():
        for node in statements(module.tree):
            if isinstance(node, ast.Assert):
                found.append(f"{module.where}:{node.lineno}: assert")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{module.where}:{node.lineno}: bare except")
    assert found == []
