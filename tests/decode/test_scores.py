"""Scores of classes to names."""

import numpy as np
import pytest

from edgeinfer.decode.scores import activated, classify
from edgeinfer.heads import Classify

LABELS = ("a", "b", "c")


def test_best_first_and_of_equal_ones_the_first() -> None:
    found = classify(np.array([0.1, 0.7, 0.7]), Classify(top=2), LABELS)
    assert [(c.index, c.label) for c in found] == [(1, "b"), (2, "c")]
    assert found[0].score == pytest.approx(0.7)


def test_threshold_is_of_the_activated_score() -> None:
    raw = np.array([2.0, 0.0, -2.0])
    head = Classify(activation="softmax", threshold=0.1)
    shares = np.exp(raw) / np.exp(raw).sum()
    found = classify(raw, head, LABELS)
    np.testing.assert_allclose([c.score for c in found], shares[:2], rtol=1e-6)


def test_a_class_without_label_has_its_number() -> None:
    assert classify(np.array([0.0, 1.0]), Classify(top=1), ("a",))[0].label == "#1"


def test_large_scores_do_not_overflow() -> None:
    raw = np.array([1e4, -1e4, 0.0], np.float32)
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(activated(raw, "softmax"), [1, 0, 0], atol=1e-6)
        np.testing.assert_allclose(activated(raw, "sigmoid"), [1, 0, 0.5], atol=1e-6)
    np.testing.assert_array_equal(activated(raw, "none"), raw)
