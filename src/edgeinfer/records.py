"""Dataclasses that cost little to define: a load imports a hundred and makes few objects of each.

The standard library compiles up to nine methods where a class is defined, which takes half a
millisecond. Here an ``__init__`` is compiled for a class of which many objects are made, and
nothing else is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, Field
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, **more):
        """Do what ``dataclasses.dataclass`` does.

        What is seldom requested is left to the standard library: more than fields by keyword,
        pseudo-fields such as ``InitVar``, a class without a docstring.
        """

        def made(cls):
            fields = _fields(cls, frozen, **more)
            if fields is None:
                return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, **more)(cls)
            return _dataclass(_with_slots(cls, fields) if slots else cls, fields, frozen, slots, eq)

        return made if cls is None else made(cls)


FEW = 25
"""Objects of a class that are made before its ``__init__`` is compiled."""


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Template:
    """Has what the standard library marks dataclasses and their fields with."""

    value: int


_FIELD = _Template.__dataclass_fields__["value"]._field_type  # type: ignore[attr-defined]


@cache
def _params(frozen: bool, eq: bool) -> Any:
    params: Any = copy(_Template.__dataclass_params__)  # type: ignore[attr-defined]
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
    return params


def _fields(cls: Any, frozen: bool, **more: bool) -> dict[str, Field[Any]] | None:
    """Take the fields of a class and of those above it; None where there is more to it."""
    space = cls.__dict__
    own = space.get("__annotations__", {})
    rare = any(type(text) is not str or text.startswith(_RARE) for text in own.values())
    if rare or more.keys() - {"kw_only"} or not cls.__doc__ or space.keys() & _OTHERS:
        return None
    found: dict[str, Field[Any]] = {}
    for above in cls.__mro__[-1:0:-1]:
        if "__dataclass_fields__" in above.__dict__:
            # The standard library says best what may not inherit from what.
            if above.__dataclass_params__.frozen != frozen:
                return None
            found |= above.__dataclass_fields__
    for name, text in own.items():
        if text.startswith(_NO_FIELD):
            continue
        given = space.get(name, MISSING)
        made: Any = given if isinstance(given, Field) else dataclasses.field(default=given)
        made.name, made.type, made._field_type = name, text, _FIELD
        if made.kw_only is MISSING:
            made.kw_only = more.get("kw_only", False)
        if made.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__qualname__}.{name}: give a default_factory for what changes")
        if made is given and made.default is MISSING:
            delattr(cls, name)
        elif made is given:
            setattr(cls, name, made.default)
        found[name] = made
    return found


_NO_FIELD = ("ClassVar", "typing.ClassVar")
_RARE = ("InitVar", "dataclasses.InitVar", "KW_ONLY", "dataclasses.KW_ONLY")
_OTHERS = {"__slots__", "__annotate__", "__annotate_func__"}
"""Attributes of classes that are not read here: annotations that are no text, from Python 3.14."""


def _with_slots(cls: Any, fields: dict[str, Field[Any]]) -> Any:
    """Make a class anew that keeps its fields in slots."""
    above = {name for c in cls.__mro__[1:-1] for name in c.__dict__.get("__slots__", ())}
    left_out = {"__dict__", "__weakref__", *fields}
    space = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    space["__slots__"] = tuple(name for name in fields if name not in above)
    made = type(cls)(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    return made


def _dataclass(
    made: Any, fields: dict[str, Field[Any]], frozen: bool, slots: bool, eq: bool
) -> Any:
    first = _first_init(made, tuple(fields.values()), frozen)
    methods: dict[str, Any] = {
        "__dataclass_fields__": fields,
        "__dataclass_params__": _params(frozen, eq),
        "__match_args__": tuple(f.name for f in fields.values() if f.init and not f.kw_only),
        "__init__": first,
        "__repr__": _repr,
        "__signature__": _Signature(made),
    }
    if eq:
        methods["__eq__"] = _late(made, "__eq__", _equal)
        methods["__hash__"] = _late(made, "__hash__", _hash) if frozen else None
    if frozen:
        methods |= {"__setattr__": _setattr, "__delattr__": _delattr}
    if frozen and slots:
        methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    own = made.__dict__
    for name, method in methods.items():
        is_own = name in own and not (name == "__hash__" and own[name] is None)
        if not is_own:
            setattr(made, name, method)
    return made


def _late(cls: Any, name: str, write: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a method that gives way to the one that ``write`` returns for the class."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(cls, name, write(cls))
        return getattr(cls, name)(self, *args, **kwargs)

    return method


def _first_init(cls: Any, fields: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """Return an ``__init__`` for few objects; one that is compiled takes over from it."""
    left = FEW

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        nonlocal left
        left -= 1
        if left < 0 or not _filled(self, fields, frozen, args, kwargs):
            cls.__init__ = _init(cls)
            cls.__init__(self, *args, **kwargs)
        elif hasattr(cls, "__post_init__"):
            self.__post_init__()

    __init__.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return __init__


def _filled(
    self: Any, fields: tuple[Field[Any], ...], frozen: bool, args: Any, kwargs: dict[str, Any]
) -> bool:
    """Set the fields of an object; false where the arguments do not fit, which Python says best."""
    names = [f.name for f in fields if f.init and not f.kw_only]
    given = dict(zip(names, args)) | kwargs  # noqa: B905 - there may be fewer
    if len(args) > len(names) or len(given) != len(args) + len(kwargs):
        return False
    used = 0
    put = object.__setattr__ if frozen else setattr
    for f in fields:
        name = f.name
        if f.init and name in given:
            used += 1
            put(self, name, given[name])
        elif f.default_factory is not MISSING:
            put(self, name, f.default_factory())
        elif f.default is not MISSING:
            put(self, name, f.default)
        elif f.init:
            return False
    return used == len(given)


class _Default:
    """Stands for what a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Default()


def _init(cls: Any) -> Callable[..., None]:
    """Write the ``__init__`` of a class."""
    frozen = cls.__dataclass_params__.frozen
    scope: dict[str, Any] = {"_set": object.__setattr__, "_made": _FACTORY}
    parameters, keywords, lines = ["self"], ["*"], []
    fields = dataclasses.fields(cls)
    for field in fields:
        name, value, default = field.name, field.name, ""
        if field.default_factory is not MISSING:
            scope[f"_make_{name}"] = field.default_factory
            default = "=_made"
            value = f"_make_{name}() if {name} is _made else {name}"
        elif field.default is not MISSING:
            scope[f"_is_{name}"] = field.default
            default = f"=_is_{name}"
        if field.init:
            (keywords if field.kw_only else parameters).append(name + default)
        elif not default:
            continue
        else:
            value = default[1:] if default != "=_made" else f"_make_{name}()"
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    listed = ", ".join(parameters + (keywords if len(keywords) > 1 else []))
    exec(f"def __init__({listed}):\n " + "\n ".join(lines or ["pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return made


class _Signature:
    """What ``inspect.signature`` says of a class whose ``__init__`` may not be written yet."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __get__(self, instance: object, cls: Any) -> Any:
        if instance is not None or cls.__init__ is not self._owner.__init__:
            raise AttributeError("__signature__")
        from inspect import Parameter, Signature

        taken = [f for f in dataclasses.fields(self._owner) if f.init]
        listed = []
        for f in sorted(taken, key=lambda f: bool(f.kw_only)):
            kind = Parameter.KEYWORD_ONLY if f.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            default = Parameter.empty if f.default is MISSING else f.default
            if f.default_factory is not MISSING:
                default = _FACTORY
            listed.append(Parameter(f.name, kind, default=default, annotation=f.type))
        return Signature(listed, return_annotation=None)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Return what gives the values of fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equal(cls: Any) -> Callable[[Any, object], bool]:
    values = _values([f.name for f in dataclasses.fields(cls) if f.compare])

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    return __eq__


def _hash(cls: Any) -> Callable[[Any], int]:
    fields = dataclasses.fields(cls)
    values = _values([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    return lambda self: hash(values(self))


def _setattr(self: Any, name: str, value: Any) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delattr(self: Any, name: str) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_fixed(self: Any, name: str) -> bool:
    """Whether an attribute is a field; a dataclass itself has no others."""
    return "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
