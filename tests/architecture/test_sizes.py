"""Files stay below 600 lines and functions below 60; an exception has its reason here.

A function's docstring and signature are not counted: they are what the reader came for.
"""

from __future__ import annotations

import ast

from tests.architecture.tree import modules, statements

FILE_LINES = 600
FUNCTION_LINES = 60

LONG_FILES: dict[str, str] = {}
"""Path to reason."""

LONG_FUNCTIONS: dict[str, str] = {}
"""``path:function`` to reason."""


def test_files_are_short() -> None:
    lines = {module.where: module.text.count("\n") for module in modules()}
    long = {where for where, count in lines.items() if count > FILE_LINES}
    assert long == LONG_FILES.keys(), {where: lines[where] for where in long}


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line where a function's code begins, after its docstring."""
    if ast.get_docstring(node) is not None and len(node.body) > 1:
        return node.body[1].lineno
    return node.body[0].lineno


def test_functions_are_short() -> None:
    lines = {}
    for module in modules():
        for node in statements(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                lines[f"{module.where}:{node.name}"] = node.end_lineno - _first_line(node) + 1
    long = {where: count for where, count in lines.items() if count > FUNCTION_LINES}
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def test_exceptions_have_reasons() -> None:
    assert all(reason.strip() for reason in (*LONG_FILES.values(), *LONG_FUNCTIONS.values()))


def test_names_say_something() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    found = [module.where for module in modules() if vague & set(module.name.split("."))]
    assert found == []
