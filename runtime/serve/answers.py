"""Answers that are kept: the same tensors to the same model get what was computed before.

Only where it was requested: a model that draws numbers at random would give the same ones again.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

ENTRY_BYTES = 450
"""Of memory that an answer takes besides its arrays: its key, its place and its names."""

ARRAY_BYTES = 150
"""Of memory that an array takes besides its values."""


@dataclass(slots=True)
class CacheCounts:
    """How often answers of one model were there, and were not."""

    hits: int = 0
    misses: int = 0


class Answers:
    """Keeps answers, those used least recently the first to go; used by one event loop.

    Args:
        limit: bytes of memory.

    Attributes:
        counts: by model.
        used: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._kept: OrderedDict[tuple[str, bytes], dict[str, Array]] = OrderedDict()
        self.counts: dict[str, CacheCounts] = {}

    def key(self, model: str, loads: int, feeds: Feeds, owner: bytes = b"") -> tuple[str, bytes]:
        """Return what stands for a request.

        Args:
            model: its name.
            loads: how often it was loaded; each may be another bundle or engine.
            feeds: arrays by the input's name.
            owner: whose request it is: how fast an answer comes tells nobody what others asked.
        """
        head = loads.to_bytes(8, "little") + len(owner).to_bytes(8, "little") + owner
        found = hashlib.blake2b(head, digest_size=32)
        for name in sorted(feeds):
            array = np.asarray(feeds[name])
            found.update(repr((name, array.dtype.str, array.shape)).encode())
            if array.dtype == object:
                # Each text behind its length, so that no two lists are the same bytes.
                for text in map(str, array.ravel()):
                    part = text.encode()
                    found.update(len(part).to_bytes(8, "little") + part)
            else:
                found.update(np.ascontiguousarray(array).data)
        return model, found.digest()

    def get(self, key: tuple[str, bytes]) -> dict[str, Array] | None:
        """Return the answer that is kept; None where there is none."""
        counts = self.counts.setdefault(key[0], CacheCounts())
        found = self._kept.get(key)
        if found is None:
            counts.misses += 1
            return None
        counts.hits += 1
        self._kept.move_to_end(key)
        return found

    def put(self, key: tuple[str, bytes], answer: Mapping[str, Array]) -> None:
        """Keep a copy of an answer."""
        size = _size(answer)
        if size > self._limit or key in self._kept:
            return
        kept = {name: np.array(array) for name, array in answer.items()}
        for array in kept.values():
            array.flags.writeable = False
        self._kept[key] = kept
        self.used += size
        while self.used > self._limit:
            _, old = self._kept.popitem(last=False)
            self.used -= _size(old)


def _size(answer: Mapping[str, Array]) -> int:
    return ENTRY_BYTES + sum(ARRAY_BYTES + _bytes(array) for array in answer.values())


def _bytes(array: Array) -> int:
    if array.dtype == object:
        return array.nbytes + sum(map(sys.getsizeof, array.ravel()))
    return int(array.nbytes)
