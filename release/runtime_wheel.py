"""Build edgeinfer-runtime: the wheel of what a device needs, without what converts or tests.

Run from the repository: ``python -m release.runtime_wheel [FOLDER]``. It is the same tree but for
``convert``, ``kernels``, the checks for others' backends and what these alone use, under another
name and for Python 3.10 too; its extras are those of ``pyproject.toml`` that bring no converter.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAME = "edgeinfer-runtime"
LEFT_OUT = (
    *("convert", "kernels", "backends/testing", "backends/coreml_reference/ops", "numerics"),
    *("remote", "profiles/quantization"),
)
"""Folders of the package: what converts, and what judges where it is converted or from there."""

COMMANDS = tuple(
    f"cli/{name}.py"
    for name in (
        *("after", "check", "compare", "config", "convert", "decrypt", "encrypt", "extract"),
        *("join", "roofline", "sections", "sending", "sign", "targets", "tune"),
    )
)
"""Commands that need the converter or are for its machine, and what these alone use."""

CONVERTERS = (
    *(f"backends/process/{name}.py" for name in ("bounds", "channel", "deadline", "emulator")),
    *(f"bundle/{name}.py" for name in ("artifacts", "formats", "sealer", "signer", "writer")),
    *("comparisons.py", "runtime/difference.py"),
)
"""Modules that the converter's machine or its tests alone use."""

CLUSTER = (
    *(f"runtime/serve/{name}.py" for name in ("cluster", "front", "routing")),
    "cli/emit_containers.py",
)
"""The server on Ray, whose nodes are no devices (Ray takes half a gigabyte), and in containers."""

EVALUATOR = tuple(
    f"backends/coreml_reference/{name}.py"
    for name in ("backend", "evaluate", "registry", "stand_in")
)
"""The rest of the evaluator of Core ML packages; what reads them is Core ML's too."""

CONVERTING = frozenset({"all", "apple", "convert", "dev", "ray", "torch", "tvm-apple", "tvm-cuda"})
"""Extras that are for the machine that converts, for a cluster, or for developers."""

README = """# edgeinfer-runtime

What a device needs to run bundles that edgeinfer made elsewhere: `edgeinfer.load`, pipelines, the
commands `run`, `verify`, `eval`, `bench`, `doctor`, and no converter. It is the module `edgeinfer`,
so it goes into an environment without the package edgeinfer. Extras name the device: `pi`, `nuc`,
`mac`, `jetson`; or the engine: `litert`, `openvino`, `onnxruntime`, `coreml`, `tvm`.
"""

LARGEST = 1 << 20
"""Bytes that the wheel may have."""


def project(main: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return what the wheel says of itself.

    Args:
        main: the table ``project`` of the whole package.
        version: of the package.
    """
    extras = {
        name: [need.replace("edgeinfer[", f"{NAME}[") for need in needs]
        for name, needs in main["optional-dependencies"].items()
        if name not in CONVERTING
    }
    oldest = "Programming Language :: Python :: 3.11"
    classifiers = [
        line
        for found in main["classifiers"]
        for line in ([oldest.replace("3.11", "3.10"), found] if found == oldest else [found])
    ]
    kept = ("license", "license-files", "authors", "keywords", "scripts")
    return {
        "name": NAME,
        "version": version,
        "description": "Runs bundles of edgeinfer on a device; converts nothing",
        "readme": {"text": README, "content-type": "text/markdown"},
        "classifiers": classifiers,
        "requires-python": ">=3.10",
        "dependencies": [*main["dependencies"], "tomli>=2; python_version < '3.11'"],
        "optional-dependencies": extras,
        "entry-points": {
            group: {n: place for n, place in found.items() if not _is_left_out(place)}
            for group, found in main["entry-points"].items()
        },
        **{name: main[name] for name in kept},
    }


def _is_left_out(place: str) -> bool:
    """Whether an entry point leads to what the wheel is without."""
    file = place.partition(":")[0].removeprefix("edgeinfer.").replace(".", "/") + ".py"
    return file in EVALUATOR


def build(folder: Path) -> Path:
    """Build the wheel into a folder, and return its path.

    Raises:
        SystemExit: it is larger than it may be.
    """
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = whole["tool"]["setuptools"]
    from edgeinfer._version import __version__

    data = {
        name: patterns
        for name, patterns in setuptools["package-data"].items()
        if "/".join(name.split(".")[1:2]) not in LEFT_OUT
    }
    with tempfile.TemporaryDirectory(prefix="edgeinfer-runtime-") as temporary:
        stage = Path(temporary)
        package = ROOT / "src" / "edgeinfer"

        def unwanted(folder: str, found: list[str]) -> list[str]:
            inner = Path(folder).relative_to(package)
            away = {*LEFT_OUT, *EVALUATOR, *COMMANDS, *CONVERTERS, *CLUSTER}
            left = {"__pycache__"} | {n for n in found if (inner / n).as_posix() in away}
            return [name for name in found if name in left]

        shutil.copytree(package, stage / "src" / "edgeinfer", ignore=unwanted)
        shutil.copy2(ROOT / "LICENSE", stage)
        tables = {
            "build-system": whole["build-system"],
            "project": project(whole["project"], __version__),
            "tool": {"setuptools": {"include-package-data": False, "package-data": data}},
        }
        tables["tool"]["setuptools"]["packages"] = {"find": setuptools["packages"]["find"]}
        (stage / "pyproject.toml").write_text("\n".join(_toml(tables)), encoding="utf-8")
        command = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
        subprocess.run([*command, "--outdir", temporary, str(stage)], check=True)
        (made,) = stage.glob(f"{NAME.replace('-', '_')}-{__version__}-*.whl")
        _compress(made)
        if made.stat().st_size > LARGEST:
            raise SystemExit(
                f"{made.name}: {made.stat().st_size} bytes, at most {LARGEST} are wanted"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, folder / made.name))


def _compress(wheel: Path) -> None:
    """Compress each file as far as it goes: setuptools does so half-way."""
    with zipfile.ZipFile(wheel) as given:
        files = [(info, given.read(info)) for info in given.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as made:
        for info, data in files:
            made.writestr(info, data, zipfile.ZIP_DEFLATED, 9)


def _toml(tables: Mapping[str, Any], path: str = "") -> list[str]:
    """Write tables of texts, lists and tables; a text of JSON is one of TOML."""
    lines = [f"[{path}]"] if path else []
    for key, value in tables.items():
        if not isinstance(value, Mapping):
            lines.append(f"{json.dumps(key)} = {_value(value)}")
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += _toml(value, f"{path}.{json.dumps(key)}" if path else json.dumps(key))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()))
