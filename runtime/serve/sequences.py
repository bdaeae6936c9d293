"""States of clients' sequences: each step begins with what the one before it left."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field

from edgeinfer.bundle.manifest import StateRecord
from edgeinfer.errors import QueueFullError
from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.keys import owner
from edgeinfer.runtime.serve.terms import Terms
from edgeinfer.runtime.states import zeros
from edgeinfer.types import Array, Feeds, TensorSpec

Run = Callable[[Feeds], Awaitable[Mapping[str, Array]]]


@dataclass(slots=True)
class _Running:
    """One sequence; without values it has not begun."""

    values: dict[str, Array] = field(default_factory=dict)
    waiting: int = 0
    used: float = 0.0
    bytes: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeptStates:
    """The memory of what is kept between requests: all states, of all models; all regions.

    Args:
        most: bytes; one key may have a quarter of them.
        what: takes them.
    """

    def __init__(self, most: int, what: str = "states of sequences") -> None:
        self._most, self._what, self.used = most, what, 0
        self._of: Counter[bytes] = Counter()

    def change(self, owner: bytes, bytes: int) -> None:
        """Take so many bytes more for a key, or give some back.

        Raises:
            RequestError: 503, there is no room for them.
        """
        own = self._most // _SHARES if owner else self._most
        if bytes > 0 and (self.used + bytes > self._most or self._of[owner] + bytes > own):
            raise RequestError(503, f"{self._what} take all the memory that they may", 1.0)
        self.used += bytes
        self._of[owner] += bytes
        if not self._of[owner]:
            del self._of[owner]


_SHARES = 4
"""A key that has more than one of so many parts of all slots gives way to others."""


class Sequences:
    """The sequences of one model; used by one event loop.

    Each belongs to the key that began it: ids of others are not its own.

    Args:
        records: which output is which input of the next step.
        inputs: Inputs of the model.
        limit: sequences at once.
        idle_s: seconds without a step after which one is forgotten.
        kept: Memory of states.

    Attributes:
        pairs: names of the outputs that are states, by the input's name.
    """

    def __init__(
        self,
        records: Sequence[StateRecord],
        inputs: Sequence[TensorSpec],
        limit: int,
        idle_s: float,
        kept: KeptStates,
    ) -> None:
        self.pairs = {record.input: record.output for record in records}
        self.specs = tuple(spec for spec in inputs if spec.name in self.pairs)
        self._others = tuple(spec for spec in inputs if spec.name not in self.pairs)
        self._limit, self._idle_s, self._kept = limit, idle_s, kept
        self._running: dict[tuple[bytes, str | int], _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def step(self, id: str | int, terms: Terms, feeds: Feeds, run: Run) -> dict[str, Array]:
        """Run one step, behind those that came before it.

        A step that fails, or whose client leaves, changes nothing: it may be sent again.

        Args:
            id: Identifier of the sequence.
            terms: whether it starts or ends.
            feeds: arrays by the input's name, without states.
            run: runs the model with all inputs.

        Returns:
            The outputs that are no states.

        Raises:
            RequestError: 400, the sequence is not under way, or a state is given; 503, there is no
                room for its states.
            QueueFullError: as many as may be are under way.
        """
        if given := [name for name in self.pairs if name in feeds]:
            raise RequestError(400, f"input {given[0]!r}: the sequence keeps it; leave it out")
        name = owner(), id
        sequence = self._found(name, terms.starts)
        sequence.waiting += 1
        try:
            async with sequence.lock:
                states = {} if terms.starts else sequence.values
                if not states:
                    if not terms.starts:
                        raise self._unknown(id)
                    states = {s.name: zeros(s, self._others, feeds) for s in self.specs}
                results = dict(await run({**feeds, **states}))
                values = {i: results.pop(o) for i, o in self.pairs.items()}
                self._keep(name[0], sequence, {} if terms.ends else values)
                return results
        finally:
            sequence.waiting -= 1
            sequence.used = time.monotonic()
            over = not (sequence.values or sequence.waiting)
            if self._running.get(name) is not sequence:
                # It was forgotten meanwhile.
                self._keep(name[0], sequence, {})
            elif over:
                self._forget(name)

    def clear(self) -> None:
        """Forget all of them."""
        for name in list(self._running):
            self._forget(name)

    def _keep(self, owner: bytes, sequence: _Running, values: dict[str, Array]) -> None:
        size = sum(array.nbytes for array in values.values())
        self._kept.change(owner, size - sequence.bytes)
        sequence.values, sequence.bytes = values, size

    def _forget(self, name: tuple[bytes, str | int]) -> None:
        self._keep(name[0], self._running.pop(name), {})

    def _make_room(self, owner: bytes) -> None:
        """Let the key with the most sequences give its oldest idle one, if it has too many.

        Raises:
            QueueFullError: it is this one, or all of them are in use.
        """
        counts = Counter(key for key, _ in self._running)
        (most, count), *_ = counts.most_common(1)
        idle = [n for n, s in self._running.items() if n[0] == most and not s.waiting]
        if most == owner or count <= self._limit // _SHARES or not idle:
            raise QueueFullError(f"{len(self._running)} sequences are under way already")
        self._forget(min(idle, key=lambda name: self._running[name].used))

    def _found(self, name: tuple[bytes, str | int], starts: bool) -> _Running:
        late = time.monotonic() - self._idle_s
        old = [i for i, s in self._running.items() if not s.waiting and s.used < late]
        for each in old:
            self._forget(each)
        found = self._running.get(name)
        if found is None:
            if not starts:
                raise self._unknown(name[1])
            if len(self._running) >= self._limit:
                self._make_room(name[0])
            found = self._running[name] = _Running()
        return found

    def _unknown(self, id: str | int) -> RequestError:
        return RequestError(
            400,
            f"sequence {id!r} is not under way (it ended, or had no step for {self._idle_s:g} s); "
            "begin it with sequence_start",
        )
