"""What is left out before boxes are decoded would not have reached the threshold."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.decode.boxes import from_anchors, from_grid
from edgeinfer.decode.grouping import ByNumpy, least_above_background, least_raw
from edgeinfer.decode.scores import activated
from edgeinfer.heads import AnchorLayer, DetectAnchors, DetectGrid

LAYERS = (AnchorLayer(8, (9.0, 20.0)),)


class All(ByNumpy):
    """Leaves nothing out."""

    def peaks(self, scores: Any, first: int, axis: int) -> Any:
        return np.full(scores.shape[1 - axis], np.inf, np.float32)


def _noise(rng: np.random.Generator, *shape: int) -> Any:
    made = rng.normal(0, 4, shape).astype(np.float32)
    for odd in (np.nan, np.inf, -np.inf):
        made[rng.random(shape) < 0.003] = odd
    return made


def _same(one: Any, other: Any) -> None:
    for part in ("corners", "scores", "classes", "extra"):
        a, b = getattr(one, part), getattr(other, part)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.9, 0.9999999, 1.0])
@pytest.mark.parametrize("activation", ["none", "sigmoid"])
def test_grids(activation: Any, threshold: float) -> None:
    rng = np.random.default_rng(0)
    head = DetectGrid(activation=activation, threshold=threshold)
    for first, objectness, negative in itertools.product((True, False), repeat=3):
        raw = _noise(rng, 300, 9)
        raw[:, :4] = rng.uniform(0, 60, (300, 4))
        if not negative:
            raw[:, 4:] = abs(raw[:, 4:])
        given = {"o": np.ascontiguousarray(raw.T)[None] if first else raw[None]}
        asked = replace(head, channels_first=first, objectness=objectness)
        with np.errstate(all="ignore"):
            _same(from_grid(given, asked, (64, 64)), from_grid(given, asked, (64, 64), All()))


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
@pytest.mark.parametrize("background", [True, False])
def test_anchors(background: bool, activation: Any, threshold: float) -> None:
    rng = np.random.default_rng(0)
    head = DetectAnchors(
        ("b",), ("s",), LAYERS, activation=activation, background=background, threshold=threshold
    )
    given = {"b": rng.normal(0, 9, (1, 128, 4)).astype(np.float32), "s": _noise(rng, 1, 128, 6)}
    with np.errstate(all="ignore"):
        _same(from_anchors(given, head, (64, 64)), from_anchors(given, head, (64, 64), All()))


def test_nothing_below_the_raw_limit_reaches_the_threshold() -> None:
    raw = np.linspace(-20, 20, 400_001, dtype=np.float32)
    for threshold in (1e-6, 0.01, 0.5, 0.99, 0.999999, 0.9999999, 1.0):
        reached = raw[activated(raw, "sigmoid") >= threshold]
        assert reached.size
        assert reached.min() >= least_raw(threshold, "sigmoid")
        pairs = np.stack([np.zeros_like(raw), raw], axis=1)
        reached = raw[activated(pairs, "softmax")[:, 1] >= threshold]
        assert reached.size == 0 or reached.min() >= least_above_background(threshold)


def test_much_is_left_out() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(-6, 1, (1000, 85)).astype(np.float32)
    raw[7, 30] = 5.0
    seen: list[int] = []

    class Counting(ByNumpy):
        def groups(self, corners: Any, *given: Any, **how: Any) -> Any:
            seen.append(len(corners))
            return super().groups(corners, *given, **how)

    head = DetectGrid(activation="sigmoid")
    raw[:, 2:4] = 10
    assert len(from_grid({"o": raw[None]}, head, (64, 64), Counting()).scores) == 1
