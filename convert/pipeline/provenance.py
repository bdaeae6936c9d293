"""Where a bundle comes from: everything that took part in making it, and its bill of materials."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from edgeinfer.backends.engines import has_onnxruntime
from edgeinfer.bundle.manifest import FileRecord, SourceRecord, Variant
from edgeinfer.bundle.trust import NATIVE_FOLDER, level_of

SBOM_NAME = "sbom.cdx.json"

_ALWAYS = ("edgeinfer", "numpy", "onnx", "onnx-ir")
_OF_TORCH = ("torch", "onnxscript")
_OF_BACKENDS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai-edge-litert",
    "tvm": "apache-tvm",
    "coreml": "coremltools",
    "coreai": "coreai-core",
}
"""Packages by the backend that they provide."""

_OF_FORMATS = {
    "mlprogram": "coremltools",
    "aimodel": "coreai-core",
    "tvm": "apache-tvm",
    "onnx_tvm": "apache-tvm",
}
"""Packages by the format that they write."""


def tools_of(
    source: SourceRecord,
    variants: Iterable[Variant],
    backends: Iterable[str],
    drivers: Iterable[str],
) -> dict[str, str]:
    """Return the versions of everything that took part in a conversion, and of nothing else.

    Args:
        source: the model that was read.
        variants: that were written.
        backends: engines that judged them, the oracles' included.
        drivers: compilers that linked machine code.
    """
    wanted = [*_ALWAYS, *(_OF_TORCH if source.format in ("torch", "pt2") else ())]
    wanted += [_OF_BACKENDS[b] for b in backends if b in _OF_BACKENDS]
    wanted += [_OF_FORMATS[v.format] for v in variants if v.format in _OF_FORMATS]
    wanted += ["apache-tvm"] if list(drivers) else []
    found = {"python": platform.python_version()}
    for package in dict.fromkeys(wanted):
        try:
            found[package] = _version(package)
        except importlib.metadata.PackageNotFoundError:
            # A build of somebody's own, without metadata.
            continue
    for driver in dict.fromkeys(drivers):
        found[driver] = _driver_version(driver)
    return found


@cache
def _version(package: str) -> str:
    """Return an installed package's version; ``importlib.metadata`` parses the whole description.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    text = importlib.metadata.distribution(package).read_text("METADATA") or ""
    line = re.search(r"^Version: *(\S+)", text, re.MULTILINE)
    return line[1] if line else importlib.metadata.version(package)


def oracles() -> tuple[str, ...]:
    """Name the engines that say what a model computes, as far as they are here."""
    return ("onnxruntime",) if has_onnxruntime() else ()


@cache
def _driver_version(driver: str) -> str:
    try:
        printed = subprocess.run(
            [driver, "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    match = re.search(r"\d+\.\d+(?:\.\d+)?", printed.stdout)
    return match[0] if match else "unknown"


def sbom(
    name: str,
    source: SourceRecord,
    tools: dict[str, str],
    variants: Sequence[Variant],
    files: Sequence[FileRecord],
) -> dict[str, Any]:
    """Return a bundle's bill of materials in CycloneDX; the same bundle gives the same.

    Args:
        name: Name of the bundle.
        source: the model that it was made from.
        tools: that made it, with versions.
        variants: artifacts.
        files: everything else that is in it.

    Source: CycloneDX 1.6, JSON, https://cyclonedx.org/docs/1.6/json/.
    """
    parts = [_artifact(v) for v in variants] + [_file(f) for f in files]
    identity = "".join(h["content"] for part in parts for h in part.get("hashes", ()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, identity + source.sha256)}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": tool, "version": version}
                    for tool, version in sorted(tools.items())
                ]
            },
            "component": {
                "type": "machine-learning-model",
                "bom-ref": "bundle",
                "name": name,
                "pedigree": {
                    "ancestors": [
                        {
                            "type": "machine-learning-model",
                            "name": source.name or "model",
                            "hashes": [{"alg": "SHA-256", "content": source.sha256}],
                            "properties": [_property("format", source.format)],
                        }
                    ]
                },
            },
        },
        "components": parts,
        "dependencies": [{"ref": "bundle", "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _artifact(variant: Variant) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": variant.id,
        "name": variant.id,
        "hashes": [{"alg": "SHA-256", "content": variant.files[0].sha256}],
        "properties": [
            _property("format", variant.format),
            _property("precision", variant.precision),
            _property("level", level_of(variant)),
        ],
        "components": [_file(f, f"{variant.id}:") for f in variant.files],
    }


def _file(record: FileRecord, prefix: str = "") -> dict[str, Any]:
    level = "native" if record.path.startswith(NATIVE_FOLDER) else "data"
    return {
        "type": "file",
        "bom-ref": prefix + record.path,
        "name": record.path,
        "hashes": [{"alg": "SHA-256", "content": record.sha256}],
        "properties": [_property("level", level)] if not prefix else [],
    }


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"edgeinfer:{name}", "value": value}
