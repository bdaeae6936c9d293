"""Options declared once: keywords, command lines, their help and the manual are made of the fields.

An option is a field of a frozen dataclass. Its type is that of the keyword; its metadata say how a
command line spells it and what it does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from edgeinfer.records import dataclass

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741 # as P and R
R = TypeVar("R")
S = TypeVar("S")

_KEY = "option"
_WIDTH = 96
"""Of a docstring's lines."""


@dataclass(frozen=True, slots=True)
class Section:
    """Options that belong together in help and manual.

    Attributes:
        title: Their subject.
        example: A command line with some of them.
        names: Their names, in order; of declared options the fields say it.
    """

    title: str
    example: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """How a command line spells the value of an option.

    Attributes:
        metavar: Placeholder in help.
        kind: Name of the values that it takes, see ``edgeinfer.cli.names.KINDS``.
        multiple: Whether the option may be repeated; its value then has all words.
        read: Gives the value for the word, or the words; None where it is itself.
        write: Gives the words for a value, likewise.
    """

    metavar: str = ""
    kind: str = ""
    multiple: bool = False
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Iterable[str]] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option beyond its name, type and default.

    Attributes:
        text: What it does; the first sentence is the command line's help, all are in Python's and
            in the manual.
        section: Where help lists it; None where only Python has it.
        flags: Names on a command line.
        value: What follows them.
        required: Whether a command line must have it.
    """

    text: str
    section: Section | None = None
    flags: tuple[str, ...] = ()
    value: Value = Value()
    required: bool = False

    def named(self, name: str) -> Option:
        """Return it as the option of this name."""
        has_flag = self.flags or self.section is None
        return self if has_flag else replace(self, flags=(f"--{name.replace('_', '-')}",))

    @property
    def help(self) -> str:
        """The first sentence."""
        first, _, more = self.text.partition(". ")
        return f"{first}." if more else first

    def words(self, value: Any) -> Iterator[str]:
        """Write a value as a command line has it."""
        if isinstance(value, bool):
            yield from self.flags[:1] if value else ()
            return
        write = self.value.write or (lambda v: v if self.value.multiple else (v,))
        for each in write(value):
            yield from (self.flags[0], f"{each:g}" if isinstance(each, float) else str(each))

    def read(self, given: Any) -> Any:
        """Return the value that a command line stands for."""
        read = self.value.read
        return given if read is None or given is None else read(given)


def about(text: str, section: Section | None = None, *flags: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field that is declared by ``dataclasses.field``."""
    return {_KEY: Option(text, section, flags, **more)}


def option(
    default: Any, text: str, section: Section | None = None, *flags: str, **more: Any
) -> Any:
    """Declare a field; a default that is a class is made anew for each object.

    One that is in a section of the help is spelled as its name where no flags are given.
    """
    made = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return dataclasses.field(**made, metadata=about(text, section, *flags, **more))


def options_of(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass by name, its own before those that it inherits."""
    found = [f for f in dataclasses.fields(kind) if _KEY in f.metadata]
    found.sort(key=lambda f: f.name not in kind.__annotations__)
    return {f.name: f.metadata[_KEY].named(f.name) for f in found}


def default_of(kind: type, name: str) -> Any:
    """Return what an option is where nobody says."""
    field = next(f for f in dataclasses.fields(kind) if f.name == name)
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def values_of(options: Any) -> dict[str, Any]:
    """Return the values of all fields by name; nothing is copied."""
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}


def called_with(options: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Let a function of options be called with their fields, and describe these in its docstring.

    Type checkers see the fields as arguments; so do ``help()`` and notebooks.
    """

    def wrapped(function: Callable[[O], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(options(*args, **_said(kwargs)))

        _describe(call, function, options)
        return call

    return wrapped


def method_called_with(
    options: Callable[P, O],
) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Do the same for a method."""

    def wrapped(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, options(*args, **_said(kwargs)))

        _describe(call, method, options)
        return call

    return wrapped


def _said(kwargs: Any) -> Any:
    """Leave out what is None, which stands for the default, whatever that is."""
    return {name: value for name, value in kwargs.items() if value is not None}


def _describe(call: Any, function: Callable[..., Any], options: Any) -> None:
    own = inspect.signature(function)
    *before, _ = own.parameters.values()
    known = inspect.signature(options).parameters
    listed = [*before, *(known[name] for name in options_of(options))]
    call.__signature__ = own.replace(parameters=listed)
    if function.__doc__:
        args = "\n".join(_described(options))
        call.__doc__ = inspect.cleandoc(function.__doc__).replace("{options}", f"Args:\n{args}")


def _described(kind: type) -> Iterator[str]:
    for name, known in options_of(kind).items():
        line = f"    {name}:"
        for word in known.text.split():
            if len(line) + len(word) >= _WIDTH:
                yield line
                line = " " * 7
            line = f"{line} {word}"
        yield line
