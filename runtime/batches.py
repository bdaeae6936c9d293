"""Concurrent calls of one model as one run of its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Array, Feeds, TensorSpec

_FEW, MOST_JOINED_BYTES = 500, 4 << 20
"""Elements up to which NumPy copies an array without letting other threads of Python in, and bytes
of a batch whose copy may keep them waiting: about half a millisecond."""


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
    results = run({n: joined([feeds[n] for feeds in several]) for n in names})
    found: list[Outputs] = [{} for _ in several]
    for name, array in results.items():
        start = 0
        for part, size in zip(found, sizes, strict=True):
            # Parts are copied, or one kept result would hold the whole batch.
            part[name] = array[start : start + size].copy()
            start += size
    return found


def joined(arrays: Sequence[Array]) -> Array:
    """Return arrays behind each other along the first axis, for a run that begins now.

    NumPy lets other threads in at each array, who then work for as long as they like while the
    engine has nothing to do; once it runs they have all the time. So up to a size none is let in.
    """
    first = arrays[0]
    if first.size <= _FEW or first.dtype == object:
        return np.concatenate(arrays)
    size = sum(array.nbytes for array in arrays)
    if size > MOST_JOINED_BYTES or not all(array.flags.c_contiguous for array in arrays):
        return np.concatenate(arrays)
    made = np.empty((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
    room, start = _bytes(made), 0
    for array in arrays:
        end = start + array.nbytes
        room[start:end] = _bytes(array)
        start = end
    return made


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def size_of(arrays: Mapping[str, Array]) -> int:
    """Return the bytes of a run's inputs or outputs."""
    size = 0
    for array in arrays.values():
        size += array.nbytes
    return size


def alike(feeds: Feeds, others: Feeds) -> bool:
    """Whether two calls differ in their first axes alone."""
    # Each waiting call is asked, and a generator takes three times as long.
    for name, array in others.items():  # noqa: SIM110
        if feeds[name].shape[1:] != array.shape[1:]:
            return False
    return True


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
