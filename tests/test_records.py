"""Dataclasses that are written late are those of the standard library in all that one can see."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from edgeinfer import records

T = TypeVar("T")


def classes(dataclass: Callable[..., Any]) -> dict[str, Any]:
    """Define classes of every kind that the package has."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 0.5
        tags: list[str] = field(default_factory=list)
        made: int = field(init=False, default=7)
        found: list[int] = field(init=False, default_factory=list)
        hidden: str = field(default="h", repr=False, compare=False)
        unhashed: int = field(default=1, hash=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x: expected 0 or more")

    @dataclass
    class Plain:
        """A record that can be changed."""

        a: int
        b: dict[str, int] = field(default_factory=dict)

    @dataclass(slots=True)
    class One:
        """A single field."""

        value: float = float("nan")

    @dataclass(frozen=True, slots=True)
    class Nothing:
        """No field."""

    @dataclass(frozen=True, kw_only=True)
    class Named:
        """Fields by keyword."""

        a: int
        b: int = 2

    @dataclass(slots=True)
    class Mixed:
        """One field by keyword."""

        a: int
        b: int = field(kw_only=True)
        c: int = 3

    @dataclass(frozen=True, slots=True, eq=False)
    class ById:
        """Each is only itself."""

        a: int

    @dataclass(frozen=True)
    class Cached:
        """What is computed once."""

        a: int

        @cached_property
        def twice(self) -> int:
            return 2 * self.a

    @dataclass(frozen=True, slots=True)
    class Own:
        """Methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True, slots=True)
    class Of(Generic[T]):
        """Something of a kind."""

        item: T

    @dataclass(frozen=True, slots=True)
    class Longer(Point):
        """A point with a name."""

        name: str = ""

    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        """What can be sorted."""

        a: int

    return {k: v for k, v in locals().items() if isinstance(v, type)}


NAN = float("nan")

OURS, THEIRS = classes(records.dataclass), classes(dataclasses.dataclass)
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records, "FEW", 0)
    COMPILED = classes(records.dataclass)

USES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "repr": lambda c: repr(c["Point"](1, tags=["a"])),
    "repr of what holds itself": lambda c: _nested(c["Plain"]),
    "defaults": lambda c: dataclasses.astuple(c["Point"](1)),
    "a default is made anew": lambda c: c["Point"](1).tags is c["Point"](1).tags,
    "as a dictionary": lambda c: dataclasses.asdict(c["Point"](1, 2.0)),
    "replace": lambda c: dataclasses.astuple(dataclasses.replace(c["Point"](1), y=3.0)),
    "replace what is not given": lambda c: dataclasses.replace(c["Point"](1), made=3),
    "equal": lambda c: (c["Point"](1) == c["Point"](1), c["Point"](1) == c["Point"](2)),
    "what is not compared": lambda c: c["Point"](1, hidden="a") == c["Point"](1, hidden="b"),
    "equal to another kind": lambda c: (c["Point"](1) == 1, c["Plain"](1) == c["One"](1)),
    "the same NaN": lambda c: c["One"](NAN) == c["One"](NAN),
    "no field": lambda c: (c["Nothing"]() == c["Nothing"](), hash(c["Nothing"]())),
    "hash": lambda c: hash(c["Named"](a=1)) == hash((1, 2)),
    "hash of the unhashable": lambda c: hash(c["Point"](1)),
    "hash of what changes": lambda c: hash(c["Plain"](1)),
    "hash of a single field": lambda c: hash(c["Of"](3)),
    "by itself": lambda c: (c["ById"](1) == c["ById"](1), hash(c["ById"](1)) != 0),
    "set": lambda c: setattr(c["Point"](1), "x", 2),
    "delete": lambda c: delattr(c["Point"](1), "x"),
    "change": lambda c: _changed(c["Plain"](1)),
    "twice": lambda c: c["Plain"](1, a=3),
    "what is not taken": lambda c: c["Point"](1, made=3),
    "too few": lambda c: c["Plain"](),
    "too many": lambda c: c["Plain"](1, {}, 3),
    "unknown": lambda c: c["Plain"](1, c=3),
    "by position": lambda c: c["Named"](1),
    "keyword among others": lambda c: dataclasses.astuple(c["Mixed"](1, b=2)),
    "refused": lambda c: c["Point"](-1),
    "cached": lambda c: c["Cached"](4).twice,
    "own methods": lambda c: (repr(c["Own"](1)), c["Own"](1) == c["Own"](2)),
    "own equality is not hashed": lambda c: hash(c["Own"](1)),
    "generic": lambda c: repr(c["Of"](3)),
    "inherited": lambda c: repr(c["Longer"](1, name="n")),
    "inherited from a class": lambda c: repr(_below(c["Named"])(a=1)),
    "attributes of what inherits": lambda c: _set_below(c["Cached"]),
    "sorted": lambda c: c["Ordered"](1) < c["Ordered"](2),
    "match": lambda c: [k.__match_args__ for k in c.values()],
    "slots": lambda c: [k.__dict__.get("__slots__") for k in c.values()],
    "fields": lambda c: [[(f.name, f.type) for f in dataclasses.fields(k)] for k in c.values()],
    "signature": lambda c: [str(inspect.signature(k)) for k in c.values()],
    "signature below": lambda c: str(inspect.signature(_below(c["Named"]))),
    "signature of another": lambda c: str(inspect.signature(_other(c["Named"]))),
    "documentation": lambda c: [k.__doc__ for k in c.values()],
    "annotations": lambda c: c["Plain"](1).__init__.__annotations__,
    "copy": lambda c: dataclasses.astuple(copy.deepcopy(c["Point"](1, tags=["a"]))),
    "state": lambda c: c["Point"](1).__getstate__(),
    "a frozen one below by the standard library": lambda c: repr(_frozen_below(c["Named"])(a=1)),
    "one that changes below a frozen one": lambda c: dataclasses.dataclass(_below(c["Named"])),
}


def _nested(kind: Any) -> str:
    made = kind(1)
    made.b["self"] = made
    return repr(made)


def _changed(made: Any) -> Any:
    made.a = 9
    del made.b
    return made.__dict__


def _below(kind: Any) -> Any:
    return type("Below", (kind,), {"__annotations__": {}})


def _other(kind: Any) -> Any:
    return type("Other", (kind,), {"__init__": lambda self, z: None})


def _frozen_below(kind: Any) -> Any:
    return dataclasses.dataclass(frozen=True)(_below(kind))


def _set_below(kind: Any) -> Any:
    made = _below(kind)(1)
    made.other = 3
    try:
        made.a = 4
    except FrozenInstanceError as e:
        return made.other, str(e)
    return None


def outcome(use: Callable[[dict[str, Any]], Any], kinds: dict[str, Any]) -> tuple[Any, str]:
    try:
        return use(kinds), ""
    except Exception as e:
        return type(e), str(e)


@pytest.mark.parametrize("use", USES)
def test_all_do_the_same(use: str) -> None:
    expected = outcome(USES[use], THEIRS)
    assert outcome(USES[use], OURS) == expected
    assert outcome(USES[use], COMPILED) == expected


@records.dataclass(frozen=True, slots=True)
class Stored:
    """Something that is stored."""

    a: int
    b: tuple[int, ...] = ()


def test_objects_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Stored(1, (2, 3)))) == Stored(1, (2, 3))


def test_a_class_compiles_nothing_but_the_init_of_many_objects() -> None:
    compiled = []

    def watch(frame: Any, event: str, what: Any) -> None:
        if event == "c_call" and what is exec:
            compiled.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:

        @records.dataclass(frozen=True, slots=True)
        class Late:
            """A class."""

            a: int
            b: int = 2

        few = [Late(i) for i in range(records.FEW)]
        before = len(compiled)
        more = [Late(i, 3) for i in range(2)]
    finally:
        sys.setprofile(None)
    assert before == 0
    assert len(compiled) == 1
    assert (few[1], more[1].b, repr(few[1])) == (Late(1, 2), 3, f"{Late.__qualname__}(a=1, b=2)")


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match="default_factory"):

        @records.dataclass
        class _Wrong:
            """A list for all."""

            a: list[int] = []  # noqa: RUF012


def test_what_is_no_field_cannot_be_set_either() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'z'"):
        OURS["Point"](1).z = 2
