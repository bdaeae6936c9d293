from collections.abc import Mapping

import numpy as np
import pytest

from edgeinfer.accuracy import TaskMeasure
from edgeinfer.convert.quantize.search.quality import Judgement


def logits(*winners: int) -> list[dict[str, np.ndarray]]:
    found = []
    for winner in winners:
        row = np.full((1, 5), -1.0, np.float32)
        row[0, winner] = 3.0
        found.append({"y": row})
    return found


def test_classes_are_compared_by_their_winner() -> None:
    judgement = Judgement([*logits(0, 1, 2, 3)])
    assert judgement.loss(logits(0, 1, 2, 3)).drop == 0.0
    loss = judgement.loss(logits(0, 1, 2, 4))
    assert (loss.drop, loss.metric) == (0.25, "agreement with the float model")
    assert loss.error > 0.25


def test_rows_without_a_clear_winner_do_not_count() -> None:
    tie = [{"y": np.array([[1.0, 1.01, 0.0]], np.float32)}]
    expected = [*logits(0, 1), *logits(2)]
    expected[2]["y"][0] = [1.0, 1.01, 0.0, 0.0, 0.0]
    actual = [*logits(0, 1), {"y": np.array([[1.01, 1.0, 0.0, 0.0, 0.0]], np.float32)}]
    assert Judgement([*expected]).loss(actual).drop == 0.0
    assert tie[0]["y"].argmax() == 1


def test_labels_are_the_task() -> None:
    judgement = Judgement([*logits(0, 1, 2, 3)], labels=[0, 1, 2, 0])
    loss = judgement.loss(logits(0, 1, 2, 0))
    assert (loss.quality, loss.drop, loss.metric) == (1.0, 0.0, "top1")
    assert judgement.loss(logits(0, 1, 4, 4)).drop == 0.25


def test_a_measure_of_the_users_own_is_relative() -> None:
    def measure(outputs: object, labels: object) -> float:
        return float(outputs[0]["y"][0, 0])  # type: ignore[index]

    judgement = Judgement([{"y": np.array([[50.0]])}], metric=measure)
    assert judgement.loss([{"y": np.array([[49.0]])}]).drop == pytest.approx(0.02)
    assert judgement.loss([{"y": np.array([[60.0]])}]).drop == 0.0


def test_a_lost_channel_is_seen_beside_a_large_one() -> None:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 640, (1, 4, 50)).astype(np.float32)
    scores = rng.uniform(0.5, 1, (1, 4, 50)).astype(np.float32)
    expected = [{"y": np.concatenate([boxes, scores], axis=1)}]
    lost = [{"y": np.concatenate([boxes, np.zeros_like(scores)], axis=1)}]
    assert Judgement([*expected]).loss(lost).drop == 1.0
    near = [{"y": expected[0]["y"] + 0.05}]
    assert Judgement([*expected]).loss(near).drop < 0.01


def test_nan_and_other_shapes_lose_everything() -> None:
    expected = [{"y": np.ones((1, 2, 3), np.float32)}]
    assert Judgement([*expected]).loss([{"y": np.full((1, 2, 3), np.nan)}]).drop == 1.0
    assert Judgement([*expected]).loss([{"y": np.ones((1, 2, 4))}]).drop == 1.0


def test_integers_are_compared_exactly() -> None:
    expected = [{"y": np.arange(10)}]
    actual = [{"y": np.where(np.arange(10) == 3, 7, np.arange(10))}]
    assert Judgement([*expected]).loss(actual).drop == pytest.approx(0.1)


def test_what_is_measured_has_a_name() -> None:
    """A table that says "drop 1 %" says of what."""

    def recall(outputs: object, labels: object) -> float:
        return 1.0

    right: list[Mapping[str, np.ndarray]] = [*logits(0, 1, 1)]
    assert Judgement(right).measure == "agreement with the float model"
    assert Judgement(right, (0, 1, 1)).measure == "top1"
    assert Judgement(right, (0, 1, 1), TaskMeasure("f1")).measure == "f1"
    assert Judgement(right, (0, 1, 1), recall).measure == "recall"
