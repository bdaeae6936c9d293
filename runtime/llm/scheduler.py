"""Which tokens of which sequences the next step computes.

Sequences that generate come first, each with its next token; prompts are read in the room that the
latency budget leaves. A sequence that finds no page gives all of its own away and is computed anew
later; the bits of what it computes are the same. Whoever has a higher priority takes place and
pages of those with a lower one.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from edgeinfer.errors import OutOfPagesError
from edgeinfer.runtime.llm.blocks import PageAllocator
from edgeinfer.runtime.llm.cost import StepCost
from edgeinfer.runtime.llm.drafts import LONGEST, worthwhile
from edgeinfer.runtime.llm.executor import Executor, Ints
from edgeinfer.runtime.llm.options import StepLimits
from edgeinfer.runtime.llm.prefix import Prefixes, extend
from edgeinfer.runtime.llm.sequence import Sequence, StepPart

_LEAST = 64
"""Tokens of a step that only reads: fewer take longer together."""

Propose = Callable[[list[Sequence], int], bool]
"""Fills ``Sequence.proposed`` with at most so many guesses for each; whether there are any."""


class _Step:
    """A step as it is filled.

    Attributes:
        parts: what sequences do in it.
        tokens: in it.
        reach: positions that these look back on.
        room: tokens of prompts that still fit.
        rows: Rows of logits that still fit.
        reads: prompts that it reads.
        limit: seconds that it may take.
        least: tokens of a prompt that it reads even so.
    """

    def __init__(self, parts: list[StepPart]) -> None:
        self.parts = parts
        self.tokens = sum(part.size for part in parts)
        self.reach = sum(part.reach for part in parts)
        self.room = self.rows = self.reads = self.least = 0
        self.limit = 0.0

    def add(self, part: StepPart) -> None:
        self.parts.append(part)
        self.tokens += part.count
        self.reach += part.reach
        self.room -= part.count
        self.rows -= 1
        self.reads += 1


class SequenceScheduler:
    """Keeps the sequences that wait and those that run.

    Attributes:
        waiting: in the order in which they are served.
        running: likewise; each has a row of the table.
        table: (sequences, pages) int32, of the executor.
        page: tokens of a page.
        preempted: how often a sequence gave its pages away.
    """

    def __init__(
        self,
        executor: Executor,
        blocks: PageAllocator,
        prefixes: Prefixes,
        cost: StepCost,
        limits: StepLimits,
        propose: Propose | None = None,
    ) -> None:
        self._executor, self._blocks, self._prefixes = executor, blocks, prefixes
        self._cost, self._limits, self._propose = cost, limits, propose
        self.page = executor.page
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        width = -(-executor.context // executor.page)
        self.table: Ints = np.full((executor.max_sequences, width), -1, np.int32)
        self._slots = list(range(executor.max_sequences - 1, -1, -1))
        self.preempted = 0

    def plan(self, now: float) -> list[StepPart]:
        """Return what the next step computes; empty where nothing can run."""
        if self.waiting:
            self._make_room()
        decodes = self._decodes()
        if not self.waiting and len(decodes) == len(self.running):
            # Nothing but the next token of everybody: the usual step.
            return decodes
        step = _Step(decodes)
        step.room = min(self._executor.max_tokens - step.tokens, self._limits.chunk)
        step.rows = self._executor.max_rows - sum(1 + len(part.guesses) for part in step.parts)
        step.limit = self._seconds(step) if step.parts else self._limits.reading_s
        step.least = 1 if step.parts else _LEAST
        for sequence in [s for s in self.running if len(s.tokens) - s.computed > 1]:
            if sequence.slot >= 0:
                self._read(sequence, step)
        while step.room > 0 and step.rows > 0:
            sequence_in = self._admit(now)
            if sequence_in is None or not self._read(sequence_in, step):
                break
        return step.parts

    def _seconds(self, step: _Step) -> float:
        alone = self._cost.seconds(step.tokens, step.reach) * self._limits.slowdown
        return max(alone, self._limits.step_s or 0.0)

    def _decodes(self) -> list[StepPart]:
        """Return the next token of every sequence that has read all the others."""
        parts: list[StepPart] = []
        most = min(self._executor.max_tokens, self._executor.max_rows)
        page, uses = self.page, self._blocks.uses
        # Oldest first: who finds no page takes those of a younger one, which is not planned yet.
        for sequence in list(self.running):
            computed = sequence.computed
            if sequence.slot >= 0 and len(sequence.tokens) - computed == 1:
                if len(parts) >= most:
                    break
                pages, place = sequence.pages, computed // page
                # Most may write already where their next token goes.
                is_own = place < len(pages) and uses(pages[place]) == 1
                if is_own or self._reserve(sequence, computed + 1, parts):
                    parts.append(StepPart(sequence, computed, 1, []))
        if self._propose is not None and parts:
            self._guess(self._propose, parts)
        return parts

    def _guess(self, propose: Propose, parts: list[StepPart]) -> None:
        sequences = [part.sequence for part in parts]
        if not propose(sequences, LONGEST):
            return
        lengths = [max(0, min(len(s.proposed), s.limit - len(s.tokens) - 1)) for s in sequences]
        room = min(self._executor.max_tokens, self._executor.max_rows) - len(parts)
        reach = sum(part.reach for part in parts)
        rates = [s.acceptance.rate for s in sequences]
        counts = worthwhile(rates, lengths, len(parts), reach, self._cost, room)
        for part, count in zip(parts, counts, strict=True):
            if count and self._extend(part.sequence, part.start + 1 + count, spare=len(parts)):
                part.guesses = part.sequence.proposed[:count]

    def _read(self, sequence: Sequence, step: _Step) -> bool:
        """Add the next tokens of a prompt that fit into the step; say whether some did."""
        start = sequence.computed
        left = len(sequence.tokens) - start
        most = min(left, step.room)
        if step.rows <= 0 or most <= 0:
            return False
        count = self._cost.most(step.tokens, step.reach, most, step.limit, start)
        if not step.reads:
            # However tight the limit is, one prompt goes on.
            count = max(count, min(step.least, most))
        if not count or not self._reserve(sequence, start + count, step.parts):
            return False
        step.add(StepPart(sequence, start, count, wants=count == left))
        return True

    # Pages.

    def _reserve(self, sequence: Sequence, end: int, parts: list[StepPart]) -> bool:
        """Give a sequence pages of its own for the positions up to ``end``.

        Whoever has no part in this step and is the youngest of the request that runs most gives its
        pages away for it.
        """
        while True:
            try:
                self._own(sequence, end)
            except OutOfPagesError:
                victim = self._youngest_of_most()
                if any(part.sequence is victim for part in parts):
                    return False
                if victim is sequence and (parts or len(self.running) > 1):
                    self.preempt(victim)
                    return False
                if victim is sequence:
                    raise
                self.preempt(victim)
            else:
                return True

    def _youngest_of_most(self) -> Sequence:
        """Return who gives its place away: of the request that runs most, the youngest.

        Of those of the lowest priority, that is. Where no request runs more than one that is the
        youngest of all. The oldest of all is it only when it is alone, so something always goes on.
        """
        counts = self._counts()
        return max(self.running, key=lambda s: (s.order[0], counts[s.request.id], s.order))

    def _counts(self) -> Counter[str]:
        """Return how many sequences of each request run."""
        return Counter(sequence.request.id for sequence in self.running)

    def _own(self, sequence: Sequence, end: int) -> None:
        place = sequence.computed // self.page
        if place < len(sequence.pages):
            shared = sequence.pages[place]
            if self._blocks.uses(shared) > 1:
                own = self._blocks.take()
                self._executor.copy_page(shared, own)
                self._blocks.release(shared)
                sequence.pages[place] = own
                self.table[sequence.slot, place] = own
        while len(sequence.pages) * self.page < end:
            page = self._blocks.take()
            self.table[sequence.slot, len(sequence.pages)] = page
            sequence.pages.append(page)

    def _extend(self, sequence: Sequence, end: int, spare: int) -> bool:
        """Give a sequence pages for guesses, if enough are left for everybody's next token."""
        missing = -(-end // self.page) - len(sequence.pages)
        if missing > 0 and self._blocks.available < missing + spare:
            return False
        self._own(sequence, end)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take its pages away; it waits to be computed anew, before all younger ones."""
        self._leave(sequence)
        sequence.computed = sequence.kept = 0
        sequence.preemptions += 1
        self.preempted += 1
        self.enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, and free its pages."""
        if sequence.slot >= 0:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._prefixes.withdraw(sequence.keys, id(sequence))
        # From the end: the beginning is what others share, so it is given away last.
        for page in reversed(sequence.pages):
            if page >= 0:
                self._blocks.release(page)
        sequence.pages = []
        self.table[sequence.slot] = -1
        self._slots.append(sequence.slot)
        sequence.slot = -1

    # Coming in.

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence wait at its place in the order."""
        if self.waiting and sequence.order < self.waiting[-1].order:
            ordered = list(self.waiting)
            insort(ordered, sequence, key=lambda s: s.order)
            self.waiting = deque(ordered)
        else:
            self.waiting.append(sequence)

    def _admit(self, now: float) -> Sequence | None:
        """Let the first sequence run that has room and whose beginning nobody is computing.

        Of the highest priority, whose request runs least comes first, among equals the oldest.
        """
        if not self._slots or not self.waiting:
            return None
        counts = self._counts()
        for sequence in sorted(
            self.waiting, key=lambda s: (s.order[0], counts[s.request.id], s.order)
        ):
            if sequence.blocked and self._prefixes.promised(sequence.blocked, id(sequence)):
                continue
            whole = self._whole(sequence)
            known = self._prefixes.known(whole)
            if known < len(whole) and self._prefixes.promised(whole[known], id(sequence)):
                sequence.blocked = whole[known]
                continue
            sequence.blocked = b""
            if not self._fits(sequence, whole):
                return None
            self.waiting.remove(sequence)
            self._enter(sequence, whole, now)
            return sequence
        return None

    def _make_room(self) -> None:
        """Free a row of the table for a request that has none, by one of a request with several.

        Otherwise many texts of one client would keep all others out until they end. The first that
        waits gets row and pages of those with a lower priority.
        """
        first = self.waiting[0]
        while self.running and not (self._slots and self._fits(first, self._whole(first))):
            victim = self._youngest_of_most()
            if victim.order[0] <= first.order[0]:
                break
            self.preempt(victim)
        if self._slots:
            return
        counts, victim = self._counts(), self._youngest_of_most()
        rivals = [s for s in self.waiting if s.order[0] <= victim.order[0]]
        if counts[victim.request.id] > 1 and not all(counts[s.request.id] for s in rivals):
            self.preempt(victim)

    def _whole(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of the full pages that a sequence reads before it generates."""
        extend(sequence.keys, sequence.root, sequence.tokens, self.page, sequence.given)
        return sequence.keys[: (len(sequence.tokens) - 1) // self.page]

    def _fits(self, sequence: Sequence, whole: list[bytes]) -> bool:
        if not self.running:
            return True
        needed = -(-len(sequence.tokens) // self.page) - self._prefixes.held(whole)
        promised = sum(max(0, -(-len(s.tokens) // self.page) - len(s.pages)) for s in self.running)
        # Each running sequence may need one more page soon.
        return self._blocks.available >= needed + promised + len(self.running)

    def _enter(self, sequence: Sequence, whole: list[bytes], now: float) -> None:
        self._take_slot(sequence)
        sequence.pages = self._prefixes.take(whole)
        sequence.kept = len(sequence.pages)
        sequence.computed = sequence.kept * self.page
        self.table[sequence.slot, : sequence.kept] = sequence.pages
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.cached = sequence.computed
        self._prefixes.promise(whole[sequence.kept :], id(sequence))

    def _take_slot(self, sequence: Sequence) -> None:
        sequence.slot = self._slots.pop()
        insort(self.running, sequence, key=lambda s: s.order)

    # After a step.

    def settle(self, sequence: Sequence) -> None:
        """Label the pages that have become full, and give back those out of every window."""
        full = sequence.computed // self.page
        if full > sequence.kept:
            tokens = sequence.tokens[: full * self.page]
            extend(sequence.keys, sequence.root, tokens, self.page, sequence.given)
            for place in range(sequence.kept, full):
                page = self._prefixes.keep(sequence.pages[place], sequence.keys[place])
                if page != sequence.pages[place]:
                    sequence.pages[place] = page
                    self.table[sequence.slot, place] = page
            sequence.kept = full
            if self._executor.window:
                self._forget_passed(sequence)

    def _forget_passed(self, sequence: Sequence) -> None:
        passed = max(0, sequence.computed + 1 - self._executor.window) // self.page
        for place in range(min(passed, sequence.kept) - 1, -1, -1):
            page = sequence.pages[place]
            if page < 0:
                break
            self._blocks.release(page)
            sequence.pages[place] = -1
            self.table[sequence.slot, place] = -1

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let a child run on its parent's pages; it waits where no row of the table is free."""
        child.keys = list(parent.keys)
        child.admitted, child.cached = parent.admitted, parent.cached
        if not self._slots:
            self.enqueue(child)
            return
        self._take_slot(child)
        child.computed, child.kept = parent.computed, parent.kept
        child.pages = list(parent.pages)
        for page in child.pages:
            if page >= 0:
                self._blocks.share(page)
        self.table[child.slot, : len(child.pages)] = child.pages

    def waste(self) -> tuple[int, int]:
        """Return how many positions of used pages hold nothing, and how many there are."""
        slots = {page: 0 for s in self.running for page in s.pages if page >= 0}
        for sequence in self.running:
            for place, page in enumerate(sequence.pages):
                if page >= 0:
                    filled = min(self.page, max(0, sequence.computed - place * self.page))
                    slots[page] = max(slots[page], filled)
        return len(slots) * self.page - sum(slots.values()), len(slots) * self.page
