"""Beginnings that sequences share: a chain of hashes names what a full page holds.

The hash of a page covers all tokens and given embeddings up to its end, the adapter and the
executor's fingerprint, so equal hashes mean equal bits, whoever computed them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from edgeinfer.errors import OutOfPagesError
from edgeinfer.runtime.llm.blocks import PageAllocator
from edgeinfer.runtime.llm.disk import PageStore
from edgeinfer.runtime.llm.executor import Bytes, Executor, Floats

KEY = 16
"""Bytes of a hash."""

_NOTHING: Mapping[int, bytes] = {}


def root(fingerprint: str, adapter: str, salt: bytes = b"") -> bytes:
    """Return the hash that a chain starts with.

    Args:
        fingerprint: Fingerprint of the executor.
        adapter: its name; empty for none.
        salt: whose the chain is: what others know of it would tell what was asked.
    """
    digest = blake2b(digest_size=KEY)
    for part in (fingerprint.encode(), adapter.encode(), salt):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def given_pages(embeddings: Floats, positions: Sequence[int], page: int) -> dict[int, bytes]:
    """Return a hash of the embeddings that each page is given, by the number of the page.

    Args:
        embeddings: (given, hidden), in the place of some tokens'.
        positions: positions of these, ascending.
        page: tokens of a page.
    """
    at = np.asarray(positions, np.int64)
    pages = at // page
    found = {}
    for number in np.unique(pages).tolist():
        here = pages == number
        digest = blake2b((at[here] % page).tobytes(), digest_size=KEY)
        digest.update(embeddings[here].tobytes())
        found[number] = digest.digest()
    return found


def extend(
    keys: list[bytes],
    start: bytes,
    tokens: Sequence[int],
    page: int,
    given: Mapping[int, bytes] = _NOTHING,
) -> None:
    """Append the hashes of all full pages of ``tokens`` that ``keys`` has not yet.

    Args:
        keys: Hashes of the first pages; grows.
        start: hash that the chain begins with.
        tokens: Tokens of the sequence.
        page: tokens of a page.
        given: what ``given_pages`` gave.
    """
    last = keys[-1] if keys else start
    for first in range(len(keys) * page, len(tokens) - page + 1, page):
        # The last two arguments are those of a keyed hash: one pass over key and tokens.
        raw = array("i", tokens[first : first + page]).tobytes() + given.get(first // page, b"")
        last = blake2b(raw, digest_size=KEY, key=last).digest()
        keys.append(last)


class Prefixes:
    """Finds and keeps full pages by their hash, in memory and, where requested, on disk.

    Args:
        blocks: Blocks of the executor.
        executor: whose pages they are.
        store: keeps pages across restarts; None keeps them in memory only.

    Attributes:
        read: pages that came from disk.
    """

    def __init__(self, blocks: PageAllocator, executor: Executor, store: PageStore | None) -> None:
        self._blocks = blocks
        self._executor = executor
        self._store = store
        self._pending: dict[bytes, int] = {}
        self._reused: deque[bytes] = deque()
        self.read = 0
        self._buffer: Bytes = np.empty(executor.page_bytes, np.uint8)

    def known(self, keys: Sequence[bytes]) -> int:
        """Return how many leading pages are in memory or on disk."""
        for index, key in enumerate(keys):
            if self._blocks.find(key) is None and not (self._store and key in self._store):
                return index
        return len(keys)

    def held(self, keys: Sequence[bytes]) -> int:
        """Return how many leading pages are in memory and used, so that sharing takes none away."""
        for index, key in enumerate(keys):
            page = self._blocks.find(key)
            if page is None or not self._blocks.uses(page):
                return index
        return len(keys)

    def take(self, keys: Sequence[bytes]) -> list[int]:
        """Share the leading pages that are known.

        Returns:
            Their numbers in order, each counted for the caller.
        """
        pages: list[int] = []
        for key in keys:
            page = self._blocks.find(key)
            if page is not None:
                self._blocks.share(page)
                if self._store is not None and key not in self._store:
                    self._reused.append(key)
            elif self._store is None or key not in self._store:
                break
            else:
                page = self._read(self._store, key)
                if page is None:
                    break
                self.read += 1
            pages.append(page)
        return pages

    def _read(self, store: PageStore, key: bytes) -> int | None:
        if not store.read(key, self._buffer):
            return None
        try:
            page = self._blocks.take()
        except OutOfPagesError:
            return None
        self._executor.write_page(page, self._buffer)
        self._blocks.label(page, key)
        return page

    def keep(self, page: int, key: bytes) -> int:
        """Label a full page of the caller, or give it back for an equal one that is there already.

        Returns:
            The page to use from now on.
        """
        self._pending.pop(key, None)
        same = self._blocks.find(key)
        if same is None:
            self._blocks.label(page, key)
            return page
        if same != page:
            self._blocks.share(same)
            self._blocks.release(page)
        return same

    def promise(self, keys: Sequence[bytes], owner: int) -> None:
        """Say that a running sequence will compute these pages."""
        for key in keys:
            self._pending.setdefault(key, owner)

    def promised(self, key: bytes, owner: int) -> bool:
        """Whether another running sequence is about to compute a page."""
        return self._pending.get(key, owner) != owner

    def withdraw(self, keys: Sequence[bytes], owner: int) -> None:
        """Take back what a sequence promised, as it stops running."""
        for key in keys:
            if self._pending.get(key) == owner:
                del self._pending[key]

    def use(self, store: PageStore | None) -> None:
        """Keep pages on another disk from now on, or on none."""
        self._store = store

    def persist_reused(self, most: int) -> None:
        """Write pages that a second sequence has used, without waiting for the disk."""
        while self._reused and most:
            most -= 1
            if not self._persist(self._reused[0], wait=False):
                return
            self._reused.popleft()

    def persist_all(self) -> None:
        """Write all pages, the last used first, until the disk's share is full."""
        if self._store is None:
            return
        newest = [key for key, _ in reversed(self._blocks.labels())][: self._store.room]
        # What is written last is deleted last.
        for key in reversed(newest):
            self._persist(key, wait=True)
        self._store.flush()

    def _persist(self, key: bytes, *, wait: bool) -> bool:
        page = self._blocks.find(key)
        if self._store is None or page is None or key in self._store:
            return True
        data = np.empty(self._executor.page_bytes, np.uint8)
        self._executor.read_page(page, data)
        return self._store.write(key, data, wait=wait)
