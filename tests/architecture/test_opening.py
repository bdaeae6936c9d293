"""Files that people name are opened in one place, which waits for no pipe and reads no device."""

from __future__ import annotations

import ast

from tests.architecture.tree import modules

READERS = (
    *("edgeinfer.convert.llm.", "edgeinfer.convert.sources.", "edgeinfer.profiles."),
    *("edgeinfer.bundle.", "edgeinfer.cli.", "edgeinfer.media.", "edgeinfer.runtime.serve."),
)
"""Packages that are handed names of files."""

OWN = {
    "edgeinfer.bundle.memory": "files next to an artifact, which were found to be regular ones",
    "edgeinfer.cli.roofline": "what ONNX Runtime wrote",
    "edgeinfer.convert.llm.compiled": "our own sources, and what the compiler wrote",
    "edgeinfer.convert.llm.cuda_code": "a file of the package",
    "edgeinfer.convert.llm.judge": "a file of the package",
    "edgeinfer.convert.llm.variant": "what the compiler wrote",
    "edgeinfer.convert.sources.tflite.plain": "a model that was read already",
    "edgeinfer.profiles": "files of the package",
    "edgeinfer.profiles.reader": "tables of the package, by their names",
    "edgeinfer.runtime.serve.page": "a file of the package",
}
"""Modules that may open files otherwise, and what these are."""


def test_readers_open_files_through_one_function() -> None:
    found = {
        f"{module.where}:{call.lineno}"
        for module in modules()
        if f"{module.name}.".startswith(READERS) and module.name not in OWN
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and _opens(call)
    }
    assert not found, "use edgeinfer.bounded.open_file or read_bounded"


def test_every_exception_is_needed() -> None:
    known = {module.name: module.tree for module in modules()}
    for name in OWN:
        calls = [c for c in ast.walk(known[name]) if isinstance(c, ast.Call)]
        assert any(map(_opens, calls)), name


def _opens(call: ast.Call) -> bool:
    """Whether a call opens a file by its name to read it."""
    function, given = call.func, [a.value for a in call.args if isinstance(a, ast.Constant)]
    if isinstance(function, ast.Name):
        return function.id == "open" and not {"wb", "w", "rb+", "r+b"} & {*given}
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in ("read_bytes", "read_text"):
        # Of a path; names of functions are imported plainly.
        return True
    return function.attr == "open" and given == ["rb"]
