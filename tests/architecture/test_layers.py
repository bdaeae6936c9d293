"""Imports go down only, and heavy packages are imported where they are used."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture.tree import FOLDERS, ROOT, Module, modules, python_files

LAYERS = {
    "cli": 6,
    "tasks": 5,
    "comparisons": 5,
    "tracking": 2,
    "runtime": 4,
    "convert": 4,
    "kernels": 4,
    "backends": 3,
    "machine": 2,
    "remote": 2,
    "bundle": 2,
    "metrics": 2,
    "accuracy": 2,
    "channels": 2,
    "media": 2,
    "decode": 2,
    "llm": 2,
    "numerics": 2,
    "profiles": 2,
    "parts": 1,
    "heads": 1,
    "results": 1,
    "types": 1,
    "options": 1,
    "forks": 0,
    "pending": 1,
    "log": 0,
    "printable": -1,
    "errors": 0,
    "_version": -1,
    "bounded": 0,
    "garbage": 0,
    "origins": 0,
    "records": -1,
    "versions": 0,
    "wire": 0,
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
    ("parts", "types"),
    ("decode", "media"),
    ("convert", "kernels"),
    ("llm", "bundle"),
    ("machine", "profiles"),
}
"""Packages of one layer that may know each other; runtime and convert never do."""

INSIDE_CONVERT = {
    "convert.model_contents": 12,
    "convert.tuning": 11,
    "convert.model_info": 11,
    "convert.join": 11,
    "convert.llm": 10,
    "convert.arm_userland": 11,
    "convert.pipeline": 9,
    "convert.machine_code": 8,
    "convert.quantize": 8,
    "convert.verify": 7,
    "convert.sources": 6,
    "convert.lower": 5,
    "convert.passes": 4,
    "convert.verify.evaluate": 3,
    "convert.verify.operators": 1,
    "convert.verify.contrib": 2,
    "convert.verify.submodel": 1,
    "convert.verify.sums": 1,
    "convert.verify.beyond_half": 1,
    "convert.quantize.recipe": 1,
    "convert.options": 2,
    "convert.option_words": 1,
    "convert.onnx_file": 2,
    "convert.late": 1,
    "convert.families": 0,
    "convert.sniff": 2,
    "convert.memory": 1,
}
"""Floors of the converter. The evaluator that judges stands below all: passes fold with it."""

INSIDE_QUANTIZE = {
    "convert.quantize.stage": 6,
    "convert.quantize.report": 5,
    "convert.quantize.search": 5,
    "convert.quantize.calibration": 4,
    "convert.quantize.search.rules": 3,
    "convert.quantize.search.layers": 2,
    "convert.quantize.search.timing_source": 1,
    "convert.quantize.search.quality": 1,
    "convert.quantize.search.measurements": 1,
    "convert.quantize.half": 3,
    "convert.quantize.rewrite": 3,
    "convert.quantize.calibrate": 2,
    "convert.quantize.readback": 2,
    "convert.quantize.readback_apart": 3,
    "convert.quantize.units": 1,
    "convert.quantize.recipe": 1,
}

INSIDE_BACKENDS = {
    "backends.onnxruntime_coreml": 7,
    "backends.onnxruntime_tensorrt": 7,
    "backends.onnxruntime": 6,
    "backends.coreml": 6,
    "backends.llm": 6,
    "backends.coreml_reference": 5,
    "backends.tensorrt": 5,
    "backends.tvm": 5,
    "backends.litert": 5,
    "backends.openvino": 5,
    "backends.coreai": 5,
    "backends.reference": 5,
    "backends.process": 4,
    "backends.testing": 3,
    "backends.device_tensor": 3,
    "backends.registry": 3,
    "backends.built_ahead": 4,
    "backends.engine_store": 3,
    "backends.checks": 2,
    "backends.copying": 3,
    "backends.operators": 2,
    "backends.base": 1,
    "backends.engines": 1,
    "backends.foreign_engines": 1,
    "backends.late": 1,
}
"""An engine's folder knows the protocol and the processes, never an engine next to it; those that
build on another engine stand above it."""

UPWARD = {
    ("convert.quantize", "convert.pipeline"): "types of the job and of the request",
}
"""Arrows against the floors inside a folder, each with its reason."""

DEVICE = (
    *("runtime", "backends", "machine", "bundle", "metrics", "accuracy", "channels", "media"),
    *("decode", "profiles", "llm"),
    *(
        "parts",
        "heads",
        "results",
        "types",
        "errors",
        "forks",
        "bounded",
        "versions",
        "wire",
        "toml",
        "installed",
    ),
)
"""What a device install imports."""

CONVERTER = ("onnx", "onnx_ir", "onnxscript", "torch", "tvm", "transformers")
ENGINES = ("onnxruntime", "openvino", "ai_edge_litert", "coremltools", "coreai", "tensorrt")


def _package(name: str) -> str:
    """Return the part of the package that a module belongs to; empty for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def inside() -> list[Module]:
    """Return the modules of layers; they are read by the process that looks at them alone."""
    return [module for module in modules() if _package(module.name) in LAYERS]


def test_imports_go_down() -> None:
    wrong = []
    for module in inside():
        here = _package(module.name)
        for found in module.imports:
            there = _package(found.module)
            if not found.module.startswith("edgeinfer.") or there not in LAYERS:
                continue
            down = LAYERS[there] < LAYERS[here]
            if not (there == here or down or (here, there) in SIDEWAYS):
                wrong.append(f"{module.where}:{found.line}: {here} imports {found.module}")
    assert wrong == []


@pytest.mark.parametrize("floors", [INSIDE_CONVERT, INSIDE_QUANTIZE, INSIDE_BACKENDS])
def test_imports_go_down_inside_a_folder(floors: dict[str, int]) -> None:
    wrong, used = [], set()
    for module in inside():
        here = _floor(module.name, floors)
        for found in module.imports:
            there = _floor(found.module, floors)
            if not here or not there or here == there or floors[there] < floors[here]:
                continue
            if (here, there) in UPWARD:
                used.add((here, there))
            else:
                wrong.append(f"{module.where}:{found.line}: {here} imports {found.module}")
    assert wrong == []
    assert used == {arrow for arrow in UPWARD if set(arrow) <= floors.keys()}, "no longer needed"


@pytest.mark.parametrize("floors", [INSIDE_CONVERT, INSIDE_QUANTIZE, INSIDE_BACKENDS])
def test_every_part_of_a_folder_has_a_floor(floors: dict[str, int]) -> None:
    (folder,) = {name.rpartition(".")[0] for name in floors if name.count(".") == _depth(floors)}
    inside = {m.name for m in modules() if m.name.startswith(f"edgeinfer.{folder}.")}
    assert sorted(name for name in inside if not _floor(name, floors)) == []
    assert [name for name in floors if f"edgeinfer.{name}" not in inside] == []


def _depth(floors: dict[str, int]) -> int:
    return min(name.count(".") for name in floors)


def _floor(name: str, floors: dict[str, int]) -> str:
    """Return the longest name of a table that holds a module; empty where none does."""
    parts = name.split(".")[1:]
    whole = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((part for part in whole if part in floors), "")


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


def test_a_type_checker_meets_no_graph_library() -> None:
    """It follows every import, those in functions too, of all that the package itself names."""
    by_name = {module.name: module for module in modules()}
    open_names, seen, met = ["edgeinfer"], {"edgeinfer"}, []
    while open_names:
        module = by_name[open_names.pop()]
        for found in module.imports:
            met += [f"{module.where}:{found.line}: {found.module}"] * (
                found.module.split(".")[0] in CONVERTER
            )
            parts = found.module.split(".")
            # A package is read with each of its modules; the last part may be a name in one.
            for name in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
                if name in by_name and name not in seen:
                    seen.add(name)
                    open_names.append(name)
    assert "edgeinfer.convert.pipeline" in seen
    assert met == [], "use edgeinfer.convert.late"


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


LIGHT = ("edgeinfer", "edgeinfer.backends.registry", "edgeinfer.backends.onnxruntime.backend")


@pytest.mark.parametrize("name", LIGHT)
def test_import_brings_nothing_heavy(name: str) -> None:
    heavy = (*CONVERTER, *ENGINES)
    code = f"import sys, {name}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    assert done.stdout == "[]\n"


def test_the_version_is_read_without_the_public_package() -> None:
    """Whoever imports ``edgeinfer`` for it is tied to all that the package names."""
    found = [
        f"{module.where}:{i.line}"
        for module in modules()
        if _package(module.name) not in ("", "__main__")
        for i in module.imports
        if i.module in ("edgeinfer", "edgeinfer.__version__")
    ]
    assert found == [], "import edgeinfer._version"


def test_classes_of_fields_are_written_late() -> None:
    """The standard library compiles their methods in every process that imports them."""
    late = "edgeinfer.records"
    theirs = [
        m.where
        for m in modules()
        if m.name != late and any(i.module == "dataclasses.dataclass" for i in m.imports)
    ]
    assert theirs == []
