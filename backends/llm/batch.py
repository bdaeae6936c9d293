"""What a library of kernels does before and behind a tape; see ``convert/llm/batch.c``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from edgeinfer.errors import InputError
from edgeinfer.llm.step import PAGE, StepBatch
from edgeinfer.types import Array

_ALONE = 64
_ARRAYS = ("tokens", "positions", "owner", "rows", "tiles1", "table")
USUAL = 32
"""Tokens of a batch whose arrays are remembered, at most: those come again that everybody's next
token is in."""
_NUMBERS = ("vocab", "positions", "sequences", "columns", "pages", "window")


class Room(ctypes.Structure):
    """What there is room for, and the arrays that a batch is copied to."""

    _fields_ = (
        *((f"most_{name}", ctypes.c_int32) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    )


class BatchCheck:
    """Looks at batches before anything is computed.

    Kernels write wherever a row points, so a row that points outside is refused.

    Args:
        max_tokens: most tokens of a step.
        hidden: elements of an embedding.
        numbers: ends of what a batch has, by ``_NUMBERS``, and the number of ``adapters``;
            ``window`` is 0 for none.
    """

    def __init__(self, max_tokens: int, hidden: int, **numbers: int) -> None:
        self._most, self._hidden, self._numbers = max_tokens, hidden, numbers

    def __call__(self, batch: StepBatch) -> bool:
        """Say whether no sequence has two tokens in a batch.

        Raises:
            InputError: something is outside; the message lists what.
        """
        count, outputs = len(batch.tokens), len(batch.rows)
        if found := self._sizes(batch, count, outputs):
            raise _refused(found)
        for values in (batch.tokens, batch.positions, batch.owner, batch.rows, batch.table):
            _address(values)
        sequences, columns = batch.table.shape
        positions = min(self._numbers["positions"], columns * PAGE)
        ends = (self._numbers["vocab"], positions, sequences, count)
        parts = (batch.tokens, batch.positions, batch.owner, batch.rows)
        code = sum(
            _is_outside(values, end) << at
            for at, (values, end) in enumerate(zip(parts, ends, strict=True))
        )
        starts = np.flatnonzero(np.r_[True, batch.owner[1:] != batch.owner[:-1]])
        if not code:
            code = self._pages(batch, starts)
        if code:
            raise _refused(self._outside(code, count, sequences, columns))
        _check_embedded(batch, count)
        return len(starts) == count

    def _pages(self, batch: StepBatch, starts: Array) -> int:
        """Look at the pages that tokens read and write."""
        window = self._numbers["window"]
        begins = np.maximum(batch.positions - window + 1, 0) if window else batch.positions * 0
        first = np.minimum.reduceat(begins, starts)[:, None] // PAGE
        last = np.maximum.reduceat(batch.positions, starts)[:, None] // PAGE
        table = batch.table[batch.owner[starts]]
        at = np.arange(table.shape[1])
        used = (at >= first) & (at <= last)
        beyond, holes = used & (table >= self._numbers["pages"]), used & (table < 0)
        return int(beyond.any()) << 4 | int(holes.any()) << 5

    def _sizes(self, batch: StepBatch, count: int, outputs: int) -> list[str]:
        """List what has another size or type than it should."""
        found = []
        numbers = self._numbers
        sequences, columns = batch.table.shape
        if not 0 < count <= self._most:
            found.append(f"{count} tokens of 1 to {self._most}")
        if sequences > numbers["sequences"] or columns > numbers["columns"]:
            most = f"{numbers['sequences']} x {numbers['columns']}"
            found.append(f"a table of {sequences} x {columns} in {most}")
        if outputs > self._most:
            found.append(f"{outputs} rows of at most {self._most}")
        for name, values in (("positions", batch.positions), ("owner", batch.owner)):
            if len(values) != count:
                found.append(f"{len(values)} {name} for {count} tokens")
        if batch.adapter is not None and len(batch.adapter):
            first, last = int(batch.adapter.min()), int(batch.adapter.max())
            if len(batch.adapter) != count:
                found.append(f"{len(batch.adapter)} adapters for {count} tokens")
            elif first < -1 or last >= numbers["adapters"]:
                found.append(f"adapters {first} to {last}; this model has {numbers['adapters']}")
        if batch.embedded is not None and batch.embeddings is not None:
            shape = len(batch.embedded), self._hidden
            if batch.embeddings.shape != shape:
                found.append(f"embeddings of {batch.embeddings.shape}")
        return found

    def _outside(self, code: int, count: int, sequences: int, columns: int) -> list[str]:
        numbers = self._numbers
        positions = min(numbers["positions"], columns * PAGE)
        known = (
            f"tokens beyond 0 to {numbers['vocab'] - 1}",
            f"positions beyond 0 to {positions - 1}",
            f"owner beyond 0 to {sequences - 1}",
            f"rows beyond 0 to {count - 1}",
            f"pages beyond 0 to {numbers['pages'] - 1}",
            "a table with holes",
        )
        return [text for at, text in enumerate(known) if code >> at & 1]


class Taker(BatchCheck):
    """Takes batches: checks them and copies them to the arrays of an executor.

    Args:
        library: Library of the kernels.
        arrays: that batches are copied to.
        max_tokens: most tokens of a step.
        numbers: ends of what a batch has, by ``_NUMBERS``, and the number of ``adapters``;
            ``window`` is 0 for none.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        arrays: Mapping[str, Array],
        max_tokens: int,
        **numbers: int,
    ) -> None:
        super().__init__(max_tokens, arrays["x"].shape[1], **numbers)
        self._arrays = arrays
        addresses = [arrays[name].ctypes.data for name in _ARRAYS]
        self._room = Room(*(numbers[name] for name in _NUMBERS), *addresses)
        self._given = ctypes.byref(self._room)
        self._known: dict[int, tuple[tuple[Array, ...], tuple[int, ...]]] = {}
        self._take = library.batch_take
        self._take.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int] * 4

    def __call__(self, batch: StepBatch) -> bool:
        """Take a batch; say whether no sequence has two tokens in it.

        Raises:
            InputError: something is outside; the message lists what.
        """
        count, numbers = len(batch.tokens), self._numbers
        given = self._places(batch, count)
        code = self._take(self._given, *given)
        if code & ~_ALONE:
            raise _refused(self._outside(code, count, *given[-2:]))
        if batch.embedded is not None and batch.embeddings is not None:
            _check_embedded(batch, count)
            self._arrays["tokens"][batch.embedded] = -1
            self._arrays["x"][batch.embedded] = batch.embeddings
        if batch.adapter is not None and numbers["adapters"]:
            self._arrays["adapter"][:count] = batch.adapter
        return bool(code)

    def _places(self, batch: StepBatch, count: int) -> tuple[int, ...]:
        """Return addresses and sizes of a batch's arrays.

        Raises:
            InputError: sizes or types are not those that there is room for.
        """
        arrays = batch.tokens, batch.positions, batch.owner, batch.rows, batch.table
        known = self._known.get(count)
        if known is not None and batch.adapter is batch.embedded is None:
            for one, other in zip(arrays, known[0], strict=True):
                if one is not other:
                    break
            else:
                return known[1]
        outputs = len(batch.rows)
        if found := self._sizes(batch, count, outputs):
            raise _refused(found)
        addresses = (*map(_address, arrays), count, outputs, *batch.table.shape)
        if count <= USUAL:
            self._known[count] = arrays, addresses
        return addresses


def _is_outside(values: Array, end: int) -> bool:
    return bool(len(values)) and not 0 <= values.min() <= values.max() < end


def _check_embedded(batch: StepBatch, count: int) -> None:
    if batch.embedded is not None and _is_outside(batch.embedded, count):
        raise _refused(["an embedding of no token"])


def _address(values: Array) -> int:
    """Address of integers of 32 bits that lie one behind the other."""
    if values.dtype != np.int32 or not values.flags.c_contiguous:
        raise _refused([f"{values.dtype} where int32 in the usual order is needed"])
    return int(values.__array_interface__["data"][0])


def _refused(found: list[str]) -> InputError:
    return InputError("batch", "what the executor has room for", "; ".join(found))
