"""Which parts of a graph are worth a try."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.regions import candidates
from tests.convert.lower.regions.made import model


def _found(source: ir.Model, us: dict[str, float], *without: str) -> list[set[str | None]]:
    nodes = [n for n in source.graph if n.name not in without]
    return [{n.name for n in c.nodes} for c in candidates.find(source, us, nodes)]


CHAIN = """(float[64] x) => (float[64] y) <float[64] a, float[64] b, float[64] c>
{ a = Exp(x)  b = Sqrt(a)  c = Neg(b)  y = Tanh(c) }"""


def test_neighbours_are_one_part() -> None:
    assert _found(model(CHAIN), dict.fromkeys("abcy", 5.0))[0] == {"a", "b", "c", "y"}


def test_what_has_no_lowering_parts_them() -> None:
    found = _found(model(CHAIN), dict.fromkeys("abcy", 5.0), "b")
    assert found[0] == {"c", "y"}
    assert {"a"} in found
    assert all("b" not in part for part in found)


def test_no_way_leads_out_of_a_part_and_back() -> None:
    source = model(
        """(float[64] x) => (float[64] y) <float[64] a, float[64] b, float[64] c, float[64] d>
        { a = Exp(x)  b = Sqrt(a)  c = Neg(a)  d = Abs(c)  y = Add(b, d) }"""
    )
    assert {"a", "b", "c", "d", "y"} in _found(source, dict.fromkeys("abcdy", 5.0))
    # With d outside, a and y cannot be in one part, nor c and y.
    for part in _found(source, dict.fromkeys("abcdy", 5.0), "d"):
        assert not {"a", "y"} <= part
        assert not {"c", "y"} <= part


def test_open_sizes_and_bodies_are_left() -> None:
    source = model(
        """(float[N] x, float[8] z) => (float[N] y, float[8] v) <float[N] a, float[8] u>
        { a = Exp(x)  y = Sqrt(a)  u = Exp(z)  v = Sqrt(u) }"""
    )
    assert _found(source, dict.fromkeys("ayuv", 5.0)) == [{"u", "v"}]


def test_large_products_are_left_to_the_engine() -> None:
    source = model(
        """(float[64,64] x, float[64,64] w) => (float[64,64] y)
        <float[64,64] a, float[64,64] b, float[64,64] c>
        { a = Exp(x)  b = MatMul(a, w)  c = Sqrt(b)  y = Tanh(c) }"""
    )
    us = {"a": 50.0, "b": 900.0, "c": 50.0, "y": 50.0}
    assert all("b" not in part for part in _found(source, us))
    # A small one is more call than arithmetic.
    assert {"a", "b", "c", "y"} in _found(source, {**us, "b": 3.0})


def test_the_part_that_promises_most_comes_first() -> None:
    source = model(
        """(float[64] x, float[64] z) => (float[64] y, float[64] v) <float[64] a, float[64] u>
        { a = Exp(x)  y = Sqrt(a)  u = Exp(z)  v = Sqrt(u) }"""
    )
    found = candidates.find(source, {"a": 2, "y": 2, "u": 30, "v": 30}, list(source.graph))
    assert [{n.name for n in c.nodes} for c in found] == [{"u", "v"}, {"a", "y"}]
    assert found[0].engine_us == 60
    assert found[0].gain_us > found[1].gain_us > 0
    assert found[0].title == "2 operators, u to v"


def test_nothing_is_promised_where_nothing_is_spent() -> None:
    assert _found(model(CHAIN), {}) == []
