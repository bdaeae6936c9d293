"""How much a drop depends on which samples were taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgeinfer import accuracy
from edgeinfer.accuracy import Outputs, TaskMeasure
from edgeinfer.convert.quantize.search.margin import BLOCKS, LOST, Margins
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.types import Array


def answers(right: list[bool]) -> list[Outputs]:
    """Scores of two classes for samples of class 0."""
    return [{"y": np.array([[1.0, 0.0] if r else [0.0, 1.0]], np.float32)} for r in right]


def judged(count: int, gained: int = 0) -> Margins:
    """A float model that is wrong on the first ``gained`` samples, all of class 0."""
    expected = answers([False] * gained + [True] * (count - gained))
    return Margins(Judgement(expected, [0] * count, TaskMeasure("top1")))


def test_one_of_n_has_the_error_of_a_share() -> None:
    count = 160
    margins = judged(count)
    loss = margins.loss(answers([False] + [True] * (count - 1)))
    assert loss.drop == pytest.approx(1 / count)
    # The standard error of a share of 1/n is about 1/n.
    assert loss.margin == pytest.approx(1 / count, rel=0.15)


def test_more_samples_say_more() -> None:
    found = []
    for count in (64, 256, 1024):
        lost = [i % 32 == 5 for i in range(count)]
        rng = np.random.default_rng(0)
        rng.shuffle(lost)
        found.append(judged(count).loss(answers([not x for x in lost])).margin)
    assert found[0] > found[1] > found[2] > 0
    expected = math.sqrt(1 / 32 * 31 / 32 / 1024)
    assert found[2] == pytest.approx(expected, rel=0.5)


def test_gains_do_not_hide_losses() -> None:
    count = 160
    margins = judged(count, gained=3)
    lost = [True] * (count - 3) + [False] * 3
    loss = margins.loss(answers(lost))
    assert loss.drop == 0.0
    assert loss.margin > 1 / count


def test_the_same_answers_leave_nothing_open() -> None:
    margins = judged(64)
    assert margins.loss(answers([True] * 64)).margin == 0.0


def test_without_a_margin() -> None:
    few = judged(BLOCKS - 1)
    assert few.loss(answers([True] * (BLOCKS - 1))).margin == 0.0
    calls = []

    def own(outputs: Sequence[Outputs], labels: Sequence[Any]) -> float:
        del labels
        calls.append(len(outputs))
        return 1.0

    Margins(Judgement(answers([True] * 64), [0] * 64, own)).loss(answers([True] * 64))
    assert set(calls) == {64}
    lost = judged(64).loss(answers([False] * 32 + [True] * 32))
    assert lost.drop > LOST
    assert lost.margin == 0.0


def test_energy_has_one_too() -> None:
    rng = np.random.default_rng(0)
    expected: list[Outputs] = [
        {"y": rng.standard_normal((1, 1, 64)).astype(np.float32)} for _ in range(64)
    ]
    noise = [0.01 if i else 1.0 for i in range(64)]
    actual = [
        {"y": e["y"] + n * rng.standard_normal((1, 1, 64)).astype(np.float32)}
        for e, n in zip(expected, noise, strict=True)
    ]
    loss = Margins(Judgement(expected)).loss(actual)
    # All of the error is one sample's.
    assert loss.margin == pytest.approx(loss.drop, rel=0.2)


def test_texts_are_read_once_and_give_the_same_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    classes = ("", "a", "b", "c")
    metric = TaskMeasure("cer", classes)
    expected: list[Outputs] = [{"y": rng.random((1, 12, 4), np.float32)} for _ in range(32)]
    actual: list[Outputs] = [
        {"y": np.asarray(e["y"] + 0.03 * rng.random((1, 12, 4), np.float32))} for e in expected
    ]
    labels = ["".join(classes[i] for i in accuracy._read("cer", e["y"])[0]) for e in expected]
    # An image in which nothing is read.
    actual[3] = {"y": np.eye(4, dtype=np.float32)[np.zeros((1, 12), int)]}
    quick = Margins(Judgement(expected, labels, metric)).loss(actual)
    assert 0 < quick.margin < 1
    reads: list[int] = []
    plain = accuracy._read

    def read(name: str, output: Array) -> list[list[int]]:
        reads.append(output.size if output.dtype.kind == "f" else 0)
        return plain(name, output)

    monkeypatch.setattr(accuracy, "_read", read)
    Margins(Judgement(expected, labels, metric)).loss(actual)
    # Once for the whole, once to shorten, of the float model and of the other.
    assert sum(size == 48 for size in reads) == 4 * len(labels)
    monkeypatch.setattr(TaskMeasure, "shortened", lambda self, outputs: list(outputs))
    assert Margins(Judgement(expected, labels, metric)).loss(actual) == quick
