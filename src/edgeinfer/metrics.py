"""How close an output is to the expected one, and the budgets that say whether that will do.

One table serves the conversion gate and the re-check on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """Distance between an actual and an expected output.

    Attributes:
        count: elements compared.
        max_abs: largest absolute difference of the finite elements.
        max_rel: ``max_abs`` over the largest finite magnitude expected.
        sqnr_db: signal to error power in dB; infinite when equal.
        channel_sqnr_db: the same, of the worst slice along any axis, so that a small-valued
            channel (scores beside pixel coordinates) is not hidden by a large one.
        cosine: of the two flattened outputs; 1.0 when both are zero.
        top1: share of decided rows with the same winner; None unless it looks like a classifier.
        top1_rows: decided rows, the weight of ``top1``.
        mismatches: elements that differ, of integer, boolean and string outputs.
        nonfinite: elements that are NaN or infinite in one and not, or differently, in the other.
        problem: why the two cannot be compared (shape, element type); empty when they can.
    """

    count: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    sqnr_db: float = float("inf")
    channel_sqnr_db: float = float("inf")
    cosine: float = 1.0
    top1: float | None = None
    top1_rows: int = 0
    mismatches: int = 0
    nonfinite: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data: infinities become None."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Budget:
    """What an output may lose.

    Attributes:
        max_abs: an output whose every element is this close passes whatever its scale.
        max_rel: largest ``OutputMetrics.max_rel``.
        sqnr_db: smallest ``OutputMetrics.sqnr_db``.
        channel_sqnr_db: smallest ``OutputMetrics.channel_sqnr_db``.
        cosine: smallest ``OutputMetrics.cosine``.
        top1: smallest ``OutputMetrics.top1``.
        mismatch: largest share of integer, boolean and string elements that differ.
    """

    max_abs: float
    max_rel: float
    sqnr_db: float
    channel_sqnr_db: float
    cosine: float
    top1: float = 1.0
    mismatch: float = 0.0


BUDGETS: dict[str, Budget] = {}
"""By precision name."""


def budget_for(precision: str) -> Budget:
    """Return the default budget.

    Raises:
        UsageError: no budget has this name.
    """
    raise NotImplementedError


def compare(expected: Array, actual: Array) -> OutputMetrics:
    """Measure; never raises, a shape or type that differs is a ``problem``."""
    raise NotImplementedError


def check(metrics: OutputMetrics, budget: Budget) -> list[str]:
    """List what leaves the budget, one line each; empty when all is well."""
    raise NotImplementedError


def worst(metrics: list[OutputMetrics]) -> OutputMetrics:
    """Combine the measurements of one output over several vectors."""
    raise NotImplementedError
