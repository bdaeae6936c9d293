from __future__ import annotations

from edgeinfer.convert.lower.registry import Const, Registry
from edgeinfer.convert.lower.signature import check_against_schema
from tests.convert.lower.test_registry import Toy, ops


def test_toy_lowerings_have_the_signatures_of_the_standard() -> None:
    assert check_against_schema(ops, 24) == []


def test_wrong_signatures_are_found() -> None:
    own = Registry("own", dtypes=frozenset())

    @own.lower("Softmax", since=13)
    def _(g: Toy, x: str, *, axis: int = 1, beta: float = 1.0) -> str: ...  # type: ignore[empty-body]

    @own.lower("Concat", since=13)
    def _(g: Toy, inputs: str, *, axis: int = 0) -> str: ...  # type: ignore[empty-body]

    @own.lower("Clip", since=13)
    def _(g: Toy, input: str, min: Const, max: Const | None = None) -> str: ...  # type: ignore[empty-body]

    @own.lower("Klip", since=1)
    def _(g: Toy) -> str: ...  # type: ignore[empty-body]

    assert check_against_schema(own, 24) == [
        "Softmax: inputs ['x'], expected ['input']",
        "Softmax: attributes ['axis', 'beta'], expected ['axis']",
        "Softmax: attribute 'axis': default 1, expected -1",
        "Concat: input 'inputs': variadic in one of the two only",
        "Concat: attribute 'axis': default 0, expected <class 'inspect._empty'>",
        "Clip: input 'min': optional in one of the two only",
        "Klip: no such operator at version 24",
    ]
