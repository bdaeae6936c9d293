"""Frozen dataclasses to JSON-ready data and back, strictly, with every problem listed at once.

Understands what the records of this package are made of: ``str``, ``int``, ``float``, ``bool``,
``None``, ``Literal``, unions, ``tuple``, ``dict[str, T]`` and dataclasses. A union of dataclasses
is distinguished by their ``kind`` field.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import sys
import types
import typing
from typing import Any, Literal, TypeVar, Union

from edgeinfer.bundle.paths import is_text

T = TypeVar("T")

MOST_PROBLEMS = 10_000
"""Problems that are kept of one document; a hostile one has as many as it has elements."""

_MISSING = object()


class _Enough(Exception):  # noqa: N818 - ends a reading, never seen outside
    """So many problems were found that the rest does not matter."""


class _Problems(list[str]):
    """Stops the reading when there are enough."""

    def append(self, problem: str) -> None:
        """Add one."""
        if len(self) >= MOST_PROBLEMS:
            raise _Enough
        super().append(problem)


def encode(value: object) -> Any:
    """Return JSON-ready data: dataclasses become objects, tuples arrays."""
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], data: object, *, extra_keys: bool = False) -> tuple[T | None, list[str]]:
    """Build a ``cls`` from JSON data.

    Args:
        cls: a dataclass.
        data: what ``json.loads`` gave.
        extra_keys: ignore unknown keys instead of reporting them.

    Returns:
        The value and an empty list, or None and one line a problem, each with the path of its key.
    """
    reader = _Reader(extra_keys)
    try:
        value = reader.read(cls, data, "")
    except _Enough:
        return None, [*reader.problems, "and more"]
    return (None if reader.problems else value), reader.problems


def by_kind(union: Any) -> dict[str, Any]:
    """Return the records of a union by what their ``kind`` field holds."""
    records = [m for m in typing.get_args(union) if dataclasses.is_dataclass(m)]
    return {typing.get_args(_type_of(typing.cast("type", m), "kind"))[0]: m for m in records}


@functools.cache
def _type_of(cls: type, name: str) -> Any:
    """Return the type of a field; ``get_type_hints`` compiles those of all fields of each class."""
    for owner in cls.__mro__:
        own = owner.__dict__.get("__annotations__", {})  # noqa: RUF063 - it has no second copy
        if name in own:
            return _evaluated(owner.__module__, own[name])
    raise KeyError(name)


@functools.cache
def _evaluated(module: str, annotation: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {}, _Names(sys.modules[module]))


class _Names(dict[str, Any]):
    """What a module defines or offers, by name."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __missing__(self, name: str) -> Any:
        if hasattr(self._module, name):
            return getattr(self._module, name)
        return getattr(builtins, name)


def _describe(data: object) -> str:
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, (int, float)):
        return repr(data) if abs(data) < 1e21 else f"{type(data).__name__} out of range"
    if isinstance(data, str):
        return repr(data if len(data) <= 40 else data[:37] + "...")
    if isinstance(data, dict):
        return "an object"
    return "an array" if isinstance(data, list) else type(data).__name__


def _wanted(tp: Any) -> str:
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    if tp in names:
        return names[tp]
    if tp is type(None):
        return "null"
    origin = typing.get_origin(tp)
    if origin is Literal:
        return " or ".join(repr(a) for a in typing.get_args(tp))
    if origin is tuple:
        return "an array"
    if origin is dict or dataclasses.is_dataclass(tp):
        return "an object"
    return " or ".join(_wanted(a) for a in typing.get_args(tp))


class _Reader:
    """One pass over a document; collects problems instead of stopping at the first."""

    def __init__(self, extra_keys: bool) -> None:
        self.extra_keys = extra_keys
        self.problems: list[str] = _Problems()

    def fail(self, path: str, tp: Any, data: object) -> Any:
        where = path or "the document"
        self.problems.append(f"{where}: expected {_wanted(tp)}, received {_describe(data)}")
        return _MISSING

    def read(self, tp: Any, data: object, path: str) -> Any:
        origin = typing.get_origin(tp)
        if origin in (Union, types.UnionType):
            return self._union(tp, data, path)
        if origin is Literal:
            known = isinstance(data, str) and data in typing.get_args(tp)
            return data if known else self.fail(path, tp, data)
        if origin is tuple:
            return self._tuple(tp, data, path)
        if origin is dict:
            return self._dict(tp, data, path)
        if dataclasses.is_dataclass(tp):
            return self._object(typing.cast("type", tp), data, path)
        return self._scalar(tp, data, path)

    def _scalar(self, tp: Any, data: object, path: str) -> Any:
        if tp is str:
            return data if isinstance(data, str) and is_text(data) else self.fail(path, tp, data)
        if tp is bool or tp is type(None):
            return data if isinstance(data, tp) else self.fail(path, tp, data)
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            return self.fail(path, tp, data)
        if tp is int:
            fits = isinstance(data, int) and -(2**63) <= data < 2**63
            return data if fits else self.fail(path, tp, data)
        if tp is not float:
            raise TypeError(f"{path}: no JSON form for {tp}")
        if isinstance(data, int) and abs(data) > 2**63:
            return self.fail(path, tp, data)
        if not math.isfinite(data):
            self.problems.append(f"{path}: expected a finite number, received {data}")
            return _MISSING
        return float(data)

    def _union(self, tp: Any, data: object, path: str) -> Any:
        members = typing.get_args(tp)
        records = [m for m in members if dataclasses.is_dataclass(m)]
        if records and isinstance(data, dict):
            if len(records) == 1:
                return self.read(records[0], data, path)
            kinds = by_kind(tp)
            kind = data.get("kind")
            if isinstance(kind, str) and kind in kinds:
                return self.read(kinds[kind], data, path)
            known = ", ".join(sorted(kinds))
            where = _join(path, "kind")
            self.problems.append(f"{where}: expected one of {known}, received {_describe(kind)}")
            return _MISSING
        for member in members:
            attempt = _Reader(self.extra_keys)
            value = attempt.read(member, data, path)
            if not attempt.problems:
                return value
        return self.fail(path, tp, data)

    def _tuple(self, tp: Any, data: object, path: str) -> Any:
        if not isinstance(data, list):
            return self.fail(path, tp, data)
        element = typing.get_args(tp)[0]
        return tuple(self.read(element, item, f"{path}[{i}]") for i, item in enumerate(data))

    def _dict(self, tp: Any, data: object, path: str) -> Any:
        if not isinstance(data, dict):
            return self.fail(path, tp, data)
        element = typing.get_args(tp)[1]
        return {key: self.read(element, item, _join(path, key)) for key, item in data.items()}

    def _object(self, cls: type, data: object, path: str) -> Any:
        if not isinstance(data, dict):
            return self.fail(path, cls, data)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if not self.extra_keys:
            for key in data:
                if key not in fields:
                    self.problems.append(f"{_join(path, key)}: unknown key")
        values: dict[str, Any] = {}
        for name, f in fields.items():
            if data.get(name, f) is None and str(f.type).endswith("| None"):
                values[name] = None
            elif name in data:
                values[name] = self.read(_type_of(cls, name), data[name], _join(path, name))
            elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                self.problems.append(f"{_join(path, name)}: missing")
        # With a problem anywhere the result is discarded, so nothing half-read is constructed.
        return _MISSING if self.problems else cls(**values)


def _join(path: str, key: str) -> str:
    if len(key) > 60:
        key = f"{key[:57]}..."
    if not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key
