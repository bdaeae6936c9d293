"""Concurrent calls of one model as one run of its engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Feeds, TensorSpec


@dataclass(frozen=True, slots=True)
class Batching:
    """How calls of one model are put together.

    Attributes:
        size: most calls in a batch.
        wait_ms: how long the first call of a batch waits for others where a thread is free; calls
            that wait for a thread anyway are put together without it.
    """

    size: int = 8
    wait_ms: float = 0.0


def together(run: Callable[[Feeds], Outputs], several: Sequence[Feeds]) -> list[Outputs]:
    """Run the inputs of several calls as one batch along the first axis."""
    if len(several) == 1:
        return [run(several[0])]
    names = several[0].keys()
    sizes = [len(next(iter(feeds.values()))) for feeds in several]
    results = run({n: np.concatenate([feeds[n] for feeds in several]) for n in names})
    found, start = [], 0
    for size in sizes:
        end = start + size
        # Parts are copied, or one kept result would hold the whole batch.
        found.append({name: array[start:end].copy() for name, array in results.items()})
        start = end
    return found


def alike(feeds: Feeds, others: Feeds) -> bool:
    """Whether two calls differ in their first axes alone."""
    return all(feeds[name].shape[1:] == array.shape[1:] for name, array in others.items())


def check_batching(
    name: str,
    batching: Batching,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> None:
    """Refuse batches of a model that does not allow them.

    Raises:
        UsageError: says what is missing.
    """
    if batching.size < 2 or batching.wait_ms < 0:
        raise UsageError(
            f"batching: expected size 2 or more and wait_ms 0 or more, received {batching}"
        )
    axes = {spec.shape[0] if spec.shape else None for spec in (*inputs, *outputs)}
    if not inputs or len(axes) != 1 or not isinstance(next(iter(axes)), str):
        found = ", ".join(str(spec) for spec in (*inputs, *outputs))
        raise UsageError(
            f"model {name!r}: batches need one named first axis that all inputs and outputs "
            f"share, received {found}; convert it with an open batch"
        )
