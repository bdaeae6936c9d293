"""Low-rank adapters of a tape on a GPU; see ``convert/llm/adapted.cu``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from edgeinfer.backends.llm.adapters import most_rank
from edgeinfer.llm.gpu import THREADS
from edgeinfer.llm.tape import Adapted, Call, Products, Tape
from edgeinfer.types import Array

_BLOCK = 8
"""Rows of ``A`` that a block of threads takes."""

_PAIR = np.dtype([("a", "<u8"), ("b", "<u8"), ("scale", "<f4"), ("rank", "<i4")])


def adapter_sizes(tape: Tape, rows: int) -> dict[str, int]:
    """Bytes of the arrays that adapters need, for so many tokens."""
    found = [p.adapted for p in tape.phases if isinstance(p, Products) and p.adapted is not None]
    if not found:
        return {}
    parts = max(len(adapted.parts) for adapted in found)
    wide = max(adapted.stride for adapted in found)
    return {"low": rows * parts * most_rank(tape) * 4, "more": rows * wide * 4}


class CudaAdapters:
    """What the kernels before a product are given.

    Args:
        tape: that has the adapters.
        adapted: what they change of the product.
    """

    def __init__(self, tape: Tape, adapted: Adapted) -> None:
        self._tape, self._adapted = tape, adapted

    def tables(self, weights: int) -> dict[str, Array]:
        """Return where matrices lie, by adapter and part, and the ends of parts.

        Args:
            weights: Address of the weights.
        """
        parts = list(self._adapted.parts)
        pairs = np.zeros((len(self._tape.adapters), len(parts)), _PAIR)
        for row, adapter in zip(pairs, self._tape.adapters, strict=True):
            for at, name in enumerate(parts):
                if (pair := adapter.matrices.get(name)) is not None:
                    a, b = (weights + self._tape.weights[n].offset for n in (pair.a, pair.b))
                    row[at] = (a, b, pair.scale, pair.rank)
        return {"pairs": pairs, "ends": np.array(self._ends(), np.int32)}

    def _ends(self) -> list[int]:
        return [*accumulate(self._adapted.parts.values())]

    def calls(self, at: int, epsilon: float) -> Iterator[tuple[Call, int]]:
        """Yield the calls before a product, with their blocks of threads for a token.

        Args:
            at: its phase, which the names of ``tables`` end with.
            epsilon: Epsilon of the norm, where tokens are normed.
        """
        adapted = self._adapted
        parts, most = len(adapted.parts), most_rank(self._tape)
        is_normed = adapted.source == "xs"
        squares = ("squares", f"%{np.float32(epsilon)!s}") if is_normed else ("#0", "%0.0")
        common = (f"pairs{at}", f"#{parts}", f"#{most}", "adapter", "count")
        source = (adapted.source, f"#{adapted.columns}")
        yield Call("adapt_low", (*common, *source, *squares, "low")), parts * (most // _BLOCK)
        ends = (f"ends{at}", "more", f"#{adapted.stride}")
        yield Call("adapt_high", (*common, "low", *ends)), -(-self._ends()[-1] // THREADS)
