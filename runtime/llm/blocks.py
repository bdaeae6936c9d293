"""Page numbers of the cache: reference counts, and contents that outlive their last user."""

from __future__ import annotations

from collections import OrderedDict

from edgeinfer.errors import OutOfPagesError


class PageAllocator:
    """Hands out page numbers.

    A page is free, in use (its count is at least one), or kept: nobody uses it, but it has a label
    that says what it holds, so whoever needs the same contents takes it as it is. Kept pages are
    given away, the longest unused first, when no free one is left.

    Args:
        count: Number of pages; their numbers are 0 to ``count - 1``.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._uses = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._labels: list[bytes | None] = [None] * count
        self._pages: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.evicted = 0

    @property
    def available(self) -> int:
        """Pages that ``take`` can give: free and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Pages that nobody uses and that still hold something known."""
        return len(self._kept)

    def uses(self, page: int) -> int:
        """Return how many sequences hold a page."""
        return self._uses[page]

    def take(self) -> int:
        """Return a page for one user; its contents are anything.

        Raises:
            OutOfPagesError: all are in use.
        """
        if self._free:
            page = self._free.pop()
        elif self._kept:
            page, _ = self._kept.popitem(last=False)
            self._unlabel(page)
            self.evicted += 1
        else:
            raise OutOfPagesError(f"all {self.count} pages of the cache are in use")
        self._uses[page] = 1
        return page

    def share(self, page: int) -> None:
        """Count one more user of a page."""
        if not self._uses[page]:
            del self._kept[page]
        self._uses[page] += 1

    def release(self, page: int) -> None:
        """Count one user less; an unlabelled page without users is free."""
        uses = self._uses[page] - 1
        if uses < 0:
            raise ValueError(f"page {page} is released more often than it was taken")
        self._uses[page] = uses
        if uses:
            return
        if self._labels[page] is None:
            self._free.append(page)
        else:
            self._kept[page] = None

    def label(self, page: int, label: bytes) -> None:
        """Say what a page in use holds; its contents must not change from now on."""
        if self._labels[page] is not None or label in self._pages:
            raise ValueError(f"page {page}: it has a label, or another page has this one")
        self._labels[page] = label
        self._pages[label] = page

    def labelled(self, page: int) -> bool:
        """Whether a page holds something known, which must not be written to."""
        return self._labels[page] is not None

    def find(self, label: bytes) -> int | None:
        """Return the page that holds something, without counting a user."""
        return self._pages.get(label)

    def labels(self) -> list[tuple[bytes, int]]:
        """Return every label and its page; kept pages first, the longest unused first."""
        kept = list(self._kept)
        used = [page for page in self._pages.values() if self._uses[page]]
        return [(label, page) for page in (*kept, *used) if (label := self._labels[page])]

    def forget(self) -> None:
        """Drop all labels; kept pages become free."""
        for page in list(self._pages.values()):
            self._unlabel(page)
        self._free.extend(self._kept)
        self._kept.clear()

    def _unlabel(self, page: int) -> None:
        label = self._labels[page]
        if label is not None:
            del self._pages[label]
            self._labels[page] = None

    def problems(self) -> list[str]:
        """Say what contradicts itself; empty for a sound state. For tests and ``doctor``."""
        found = []
        used = {page for page, uses in enumerate(self._uses) if uses}
        free, kept = set(self._free), set(self._kept)
        if len(free) != len(self._free):
            found.append("a page is free twice")
        if used & free or used & kept or free & kept:
            found.append("a page is in two states")
        if len(used) + len(free) + len(kept) != self.count:
            found.append(f"{len(used)} used, {len(free)} free, {len(kept)} kept of {self.count}")
        if any(self._labels[page] is not None for page in free):
            found.append("a free page has a label")
        if any(self._labels[page] is None for page in kept):
            found.append("a kept page has no label")
        if {label: page for page, label in enumerate(self._labels) if label} != self._pages:
            found.append("labels and pages disagree")
        return found
