"""How much of the float model's quality is left: one number that a budget is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer import channels
from edgeinfer.accuracy import Metric, Outputs, TaskMeasure
from edgeinfer.errors import UsageError
from edgeinfer.metrics import Budget, budget_for
from edgeinfer.records import dataclass
from edgeinfer.types import Array

TOP1 = TaskMeasure("top1")
"""What is measured where classes are known and nobody says what counts."""

_DECIDED = 0.1
"""Share of a row's largest magnitude by which its winner must lead to count as an answer."""

_CHANNELS = 256
"""Sizes up to which an axis is one of channels, each with a meaning and a magnitude of its own."""

_FEW = 16
"""Elements below which a channel is not judged by itself."""

Runs = list[tuple[Array, Array]]
"""What was expected and what came out; runs of one shape are one array."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What was lost against the float model.

    Attributes:
        drop: share of the quality that is gone; 0.01 is one percent.
        error: share of the outputs' energy that is wrong, of the worst output or channel; finer
            than ``drop``, and what layers are compared by.
        quality: what was measured, in the metric's own unit.
        metric: its name.
        margin: standard error of ``drop``, where it was requested.
        noise: share of the outputs' energy that is wrong, the mean of all outputs: where a drop
            is one of a few answers or the worst channel is lost already, this still tells.
    """

    drop: float
    error: float
    quality: float
    metric: str
    margin: float = 0.0
    noise: float = 0.0


@dataclass(slots=True)
class Judgement:
    """The float model's answers, and what counts as losing them.

    Attributes:
        expected: outputs of the float model, run by run.
        labels: class of each sample, where known.
        metric: the user's own measure; else top-1 with labels, agreement without.
    """

    expected: list[Outputs]
    labels: Sequence[Any] = ()
    metric: Metric | None = None
    _float: float | None = field(default=None, init=False)

    @property
    def measure(self) -> str:
        """Return the name of what is measured."""
        if isinstance(self.metric, TaskMeasure):
            return self.metric.name
        if self.metric is not None:
            return str(getattr(self.metric, "__name__", "your metric"))
        return TOP1.name if self._has_classes() else "agreement with the float model"

    def loss(self, actual: Sequence[Outputs]) -> Loss:
        """Compare another model's outputs for the same runs."""
        found = self.signed_loss(actual)
        return replace(found, drop=max(0.0, found.drop))

    def signed_loss(self, actual: Sequence[Outputs]) -> Loss:
        """Compare likewise; the drop of a better model is below zero."""
        shares = [_noise_share(e, a) for e, a in self._pairs(actual) if e[0].dtype.kind == "f"]
        noise = float(np.mean(shares)) if shares else 0.0
        error = max((_error(a, b) for a, b in self._pairs(actual)), default=0.0)
        drop, quality, metric = self.lost(actual)
        return Loss(drop, error, quality, metric, noise=noise)

    def lost(self, actual: Sequence[Outputs]) -> tuple[float, float, str]:
        """Return the drop, the quality and the metric's name; errors are not looked at."""
        if self.metric is not None:
            before = self._before(self.metric)
            after = float(self.metric(actual, self.labels))
            if not math.isfinite(after):
                return 1.0, 0.0, self.measure
            drop = (before - after) / abs(before) if before else before - after
            return drop, after, self.measure
        if self._has_classes():
            before = self._before(TOP1)
            after = TOP1(actual, self.labels)
            return before - after, after, self.measure
        kept = [_agreement(a, b) for a, b in self._pairs(actual)]
        worst = min(kept, default=1.0)
        return 1.0 - worst, worst, self.measure

    def _pairs(self, actual: Sequence[Outputs]) -> list[tuple[list[Array], list[Array]]]:
        names = list(self.expected[0]) if self.expected else []
        return [
            ([np.asarray(e[n]) for e in self.expected], [np.asarray(a[n]) for a in actual])
            for n in names
        ]

    def _before(self, metric: Metric) -> float:
        if self._float is None:
            self._float = float(metric(self.expected, self.labels))
            if not math.isfinite(self._float):
                raise UsageError(
                    f"the metric gives {self._float} for the float model's own outputs: there is "
                    "no share of it to lose"
                )
        return self._float

    def _has_classes(self) -> bool:
        if not self.labels or not all(isinstance(x, int) for x in self.labels):
            return False
        scores = [np.asarray(e[TOP1.judged(e)]) for e in self.expected]
        rows = sum(len(each) for each in scores if each.ndim == 2)
        return rows == len(self.labels)


def _agreement(expected: list[Array], actual: list[Array]) -> float:
    """Return the share of answers that stay, or of the energy where there are no answers."""
    if expected[0].dtype.kind != "f":
        equal = [np.mean(e == a) if e.shape == a.shape else 0.0 for e, a in _both(expected, actual)]
        return float(np.mean(equal))
    if (rows := _answers(expected)) is not None:
        a = np.concatenate([x.reshape(-1, x.shape[-1]) for x in actual])
        e = np.concatenate([x.reshape(-1, x.shape[-1]) for x in expected])
        return float(np.mean(e[rows].argmax(axis=1) == a[rows].argmax(axis=1)))
    return max(0.0, 1.0 - _error(expected, actual))


def _both(a: list[Array], b: list[Array]) -> list[tuple[Array, Array]]:
    return list(zip(a, b, strict=True))


def _answers(expected: list[Array]) -> npt.NDArray[np.intp] | None:
    """Return the rows with a clear winner, if the output answers with classes at all."""
    if any(x.ndim != 2 or x.shape[1] < 2 for x in expected):
        return None
    if len({x.shape[1] for x in expected}) != 1:
        return None
    rows = np.concatenate(expected).astype(np.float64)
    ranked = np.sort(rows, axis=1)
    decided = ranked[:, -1] - ranked[:, -2] > _DECIDED * np.abs(rows).max(axis=1)
    # A vector that means a place in space, not a choice, seldom has one element far ahead.
    return np.flatnonzero(decided) if decided.mean() >= 0.5 else None


def _error(expected: list[Array], actual: list[Array]) -> float:
    """Return noise over signal, of the whole or of the worst channel, over all runs."""
    if expected[0].dtype.kind != "f":
        return 1.0 - float(np.mean([np.array_equal(e, a) for e, a in _both(expected, actual)]))
    if any(e.shape != a.shape for e, a in _both(expected, actual)):
        return 1.0
    runs = channels.of_one_shape(_both(expected, actual))
    worst = _share(runs)
    if not np.isfinite(worst):
        return 1.0
    budget = budget_for("static_wi8_ai8").among(expected)
    for axis in _channel_axes(expected):
        worst = max(worst, _worst_channel(runs, axis, budget))
    if (lost := channels.worst_channel(expected, actual, budget)) is not None:
        worst = max(worst, 10.0 ** (-lost.kept_db / 10.0))
    return min(1.0, worst)


def _noise_share(expected: list[Array], actual: list[Array]) -> float:
    if any(e.shape != a.shape for e, a in _both(expected, actual)):
        return math.inf
    return _share(channels.of_one_shape(_both(expected, actual)))


def _share(runs: Runs) -> float:
    """Return noise over signal of the whole; infinite where there is no comparing."""
    signal = sum(float(np.sum(np.square(e, dtype=np.float64))) for e, _ in runs)
    noise = sum(float(np.sum(_noise(e, a))) for e, a in runs)
    if not np.isfinite(noise):
        return math.inf
    return noise / signal if signal > 0 else float(noise > 0)


def _noise(expected: Array, actual: Array) -> npt.NDArray[np.float64]:
    return np.asarray(np.square(expected.astype(np.float64) - actual.astype(np.float64)))


def _channel_axes(arrays: list[Array]) -> tuple[int, ...]:
    """Return the axes of channels: the second, and of three-dimensional outputs the last too."""
    rank = arrays[0].ndim
    found = [a for a in ((1, 2) if rank == 3 else (1,)) if rank > 2]
    return tuple(
        a
        for a in found
        if len({x.shape[a] for x in arrays}) == 1 and 2 <= arrays[0].shape[a] <= _CHANNELS
    )


def _worst_channel(runs: Runs, axis: int, budget: Budget) -> float:
    """Return the worst noise over signal of the channels whose error is more than a rounding."""
    size = runs[0][0].shape[1 + axis]
    others = tuple(i for i in range(runs[0][0].ndim) if i != 1 + axis)
    signal, noise, peak = np.zeros(size), np.zeros(size), np.zeros(size)
    count = 0
    for e, a in runs:
        signal += np.sum(np.square(e, dtype=np.float64), axis=others)
        squares = _noise(e, a)
        noise += squares.sum(axis=others)
        peak = np.maximum(peak, np.sqrt(squares.max(axis=others, initial=0.0)))
        count += e.size // size
    # The same floor as the gate's, so that the two agree on what a channel is judged for.
    heard = (peak > budget.channel_floor) & (signal > 0)
    if count < _FEW or not heard.any():
        return 0.0
    return float((noise[heard] / signal[heard]).max())
