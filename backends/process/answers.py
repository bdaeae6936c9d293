"""What a process of ours answers, as data: whoever reads an answer runs nothing of it.

A process that looks at a stranger's file may be in that stranger's hands by then. What it sends is
JSON with the bytes of arrays next to it. Objects are named, and made of the classes alone that the
reader lists, field by field; what it does not list, it cannot be made to import or to call.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import json
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer import errors
from edgeinfer.bounded import parse_json
from edgeinfer.types import Array

_PLAIN = (type(None), bool, int, float, str)

_PLAINLY = "biufcmMSU"
"""Kinds of NumPy's own types whose name says all, without fields."""

_TYPE = re.compile(r"[<>|=](?:[biufc][0-9]{1,2}|[mM]8(?:\[\w{1,20}\])?|[SU][0-9]{1,10})", re.ASCII)
"""Their names."""

_NARROW = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    *("float6_e2m3fn", "float6_e3m2fn", "int1", "int2", "int4", "uint1", "uint2", "uint4"),
)
"""Types of ml_dtypes."""

_ALSO: Mapping[Any, Any] = {
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    bool: (bool, np.bool_),
}

_MOST_ALIKE = 64
"""Keys of one hash: to look for one of them compares all, and strangers can choose them so."""

_SHORT, _SPARE = 1 << 16, 64 << 20
"""Bytes of an answer's text that is read as it is, and those that a longer one may take beyond a
multiple of its size."""

_ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for place in (builtins, errors)
    for kind in vars(place).values()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, BrokenPipeError | EOFError | StopIteration | StopAsyncIteration)
}
"""Errors that may be answered: ours, and Python's own but for those that mean something where they
are raised: an end of input or output, of a loop."""


class NoAnswerError(Exception):
    """A process sent something that answers no request."""


class NotPlainError(TypeError):
    """What is to be answered holds something that is no data: a mistake of ours."""


class Listed:
    """What a reader lists.

    Args:
        roots: dataclasses that an answer may hold objects of, with all that their fields may hold.
        folders: where the paths in it lead, whatever links say; None for anywhere.
    """

    def __init__(self, *roots: Any, folders: Sequence[Path] | None = None) -> None:
        self._roots = roots
        self.folders = None if folders is None else [folder.resolve() for folder in folders]

    @property
    def classes(self) -> Mapping[str, type]:
        """Dataclasses by name."""
        return _named((errors.Problem, *self._roots))


NOTHING = Listed()
"""Numbers, texts, arrays and errors."""


@functools.cache
def _named(roots: tuple[Any, ...]) -> Mapping[str, type]:
    """Return dataclasses by name, and those that their fields may hold."""
    found: dict[str, type] = {}
    waiting: list[Any] = list(roots)
    while waiting:
        each = waiting.pop()
        if not (isinstance(each, type) and dataclasses.is_dataclass(each)):
            waiting += typing.get_args(each)
        elif each.__name__ not in found:
            found[each.__name__] = each
            waiting += _hints(each).values()
        elif found[each.__name__] is not each:
            raise ValueError(f"two classes have the name {each.__name__}")
    return found


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Return what each field holds, in their order."""
    found = typing.get_type_hints(kind)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _held(kind: type) -> dict[str, Any]:
    """Return what each field of an error of ours holds."""
    found = typing.get_type_hints(kind)
    return {n: hint for n, hint in found.items() if typing.get_origin(hint) is not typing.ClassVar}


def _is_told(value: object) -> bool:
    """Whether a field of an error is of what JSON has, problems of nodes included."""
    if isinstance(value, Mapping):
        return all(map(_is_told, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_told, value))
    # NumPy's longest floats have no others of Python to become.
    if isinstance(value, np.longdouble):
        return False
    return isinstance(value, (*_PLAIN, np.integer, np.floating, np.bool_, Path, errors.Problem))


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is what an annotation says; numbers of NumPy are numbers."""
    if type(value) is hint:
        return True
    origin, args = _parts(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is typing.Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if origin is None:
        return value is None if hint is None else isinstance(value, _ALSO.get(hint, hint))
    if not isinstance(value, origin):
        return False
    if isinstance(value, tuple) and args[-1:] != (...,) and issubclass(origin, tuple):
        return len(value) == len(args) and all(map(fits, value, args))
    if isinstance(value, Mapping):
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(fits(one, args[0]) for one in value)
    return True


def encode(message: object) -> tuple[bytes, list[memoryview]]:
    """Return the text of an answer, and the bytes that belong to it.

    Raises:
        NotPlainError: it holds something that is neither data nor a dataclass.
    """
    writer = _Writer()
    text = json.dumps(writer.value(message), separators=(",", ":"))
    return text.encode("ascii"), writer.buffers


def decode(
    text: bytes | bytearray, buffers: Sequence[bytearray], listed: Listed, form: Any = Any
) -> Any:
    """Make an answer of what came.

    Args:
        text: Text of ``encode``.
        buffers: bytes that belong to it.
        listed: what it may consist of.
        form: what it is as a whole; an annotation.

    Raises:
        NoAnswerError: it is none.
    """
    try:
        plain = json.loads(text) if len(text) < _SHORT else parse_json(bytes(text), _SPARE)
        answered = _Reader(buffers, listed).value(plain)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as e:
        raise NoAnswerError(f"{type(e).__name__}: {e}") from e
    except (OSError, ValueError) as e:
        raise NoAnswerError(str(e)) from e
    if not fits(answered, form):
        raise NoAnswerError(f"it is {type(answered).__name__}, or holds something else")
    return answered


def portable(error: Exception) -> Exception:
    """Return an error as it can be answered."""
    try:
        text, buffers = encode(error)
        decode(text, [bytearray(raw) for raw in buffers], NOTHING)
    except (NoAnswerError, NotPlainError, RecursionError):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Writer:
    """Makes text of an answer; each array's bytes are taken once, however often it is named."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._places: dict[int, int] = {}
        self._kept: list[object] = []

    def value(self, value: object) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple or kind is list:
            return [kind.__name__, *map(self.value, value)]  # type: ignore[call-overload]
        if isinstance(value, Mapping):
            return ["dict", *([self.value(k), self.value(v)] for k, v in value.items())]
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, np.dtype):
            return ["dtype", _type_name(value)]
        if isinstance(value, AbstractSet):
            return ["set" if kind is set else "frozenset", *map(self.value, value)]
        if isinstance(value, Path):
            return ["path", str(value)]
        if isinstance(value, bytes | bytearray):
            return ["bytes", self._place(value, memoryview(value))]
        if isinstance(value, Exception):
            return self._error(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [
                self.value(getattr(value, name)) for name in _names(typing.cast("type", kind))
            ]
            return ["object", kind.__name__, *fields]
        raise NotPlainError(f"a process answers {kind.__qualname__}, which is no data: {value!r}")

    def _array(self, array: Array | np.generic) -> list[Any]:
        what = "number" if isinstance(array, np.generic) else "array"
        if array.dtype.kind == "O":
            texts = [self.value(text) for text in np.asarray(array).reshape(-1)]
            return ["texts", list(array.shape), *texts]
        name, solid = _type_name(array.dtype), np.ascontiguousarray(array)
        raw = solid.reshape(-1).view(np.uint8).data if solid.size else memoryview(b"")
        return [what, name, list(array.shape), self._place(array, raw)]

    def _place(self, owner: object, raw: memoryview) -> int:
        if (place := self._places.get(id(owner))) is None:
            place = self._places[id(owner)] = len(self.buffers)
            self.buffers.append(raw)
            # A number of an object is its own as long as it lives.
            self._kept.append(owner)
        return place

    def _error(self, error: Exception) -> list[Any]:
        kind = type(error)
        if _ERRORS.get(kind.__name__) is not kind:
            raise NotPlainError(f"a process answers {kind.__qualname__}, which no reader knows")
        args = error.args
        if isinstance(error, OSError) and error.filename is not None:
            args = error.errno, error.strerror, error.filename
        fields = {n: v for n, v in vars(error).items() if not n.startswith("__")}
        return ["error", kind.__name__, self.value(args), self.value(fields)]


def _type_name(dtype: np.dtype[Any]) -> str:
    if dtype.fields is None and dtype.kind in _PLAINLY:
        return dtype.str
    if dtype.name in _NARROW or dtype.kind == "O":
        return dtype.name
    raise NotPlainError(f"a process answers numbers of {dtype}, which no reader knows")


@functools.lru_cache(256)
def _type(name: str) -> np.dtype[Any]:
    if name in _NARROW:
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return narrow
    if name == "object":
        return np.dtype(object)
    if not _TYPE.fullmatch(name):
        raise NoAnswerError(f"no type of numbers: {name[:40]!r}")
    return np.dtype(name)


def _array(raw: bytearray, name: str, shape: tuple[int, ...]) -> Array:
    """Make an array of bytes, whose values all are some of its type."""
    dtype = _type(name)
    if dtype.hasobject:
        raise NoAnswerError("an array of objects")
    if not len(raw):
        return np.empty(0, dtype).reshape(shape)
    flat: Array = np.frombuffer(raw, dtype)
    if dtype.kind == "b" and flat.view(np.uint8).max() > 1:
        raise NoAnswerError("neither true nor false")
    # Python ends what makes a text of other numbers.
    if dtype.kind == "U" and flat.view(f"{dtype.byteorder}u4").max() > sys.maxunicode:
        raise NoAnswerError("no text has such letters")
    return flat.reshape(shape)


def _unlike(keys: list[Any]) -> list[Any]:
    """Return keys of which few have the same hash.

    Raises:
        NoAnswerError: many have.
    """
    if len(keys) > _MOST_ALIKE and max(Counter(map(hash, keys)).values()) > _MOST_ALIKE:
        raise NoAnswerError("many keys of one hash")
    return keys


class _Reader:
    """Makes an answer of text; whatever else it finds there raises."""

    def __init__(self, buffers: Sequence[bytearray], listed: Listed) -> None:
        self._buffers, self._listed = buffers, listed
        self._made: dict[int, tuple[tuple[Any, ...], Any]] = {}

    def value(self, plain: Any) -> Any:
        if not isinstance(plain, list):
            if isinstance(plain, dict):
                raise NoAnswerError("no answer has an object of JSON")
            return plain
        kind, *content = plain
        return _READERS[kind](self, *content)

    def list(self, *items: Any) -> Any:
        return [self.value(item) for item in items]

    def tuple(self, *items: Any) -> Any:
        return tuple(self.value(item) for item in items)

    def dict(self, *items: Any) -> Any:
        keys = _unlike([self.value(key) for key, _ in items])
        return {key: self.value(value) for key, (_, value) in zip(keys, items, strict=True)}

    def set(self, *items: Any) -> Any:
        return set(_unlike([self.value(item) for item in items]))

    def frozenset(self, *items: Any) -> Any:
        return frozenset(_unlike([self.value(item) for item in items]))

    def dtype(self, name: str) -> np.dtype[Any]:
        return _type(name)

    def bytes(self, place: int) -> Any:
        return self._once(place, ("bytes",), lambda raw: memoryview(raw).tobytes())

    def _once(self, place: int, what: Any, make: Callable[[bytearray], Any]) -> Any:
        """Return what the bytes of a place are, made once.

        A copy for each time that it is named would take any multiple of what was sent.
        """
        if (made := self._made.get(place)) is None:
            if place < 0:
                raise NoAnswerError("no place has such a number")
            made = self._made[place] = what, make(self._buffers[place])
        elif made[0] != what:
            raise NoAnswerError("one place is two things")
        return made[1]

    def path(self, text: str) -> Path:
        found, folders = Path(text), self._listed.folders
        if folders is not None:
            real = found.resolve()
            if not any(real.is_relative_to(folder) for folder in folders):
                raise NoAnswerError(f"{text} is not where the process was to write")
        return found

    def array(self, name: str, shape: Sequence[int], place: int) -> Array:
        what = "array", name, tuple(shape)
        found: Array = self._once(place, what, lambda raw: _array(raw, name, what[2]))
        return found

    def number(self, name: str, shape: Sequence[int], place: int) -> Any:
        what = "number", name, tuple(shape)
        return self._once(place, what, lambda raw: _array(raw, name, what[2])[()])

    def texts(self, shape: Sequence[int], *items: Any) -> Array:
        found = np.empty(len(items), object)
        for index, item in enumerate(items):
            found[index] = self.value(item)
        return found.reshape(tuple(shape))

    def error(self, name: str, args: Any, fields: Any) -> Exception:
        kind, texts, given = _ERRORS[name], self.value(args), self.value(fields)
        if not issubclass(kind, errors.EdgeInferError):
            error = kind(*texts)
            # The system's errors are of other classes by their numbers.
            if given or type(error) is not kind:
                raise NoAnswerError(f"{name} is another error, or holds {list(given)[:9]}")
            return error
        hints = _held(typing.cast("type", kind))
        if not fits(texts, tuple[str, ...]) or given.keys() != hints.keys():
            raise NoAnswerError(f"{name} does not hold {list(given)[:9]}")
        for field, hint in hints.items():
            if not fits(given[field], hint) or not _is_told(given[field]):
                raise NoAnswerError(f"{name}.{field} is {type(given[field]).__name__}")
        # Some of ours take other arguments than the message, and need none.
        error = kind.__new__(kind, *texts)
        error.__dict__.update(given)
        return error

    def object(self, name: str, *values: Any) -> Any:
        kind = self._listed.classes[name]
        made: Any = object.__new__(kind)
        for (field, hint), value in zip(_hints(kind).items(), values, strict=True):
            given = self.value(value)
            # Most are of a plain class, and exactly that.
            if type(given) is not hint and not fits(given, hint):
                raise NoAnswerError(f"{name}.{field} is {type(given).__name__}")
            object.__setattr__(made, field, given)
        return made


_READERS: Mapping[str, Callable[..., Any]] = {
    name: vars(_Reader)[name]
    for name in (
        *("list", "tuple", "dict", "set", "frozenset", "dtype", "bytes", "path", "array"),
        *("number", "texts", "error", "object"),
    )
}
