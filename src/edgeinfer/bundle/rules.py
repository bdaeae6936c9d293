"""What a manifest must hold beyond the types of its keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from edgeinfer.bundle.paths import collisions, path_problem
from edgeinfer.types import TensorSpec
from edgeinfer.versions import is_specifier

if TYPE_CHECKING:
    from edgeinfer.bundle.manifest import FileRecord, Manifest, Variant

MANIFEST_NAME = "manifest.json"
SIGNATURES_NAME = "signatures.json"

MAX_SIGNATURES = 1 << 16
"""Bytes of the file with signatures; one takes about 200."""


DTYPES = frozenset(
    {
        *("bool", "string", "complex64", "complex128"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
        *("bfloat16", "float16", "float32", "float64", "float4_e2m1fn", "float8_e8m0fnu"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    }
)

_HEX = "0123456789abcdef"
_ID, _LONGEST_ID = "._+-", 128


def problems(manifest: Manifest) -> list[str]:
    """List everything that is wrong, each with the path of its key."""
    found: list[str] = []
    if not manifest.outputs:
        found.append("outputs: expected at least one")
    if not manifest.variants:
        found.append("variants: expected at least one")
    found += _tensors("inputs", manifest.inputs)
    found += _tensors("outputs", manifest.outputs)
    found += _states(manifest)
    found += _unique("variants", "id", [v.id for v in manifest.variants])
    specs = (*manifest.inputs, *manifest.outputs)
    floats = {spec.name for spec in specs if spec.dtype == "float32"}
    for i, variant in enumerate(manifest.variants):
        found += _variant(f"variants[{i}]", variant)
        found += _stored(f"variants[{i}].stored", variant, floats)
    if not _is_sha256(manifest.source.sha256):
        found.append("source.sha256: expected 64 lower-case hex digits")
    found += _files(list(records(manifest)))
    if not manifest.preprocessing and manifest.head is None:
        return found
    from edgeinfer.bundle.headrules import pipeline_problems

    return found + list(
        pipeline_problems(
            manifest.inputs,
            manifest.outputs,
            manifest.preprocessing,
            manifest.head,
            {record.path for record in manifest.extra_files},
        )
    )


def _states(manifest: Manifest) -> list[str]:
    inputs = {spec.name: spec for spec in manifest.inputs}
    outputs = {spec.name: spec for spec in manifest.outputs}
    found = []
    for i, state in enumerate(manifest.states):
        for key, name, known in (("input", state.input, inputs), ("output", state.output, outputs)):
            if name not in known:
                found.append(f"states[{i}].{key}: there is no {key} {name!r}")
    for key in ("input", "output"):
        found += _unique("states", key, [getattr(state, key) for state in manifest.states])
    return found


def records(manifest: Manifest) -> Iterator[tuple[str, FileRecord]]:
    """Yield every file record with the path of its key."""
    for i, variant in enumerate(manifest.variants):
        for j, file in enumerate(variant.files):
            yield f"variants[{i}].files[{j}]", file
    for i, vector in enumerate(manifest.vectors):
        yield f"vectors[{i}].file", vector.file
    if manifest.source.file is not None:
        yield "source.file", manifest.source.file
    for i, file in enumerate(manifest.extra_files):
        yield f"extra_files[{i}]", file


def _unique(where: str, key: str, values: list[str]) -> list[str]:
    seen: set[str] = set()
    found = []
    for i, value in enumerate(values):
        if value in seen:
            found.append(f"{where}[{i}].{key}: {value!r} is given twice")
        seen.add(value)
    return found


def _tensors(where: str, specs: tuple[TensorSpec, ...]) -> list[str]:
    found = _unique(where, "name", [spec.name for spec in specs])
    for i, spec in enumerate(specs):
        if not spec.name:
            found.append(f"{where}[{i}].name: is empty")
        if spec.dtype not in DTYPES:
            found.append(f"{where}[{i}].dtype: unknown type {spec.dtype!r}")
        for j, dim in enumerate(spec.shape or ()):
            if (isinstance(dim, int) and dim < 0) or dim == "":
                expected = "a size of at least 0, a name or null"
                found.append(f"{where}[{i}].shape[{j}]: expected {expected}, received {dim!r}")
    return found


def _variant(where: str, variant: Variant) -> list[str]:
    found = []
    if not _is_id(variant.id) or path_problem(variant.id):
        found.append(f"{where}.id: {variant.id!r} is not letters, digits and . _ + -")
    texts = {
        "target": variant.target,
        "format": variant.format,
        "precision": variant.precision,
    }
    found += [f"{where}.{key}: is empty" for key, text in texts.items() if not text]
    found += [
        f"{where}.{key}: {text!r} holds a character that cannot be printed"
        for key, text in texts.items()
        if not text.isprintable()
    ]
    if not variant.files:
        found.append(f"{where}.files: expected at least one")
    if not variant.engines:
        found.append(f"{where}.engines: expected at least one")
    for i, engine in enumerate(variant.engines):
        if not engine.backend:
            found.append(f"{where}.engines[{i}].backend: is empty")
        if not is_specifier(engine.version):
            text = f"{engine.version!r} is not a version specifier"
            found.append(f"{where}.engines[{i}].version: {text}")
    if variant.latency_ms is not None and variant.latency_ms < 0:
        found.append(f"{where}.latency_ms: expected at least 0, received {variant.latency_ms}")
    return found


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not text.strip(_HEX)


def _is_id(text: str) -> bool:
    """Whether it begins with a letter or a digit, and the rest is these and ``. _ + -``."""
    known = text.isascii() and all(c.isalnum() or c in _ID for c in text)
    return known and 0 < len(text) <= _LONGEST_ID and text[0].isalnum()


_INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def _stored(where: str, variant: Variant, floats: Collection[str]) -> list[str]:
    found = []
    for name, stored in variant.stored.items():
        low, high = _INTEGERS.get(stored.dtype, (1, 0))
        if name not in floats:
            found.append(f"{where}: no float32 input or output {name!r}")
        if low > high:
            found.append(f"{where}[{name!r}].dtype: {stored.dtype!r} is none of {list(_INTEGERS)}")
        elif not low <= stored.zero_point <= high:
            found.append(f"{where}[{name!r}].zero_point: {stored.zero_point} is no {stored.dtype}")
        if not 0 < stored.scale < math.inf:
            found.append(f"{where}[{name!r}].scale: expected above 0, received {stored.scale}")
    return found


def _files(entries: list[tuple[str, FileRecord]]) -> list[str]:
    found = []
    seen: dict[str, FileRecord] = {}
    for where, file in entries:
        if problem := path_problem(file.path):
            found.append(f"{where}.path: {file.path!r} {problem}")
        if file.path == MANIFEST_NAME:
            found.append(f"{where}.path: {MANIFEST_NAME} cannot list itself")
        if not _is_sha256(file.sha256):
            found.append(f"{where}.sha256: expected 64 lower-case hex digits")
        if file.size_bytes < 0:
            found.append(f"{where}.size_bytes: expected at least 0, received {file.size_bytes}")
        if seen.setdefault(file.path, file) != file:
            found.append(f"{where}: {file.path!r} is listed twice, with different contents")
    return found + [f"files: {p}" for p in collisions([MANIFEST_NAME, *seen])]
