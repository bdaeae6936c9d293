"""States of clients' sequences: each step begins with what the one before it left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeinfer.bundle.manifest import StateRecord
from edgeinfer.errors import QueueFullError
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
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sequences:
    """The sequences of one model; used by one event loop.

    Each belongs to the key that began it: ids of others are not its own.

    Args:
        records: which output is which input of the next step.
        inputs: Inputs of the model.
        limit: sequences at once.
        idle_s: seconds without a step after which one is forgotten.

    Attributes:
        pairs: names of the outputs that are states, by the input's name.
    """

    def __init__(
        self,
        records: Sequence[StateRecord],
        inputs: Sequence[TensorSpec],
        limit: int,
        idle_s: float,
    ) -> None:
        self.pairs = {record.input: record.output for record in records}
        self.specs = tuple(spec for spec in inputs if spec.name in self.pairs)
        self._others = tuple(spec for spec in inputs if spec.name not in self.pairs)
        self._limit, self._idle_s = limit, idle_s
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
            RequestError: 400, the sequence is not under way, or a state is given.
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
                sequence.values = {i: results.pop(o) for i, o in self.pairs.items()}
                if terms.ends:
                    sequence.values = {}
                return results
        finally:
            sequence.waiting -= 1
            sequence.used = time.monotonic()
            over = not (sequence.values or sequence.waiting)
            if over and self._running.get(name) is sequence:
                del self._running[name]

    def clear(self) -> None:
        """Forget all of them."""
        self._running.clear()

    def _found(self, name: tuple[bytes, str | int], starts: bool) -> _Running:
        late = time.monotonic() - self._idle_s
        old = [i for i, s in self._running.items() if not s.waiting and s.used < late]
        for each in old:
            del self._running[each]
        found = self._running.get(name)
        if found is None:
            if not starts:
                raise self._unknown(name[1])
            if len(self._running) >= self._limit:
                raise QueueFullError(f"{len(self._running)} sequences are under way already")
            found = self._running[name] = _Running()
        return found

    def _unknown(self, id: str | int) -> RequestError:
        return RequestError(
            400,
            f"sequence {id!r} is not under way (it ended, or had no step for {self._idle_s:g} s); "
            "begin it with sequence_start",
        )
