"""From TOML text to a ``Profile``; every fault of a file is reported at once."""

from __future__ import annotations

import dataclasses
import importlib.resources
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from edgeinfer import toml
from edgeinfer.errors import ProfileError
from edgeinfer.profiles.schema import (
    ACCELERATORS,
    ARCHES,
    FLOAT8,
    FORMATS,
    OSES,
    PRECISIONS,
    STORED,
    Chip,
    Computes,
    Profile,
    Quantization,
    Quirk,
)

Item = TypeVar("Item", str, tuple[str, bool])

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
"""A profile's name becomes a folder's name in the bundle, so nothing else may pass."""

_ALLOWED: dict[str, frozenset[str]] = {
    "os": OSES,
    "arch": ARCHES,
    "formats": FORMATS,
    "optional_formats": FORMATS,
    "precisions": PRECISIONS,
    "accelerators": ACCELERATORS,
    "unit": ACCELERATORS | {"cpu"},
    "format": FORMATS,
    "activations": STORED,
    "npu": frozenset({"fp16", "int8"}),
    "floats": frozenset({"bf16", "fp16", "tf32"}),
}
_NAMED = frozenset({"name", "backends", "aliases"})
_NON_EMPTY = frozenset({"os", "formats", "backends", "precisions", "ops", "floats"})


def parse(text: str, origin: str) -> Profile:
    """Read one profile.

    Args:
        text: TOML.
        origin: file name for the messages.

    Raises:
        ProfileError: with every unknown key, missing key, wrong type and unknown value.
    """
    try:
        data = toml.loads(text)
    except toml.TOMLDecodeError as e:
        raise ProfileError(f"{origin}: not TOML: {e}") from e
    faults: list[str] = []
    values = _fields(Profile, data, "", faults)
    if not faults:
        _cross_checks(values, faults)
    if faults:
        raise ProfileError("\n".join(f"{origin}: {fault}" for fault in faults))
    return Profile(**values)


def _fields(cls: type, data: dict[str, Any], where: str, faults: list[str]) -> dict[str, Any]:
    """Return the keyword arguments of ``cls``, in its order; faults go to ``faults``."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    known = ", ".join(fields)
    faults.extend(f"{where}{key}: unknown key; known: {known}" for key in data if key not in fields)
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name not in data:
            if spec.default is dataclasses.MISSING:
                faults.append(f"{where}{name}: missing")
            continue
        read = _READERS[str(spec.type)]
        values[name] = read(name, data[name], f"{where}{name}", faults)
    return values


def _string(name: str, value: Any, where: str, faults: list[str]) -> str:
    # ``versions`` is the only text that may be empty: it then means all versions.
    if not isinstance(value, str) or (not value.strip() and name != "versions"):
        faults.append(f"{where}: expected a text, received {value!r}")
        return ""
    if name in _ALLOWED and value not in _ALLOWED[name]:
        known = ", ".join(sorted(_ALLOWED[name]))
        faults.append(f"{where}: unknown value {value!r}; known: {known}")
    elif name in _NAMED and not where.startswith("chips") and not NAME.fullmatch(value):
        faults.append(
            f"{where}: {value!r} is not a name (lower-case letters, digits, '.', '_', '-')"
        )
    return value


def _strings(name: str, value: Any, where: str, faults: list[str]) -> tuple[str, ...]:
    if not isinstance(value, list):
        faults.append(f"{where}: expected a list of texts, received {value!r}")
        return ()
    items = tuple(_string(name, v, f"{where}[{i}]", faults) for i, v in enumerate(value))
    if not items and name in _NON_EMPTY:
        faults.append(f"{where}: expected at least one entry")
    faults.extend(f"{where}: {item!r} is listed twice" for item in _doubles(items))
    return items


def _doubles(items: Iterable[Item]) -> list[Item]:
    return sorted(item for item, count in Counter(items).items() if count > 1)


def _count(_: str, value: Any, where: str, faults: list[str]) -> int | None:
    # TOML's true is a Python int too.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        faults.append(f"{where}: expected a whole number above 0, received {value!r}")
        return None
    return value


def _flag(_: str, value: Any, where: str, faults: list[str]) -> bool:
    if not isinstance(value, bool):
        faults.append(f"{where}: expected true or false, received {value!r}")
        return False
    return value


def _tables(cls: type, value: Any, where: str, faults: list[str]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        faults.append(f"{where}: expected [[{where}]] tables, received {value!r}")
        return ()
    found: list[Any] = []
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            faults.append(f"{where}[{i}]: expected a table, received {entry!r}")
            continue
        before = len(faults)
        values = _fields(cls, entry, f"{where}[{i}].", faults)
        if len(faults) == before:
            found.append(cls(**values))
    return tuple(found)


def _quirks(_: str, value: Any, where: str, faults: list[str]) -> tuple[Quirk, ...]:
    return _tables(Quirk, value, where, faults)


def _chips(_: str, value: Any, where: str, faults: list[str]) -> tuple[Chip, ...]:
    return _tables(Chip, value, where, faults)


def _computes(_: str, value: Any, where: str, faults: list[str]) -> tuple[Computes, ...]:
    return _tables(Computes, value, where, faults)


def _quantizations(_: str, value: Any, where: str, faults: list[str]) -> tuple[Quantization, ...]:
    """Read tables, of which those that ship with edgeinfer go by their names."""
    if not isinstance(value, list):
        faults.append(f"{where}: expected names or [[{where}]] tables, received {value!r}")
        return ()
    found = [
        _named_table(entry, where, faults) if isinstance(entry, str) else entry for entry in value
    ]
    return _tables(Quantization, [entry for entry in found if entry is not None], where, faults)


def _named_table(name: str, where: str, faults: list[str]) -> dict[str, Any] | None:
    folder = importlib.resources.files("edgeinfer.profiles") / "quantization"
    if not folder.is_dir():
        # A device writes no integers, and its package has none of the tables.
        return None
    known = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())
    if name not in known:
        faults.append(f"{where}: unknown table {name!r}; known: {', '.join(known)}")
        return None
    return toml.loads((folder / f"{name}.toml").read_text("utf-8"))


_READERS: dict[str, Callable[[str, Any, str, list[str]], Any]] = {
    "str": _string,
    "Unit": _string,
    "tuple[str, ...]": _strings,
    "int | None": _count,
    "bool": _flag,
    "tuple[Quirk, ...]": _quirks,
    "tuple[Chip, ...]": _chips,
    "tuple[Computes, ...]": _computes,
    "tuple[Quantization, ...]": _quantizations,
}
"""By the annotation in the schema, so a new field needs no line here."""


def _cross_checks(values: dict[str, Any], faults: list[str]) -> None:
    both = set(values["formats"]) & set(values.get("optional_formats", ()))
    faults.extend(f"optional_formats: {name!r} is required already" for name in sorted(both))
    if values["name"] in values.get("aliases", ()):
        faults.append(f"aliases: {values['name']!r} is the name already")
    ids = [quirk.id for quirk in values.get("quirks", ())]
    faults.extend(f"quirks: id {i!r} is used twice" for i in _doubles(ids))
    tables = values.get("quantization", ())
    writes = [(q.format, q.activations == FLOAT8) for q in tables]
    formats = {*values["formats"], *values.get("optional_formats", ())}
    faults.extend(f"quantization: format {f!r} is described twice" for f, _ in _doubles(writes))
    faults.extend(
        f"quantization: format {f!r} is not one of the target's"
        for f in sorted({f for f, _ in writes} - formats)
    )
