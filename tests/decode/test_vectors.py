"""Hidden states to one vector."""

import numpy as np
import pytest

from edgeinfer.decode.vectors import embed
from edgeinfer.errors import RunError
from edgeinfer.heads import Embed

STATES = np.array([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]]], np.float32)
MASK = np.array([[1, 1, 0]])


def test_mean_of_the_tokens_that_count() -> None:
    found = embed(STATES, Embed(pooling="mean", normalize=False), MASK)
    np.testing.assert_array_equal(found.vector, [2, 4])
    assert found.vector.dtype == np.float32
    every = embed(STATES[:, :2], Embed(pooling="mean", normalize=False))
    np.testing.assert_array_equal(every.vector, [2, 4])


def test_first_token_and_no_pooling() -> None:
    first = embed(STATES, Embed(pooling="first", normalize=False), MASK)
    np.testing.assert_array_equal(first.vector, [1, 2])
    np.testing.assert_allclose(embed(STATES[:, 0] * 3, Embed()).vector, np.array([1, 2]) / 5**0.5)


def test_no_length_stays_none() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(embed(np.zeros((1, 4)), Embed()).vector, [0, 0, 0, 0])
        none = embed(STATES, Embed(pooling="mean"), MASK * 0)
        np.testing.assert_array_equal(none.vector, [0, 0])


def test_similarity() -> None:
    a, b = (embed(np.array([v], np.float32), Embed(normalize=False)) for v in ((3, 0), (5, 5)))
    assert a.similarity(b) == pytest.approx(0.5**0.5)
    assert a.similarity(a) == pytest.approx(1)
    assert a.similarity(embed(np.zeros((1, 2)), Embed())) == 0.0


@pytest.mark.parametrize(
    ("shape", "head"),
    [((2, 4), Embed()), ((2, 3, 4), Embed(pooling="mean")), ((1, 4), Embed(pooling="first"))],
)
def test_wrong_shapes(shape: tuple[int, ...], head: Embed) -> None:
    with pytest.raises(RunError, match="head: expected"):
        embed(np.zeros(shape), head)
