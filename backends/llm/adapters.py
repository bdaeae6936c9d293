"""Low-rank adapters of a tape, as the library of kernels takes them; see ``adapters.c``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from edgeinfer.backends.llm.arrays import ARGUMENT, Arrays, aligned
from edgeinfer.llm.tape import Adapted, Tape
from edgeinfer.types import Array

_BLOCK, _PANEL = 8, 16
"""Rows of ``A`` and of ``B`` that are an item."""

ARGUMENTS = 2
"""Arguments that each phase takes."""

_PAIR = np.dtype([("a", "<u8"), ("b", "<u8"), ("scale", "<f4"), ("rank", "<i4")])
_ADAPTED = np.dtype(
    [
        *((name, "<u8") for name in ("pairs", "adapter", "ends", "x", "low", "y")),
        *((name, "<i4") for name in ("parts", "columns", "most", "stride", "fresh", "zero")),
    ]
)


def most_rank(tape: Tape) -> int:
    """Return the largest rank of a tape's adapters."""
    pairs = (pair for adapter in tape.adapters for pair in adapter.matrices.values())
    return max((pair.rank for pair in pairs), default=0)


def arrays_of(tape: Tape, rows: int, ffn: int) -> dict[str, Array]:
    """Return the arrays that adapters need, for so many tokens."""
    if not tape.adapters:
        return {}
    # Queries, keys and values are the most parts that a product has.
    return {
        "adapter": aligned((rows,), "int32"),
        "low": aligned((rows, 3 * most_rank(tape)), "float32"),
        "more": aligned((rows, 2 * ffn), "float32"),
    }


class AdaptedPhases:
    """What the two phases around a product are given.

    Args:
        tape: that has the adapters.
        given: Arrays of the executor.
    """

    def __init__(self, tape: Tape, given: Arrays) -> None:
        self._tape, self._given = tape, given
        self._most = most_rank(tape)

    def items(self, adapted: Adapted) -> tuple[int, int]:
        """Items of the phase before a product and of the one that adds to it."""
        low = len(adapted.parts) * (self._most // _BLOCK)
        return low, sum(adapted.parts.values()) // _PANEL

    def arguments(self, adapted: Adapted) -> int:
        """Return the address of their arguments, one thread's behind the other's."""
        given, parts = self._given, list(adapted.parts)
        pairs = np.zeros((len(self._tape.adapters), len(parts)), _PAIR)
        for row, adapter in zip(pairs, self._tape.adapters, strict=True):
            for at, name in enumerate(parts):
                if (pair := adapter.matrices.get(name)) is not None:
                    addresses = given.place(f"w:{pair.a}"), given.place(f"w:{pair.b}")
                    row[at] = (*addresses, pair.scale, pair.rank)
        ends = np.array([*accumulate(adapted.parts.values())], np.int32) // _PANEL
        made = np.zeros(1, _ADAPTED)
        names = {"adapter": "adapter", "x": adapted.source, "low": "low", "y": adapted.target}
        numbers: Mapping[str, int] = {
            **{field: given.place(name) for field, name in names.items()},
            "pairs": pairs.ctypes.data,
            "ends": ends.ctypes.data,
            "parts": len(parts),
            "columns": adapted.columns,
            "most": self._most,
            "stride": adapted.stride,
            "fresh": bool(adapted.calls),
        }
        for field, number in numbers.items():
            made[field] = number
        spans = given.span_places
        whole = np.zeros((len(spans), ARGUMENTS), ARGUMENT)
        whole["value"][:, 0] = made.ctypes.data
        whole["value"][:, 1] = spans
        given.keep(pairs, ends, made, whole)
        return int(whole.ctypes.data)
