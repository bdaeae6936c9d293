"""Imports go down only, and heavy packages are imported where they are used."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture.tree import FOLDERS, ROOT, modules, python_files

LAYERS = {
    "cli": 6,
    "tasks": 5,
    "runtime": 4,
    "convert": 4,
    "kernels": 4,
    "backends": 3,
    "bundle": 2,
    "metrics": 2,
    "channels": 2,
    "media": 2,
    "decode": 2,
    "llm": 2,
    "profiles": 2,
    "heads": 1,
    "results": 1,
    "types": 1,
    "forks": 1,
    "errors": 0,
    "bounded": 0,
    "versions": 0,
    "toml": 0,
    "installed": 0,
}
"""A module imports its own layer's package and anything of a lower number."""

SIDEWAYS = {
    ("bundle", "media"),
    ("media", "bundle"),
    ("bundle", "metrics"),
    ("metrics", "bundle"),
    ("channels", "metrics"),
    ("types", "errors"),
    ("results", "types"),
    ("decode", "media"),
    ("convert", "kernels"),
    ("llm", "bundle"),
}
"""Packages of one layer that may know each other; runtime and convert never do."""

DEVICE = (
    *("runtime", "backends", "bundle", "metrics", "channels", "media", "decode"),
    *("profiles", "llm"),
    *("heads", "results", "types", "errors", "forks", "bounded", "versions", "toml", "installed"),
)
"""What a device install imports."""

CONVERTER = ("onnx", "onnx_ir", "onnxscript", "torch", "tvm", "transformers")
ENGINES = ("onnxruntime", "openvino", "ai_edge_litert", "coremltools", "coreai", "tensorrt")


def _package(name: str) -> str:
    """Return the part of the package that a module belongs to; empty for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


INSIDE = [module for module in modules() if _package(module.name) in LAYERS]


def test_imports_go_down() -> None:
    wrong = []
    for module in INSIDE:
        here = _package(module.name)
        for found in module.imports:
            there = _package(found.module)
            if not found.module.startswith("edgeinfer.") or there not in LAYERS:
                continue
            down = LAYERS[there] < LAYERS[here]
            if not (there == here or down or (here, there) in SIDEWAYS):
                wrong.append(f"{module.where}:{found.line}: {here} imports {found.module}")
    assert wrong == []


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {_package(module.name) for module in modules()} - {"", "__main__"}
    assert parts <= LAYERS.keys(), "a new part needs a layer"


def test_heavy_packages_are_imported_late() -> None:
    early = []
    for module in modules():
        light = _package(module.name) in (*DEVICE, "", "cli", "__main__")
        banned = ENGINES + CONVERTER if light else ENGINES
        early += [
            f"{module.where}:{found.line}: {found.module}"
            for found in module.imports
            if found.module.split(".")[0] in banned and not found.deferred
        ]
    assert early == []


def test_engines_with_telemetry_are_imported_in_one_place() -> None:
    """A second ``import onnxruntime`` would switch its telemetry on (backends/engines.py)."""
    found = [
        f"{module.where}:{i.line}: {i.module}"
        for module in modules()
        for i in module.imports
        if i.module.split(".")[0] in ("onnxruntime", "openvino")
    ]
    assert found == [], "use edgeinfer.backends.engines"


def test_folders_are_never_imported_bare() -> None:
    bare = re.compile(rf"^ *(?:from|import) +(?:{'|'.join(FOLDERS)}|\.)", re.MULTILINE)
    assert [p for p in python_files() if bare.search(p.read_text())] == []


LIGHT = ("edgeinfer", "edgeinfer.backends.registry", "edgeinfer.backends.onnxruntime")


@pytest.mark.parametrize("name", LIGHT)
def test_import_brings_nothing_heavy(name: str) -> None:
    heavy = (*CONVERTER, *ENGINES)
    code = f"import sys, {name}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    assert done.stdout == "[]\n"
