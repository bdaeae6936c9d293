"""How far a drop may be off for having been measured on these samples and no others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from edgeinfer.accuracy import Metric, Outputs, TaskMeasure
from edgeinfer.convert.quantize.search.quality import Judgement, Loss
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

BLOCKS = 16
"""Parts of the samples that are left out in turn."""

LOST = 0.1
"""Drop beyond which no budget is near, so that its margin is of no use."""


@dataclass(slots=True)
class Margins:
    """The standard error of drops, by leaving out parts of the samples in turn.

    Neighbours stay together: samples of one recording, or that are compared with each other. A
    measure that is the user's own code has no margin: it may need all of the runs at once.

    Attributes:
        whole: what judges all runs.
    """

    whole: Judgement
    _parts: list[tuple[int, int, Judgement]] | None = field(default=None, init=False)

    def loss(self, actual: Sequence[Outputs]) -> Loss:
        """Compare another model's outputs for the same runs; the loss has its margin."""
        found = self.whole.loss(actual)
        if found.drop > LOST:
            return found
        actual = _shortened(actual, self.whole.metric)
        drops = [
            part.lost([*actual[:low], *actual[high:]])[0] for low, high, part in self._judges()
        ]
        if len(drops) < 2:
            return found
        return replace(found, margin=math.sqrt(float(np.var(drops)) * (len(drops) - 1)))

    def _judges(self) -> list[tuple[int, int, Judgement]]:
        """Return the runs that are left out, and what judges the others."""
        if self._parts is None:
            expected = _shortened(self.whole.expected, self.whole.metric)
            found = (self._without(i, expected) for i in range(BLOCKS))
            self._parts = [p for p in found if p is not None]
        return self._parts

    def _without(
        self, index: int, expected: Sequence[Outputs]
    ) -> tuple[int, int, Judgement] | None:
        metric, labels = self.whole.metric, self.whole.labels
        runs = len(expected)
        each = len(labels) // max(1, runs)
        named = metric is None or isinstance(metric, TaskMeasure)
        if not named or runs < BLOCKS or each * runs != len(labels):
            return None
        low, high = index * runs // BLOCKS, (index + 1) * runs // BLOCKS
        left = [*labels[: low * each], *labels[high * each :]]
        part = Judgement([*expected[:low], *expected[high:]], left, metric)
        try:
            # No share can be lost of a measure that finds nothing in these samples.
            return (low, high, part) if part.lost(part.expected)[1] else None
        except UsageError:
            return None


def _shortened(outputs: Sequence[Outputs], metric: Metric | None) -> Sequence[Outputs]:
    """Return what a measure takes for the same and reads in less time: it does so 16 times."""
    return metric.shortened(outputs) if isinstance(metric, TaskMeasure) else outputs
