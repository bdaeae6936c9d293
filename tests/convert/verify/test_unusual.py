"""Ids and ends of types as made-up integers."""

import numpy as np
import pytest

from edgeinfer.convert.verify.unusual import free_integers, unusual
from tests.convert.lower.running import model


@pytest.mark.parametrize(
    ("body", "free"),
    [
        ("y = Equal(x, k)", True),
        ("y = Mod(x, k)", True),
        ("y = Mod(k, x)", False),
        ("y = Div(x, m)", False),
        ("y = ConstantOfShape(x)", False),
        ("y = Gather(k, x)", False),
        ("f = Cast<to = 1>(x) y = Cast<to = 7>(f)", True),
    ],
)
def test_only_what_is_computed_with_is_free(body: str, free: bool) -> None:
    known = "int64[4] k = {7, 8, 9, 3}, int64 m = {-1}"
    of = model(f"g (int64[4] x) => (int64[n] y) <{known}> {{ {body} }}")
    assert (free_integers(of) == {"x"}) == free


def test_ids_and_ends_are_there() -> None:
    base = {"x": np.zeros((4, 8), np.int32), "f": np.zeros(3, np.float32)}
    found = dict(unusual(base, frozenset({"x"})))
    assert list(found) == ["ids", "ends"]
    ids, ends = found["ids"]["x"], found["ends"]["x"]
    assert {1790000031, 1790000001, 16777217, -1790000001} <= set(ids.ravel().tolist())
    assert {np.iinfo(np.int32).min, np.iinfo(np.int32).max} <= set(ends.ravel().tolist())
    assert found["ids"]["f"] is base["f"]
