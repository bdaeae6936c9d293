"""Where it goes wrong: the first diverging node, and the smallest sub-model that still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeinfer.metrics import Budget
from edgeinfer.types import Array, Feeds

LowerAndRun = Callable[[ir.Model, Feeds], dict[str, Array]]
"""Lower a (sub-)model, load it in the engine, run it once; outputs by name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``explain`` found.

    Attributes:
        node: name of the first node, in topological order, whose result leaves the budget; empty
            when the failure could not be reproduced or narrowed down.
        op: its operator.
        cause: name of the node that has to be computed by the engine for ``node`` to be wrong;
            the same as ``node`` unless an error starts small and grows.
        nodes: names of the nodes of the smallest failing sub-model.
        model: the sub-model, its inputs and what the oracle expects of it.
        inputs: for ``model``.
        expected: for ``model``.
        breaches: what is wrong with its outputs.
        note: how sure this is: reproduced, not reproduced, stopped by the time limit.
    """

    node: str
    op: str
    cause: str
    nodes: tuple[str, ...]
    model: ir.Model | None
    inputs: dict[str, Array]
    expected: dict[str, Array]
    breaches: tuple[str, ...]
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data (names and notes; no tensors)."""
        raise NotImplementedError

    def save(self, folder: Path) -> list[Path]:
        """Write ``model.onnx``, ``inputs.npz``, ``expected.npz`` and ``README.txt``; list them."""
        raise NotImplementedError


def explain(
    model: ir.Model,
    feeds: Feeds,
    lower_and_run: LowerAndRun,
    budget: Budget,
    *,
    seconds: float = 120.0,
) -> Finding:
    """Find the node that a lowering or an engine gets wrong.

    Args:
        model: the normalised graph that was lowered; it is not modified.
        feeds: the vector that failed.
        lower_and_run: computes a sub-model the way the failing variant does.
        budget: the variant's.
        seconds: when to stop narrowing down.
    """
    raise NotImplementedError
