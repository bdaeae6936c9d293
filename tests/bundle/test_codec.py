from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from edgeinfer.bundle.codec import decode, encode


@dataclass(frozen=True, slots=True)
class Cat:
    lives: int
    kind: Literal["cat"] = "cat"


@dataclass(frozen=True, slots=True)
class Dog:
    good: bool
    kind: Literal["dog"] = "dog"


@dataclass(frozen=True, slots=True)
class House:
    name: str
    rooms: tuple[int | str | None, ...]
    area: float = 1.0
    pets: dict[str, Cat | Dog] = field(default_factory=dict)
    owner: Cat | None = None


def test_round_trip_is_the_identity() -> None:
    house = House("a", (1, "N", None), 2.5, {"tom": Cat(9), "rex": Dog(True)}, Cat(1))
    assert decode(House, encode(house)) == (house, [])


def test_defaults_fill_missing_keys() -> None:
    assert decode(House, {"name": "a", "rooms": []}) == (House("a", ()), [])


def test_integers_are_taken_for_numbers() -> None:
    house, _ = decode(House, {"name": "a", "rooms": [], "area": 3})
    assert house is not None
    assert isinstance(house.area, float)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "the document: expected an object, received an array"),
        ({"rooms": []}, "name: missing"),
        ({"name": 1, "rooms": []}, "name: expected a string, received 1"),
        ({"name": "\ud800", "rooms": []}, r"name: expected a string, received '\ud800'"),
        ({"name": "a", "rooms": {}}, "rooms: expected an array, received an object"),
        (
            {"name": "a", "rooms": [1, 2.5]},
            "rooms[1]: expected an integer or a string or null, received 2.5",
        ),
        (
            {"name": "a", "rooms": [True]},
            "rooms[0]: expected an integer or a string or null, received true",
        ),
        ({"name": "a", "rooms": [2**63]}, "rooms[0]: expected an integer or a string or null"),
        ({"name": "a", "rooms": [], "area": float("nan")}, "area: expected a finite number"),
        ({"name": "a", "rooms": [], "area": float("inf")}, "area: expected a finite number"),
        ({"name": "a", "rooms": [], "area": 10**400}, "area: expected a number, received int"),
        ({"name": "a", "rooms": [], "x y": 1}, "['x y']: unknown key"),
        (
            {"name": "a", "rooms": [], "pets": {"t": {"lives": 1}}},
            "pets.t.kind: expected one of cat, dog, received null",
        ),
        (
            {"name": "a", "rooms": [], "pets": {"t": {"kind": "cat", "lives": "9"}}},
            "pets.t.lives: expected an integer, received '9'",
        ),
        (
            {"name": "a", "rooms": [], "owner": {"lives": 1, "kind": "dog"}},
            "owner.kind: expected 'cat', received 'dog'",
        ),
    ],
)
def test_a_problem_names_the_key_and_what_was_expected(data: Any, problem: str) -> None:
    value, problems = decode(House, data)
    assert value is None
    assert [p[: len(problem)] for p in problems] == [problem]


def test_all_problems_come_at_once() -> None:
    _, problems = decode(House, {"rooms": [[], {}], "area": "big", "z": 1})
    assert len(problems) == 5


def test_unknown_keys_may_be_ignored() -> None:
    assert decode(House, {"name": "a", "rooms": [], "z": 1}, extra_keys=True)[1] == []
