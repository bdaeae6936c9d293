"""Made-up integers name each place once that a model writes to, where that can be."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.places import Places
from edgeinfer.convert.verify.vectors import make_vectors
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g '
ROWS = """(float[6,2] c, float[T,2] u, int64[T] p) => (float[6,2] y) <int64[1] last = {-1}> {
    i = Unsqueeze(p, last) y = ScatterND(c, i, u) }"""
ELEMENTS = """(float[5,3] c, float[2,3] u, int64[2,3] p) => (float[5,3] y) {
    y = ScatterElements<axis = -2>(c, p, u) }"""
SUMS = ROWS.replace("ScatterND(", 'ScatterND<reduction = "add">(')
ONE_PLACE = ROWS.replace("6,2", "1,2").replace("T", "4")


def model(text: str) -> ir.Model:
    return ir.from_onnx_text(HEAD + text)


def feeds(text: str, places: list[object]) -> dict[str, Array]:
    rng, p = np.random.default_rng(0), np.array(places)
    c = rng.standard_normal((5, 3) if text is ELEMENTS else (6, 2)).astype(np.float32)
    shape = p.shape if text is ELEMENTS else (len(p), 2)
    return {"c": c, "u": rng.standard_normal(shape).astype(np.float32), "p": p}


@pytest.mark.parametrize(
    ("text", "places", "clashes"),
    [
        (ROWS, [0, 5, 2], False),
        (ROWS, [0, 5, 0], True),
        (ROWS, [5, 2, -1], True),
        (ELEMENTS, [[0, 1, 2], [1, 2, 3]], False),
        (ELEMENTS, [[0, 1, 2], [1, 1, 3]], True),
        (ELEMENTS, [[4, 1, 2], [-1, 2, 3]], True),
        (SUMS, [0, 5, 0], False),
    ],
)
def test_it_sees_places_that_are_named_twice(
    text: str, places: list[object], clashes: bool
) -> None:
    assert Places(model(text)).clash(feeds(text, places)) is clashes


@pytest.mark.parametrize("text", [ROWS, ELEMENTS])
def test_it_finds_others_between_the_same_ends(text: str) -> None:
    twice = feeds(text, [[0, 1, 2], [1, 1, 4]] if text is ELEMENTS else [0, 5, 0])
    places = Places(model(text))
    made = places.apart(twice, seed=1)
    assert not places.clash(made)
    assert made["p"].min() >= twice["p"].min()
    assert made["p"].max() <= twice["p"].max()
    np.testing.assert_array_equal(made["u"], twice["u"])


def made_up(text: str) -> list[dict[str, Array]]:
    source = model(text)
    with Oracles(source) as oracles:
        return [dict(v.feeds) for v in make_vectors(source, oracles.inputs, oracles=oracles)]


@pytest.mark.parametrize("text", [ROWS, ELEMENTS])
def test_no_vector_writes_twice_to_a_place(text: str) -> None:
    vectors, places = made_up(text), Places(model(text))
    assert vectors
    assert not any(places.clash(v) for v in vectors)


def test_where_every_input_does_they_are_made_all_the_same() -> None:
    assert made_up(ONE_PLACE)
