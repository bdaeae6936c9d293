"""Dataclasses whose ``__init__`` is written when an object is first made.

The standard library compiles up to nine methods where a class is defined, which takes half a
millisecond. A load imports a hundred such classes and makes objects of a third of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, **more):
        """Do what ``dataclasses.dataclass`` does; there are no pseudo-fields such as ``InitVar``.

        What asks for more than fields by keyword is left to the standard library.
        """

        def made(cls):
            above = [p for c in cls.__mro__[1:] if (p := vars(c).get("__dataclass_params__"))]
            # It says best what may not inherit from what.
            if more.keys() - {"kw_only"} or any(p.frozen != frozen for p in above):
                return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, **more)(cls)
            return _dataclass(cls, above, frozen, slots, eq, **more)

        return made if cls is None else made(cls)


def _dataclass(cls: Any, above: list[Any], frozen: bool, slots: bool, eq: bool, **more: Any) -> Any:
    for asked in above:
        asked.frozen = False
    try:
        # It alone knows the rules of fields and slots; what it would compile is left out.
        bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, **more)
        made: Any = bare(cls)
    finally:
        for asked in above:
            asked.frozen = frozen
    asked = made.__dataclass_params__
    asked.init, asked.repr, asked.eq, asked.frozen = True, True, eq, frozen
    first = _late(made, "__init__", _init)
    methods: dict[str, Any] = {"__init__": first, "__repr__": _repr}
    methods["__signature__"] = _Signature(made, first)
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


class _Default:
    """Stands for what a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


def _init(cls: Any) -> Callable[..., None]:
    """Write the ``__init__`` of a class."""
    frozen = cls.__dataclass_params__.frozen
    scope: dict[str, Any] = {"_set": object.__setattr__, "_made": _Default()}
    parameters, keywords, lines = ["self"], ["*"], []
    fields = dataclasses.fields(cls)
    for field in fields:
        name, value, default = field.name, field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            default = "=_made"
            value = f"_make_{name}() if {name} is _made else {name}"
        elif field.default is not dataclasses.MISSING:
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

    def __init__(self, owner: Any, first: Callable[..., None]) -> None:
        self._owner, self._first = owner, first

    def __get__(self, instance: object, cls: Any) -> Any:
        if instance is not None or cls.__init__ is not self._owner.__init__:
            raise AttributeError("__signature__")
        import inspect

        if cls.__init__ is self._first:
            self._owner.__init__ = _init(self._owner)
        own = inspect.signature(self._owner.__init__)
        return own.replace(parameters=list(own.parameters.values())[1:])


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
