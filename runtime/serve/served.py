"""One model of a server: what it is, and how it does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer import forks
from edgeinfer.errors import ClosedError, QueueFullError
from edgeinfer.records import dataclass
from edgeinfer.runtime.fleet import FleetModel
from edgeinfer.runtime.serve.answer_size import AnswerSize
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.keys import count_share
from edgeinfer.runtime.serve.lanes import Lane
from edgeinfer.runtime.serve.metrics import ModelMetrics
from edgeinfer.runtime.serve.options import Upstream
from edgeinfer.runtime.serve.plans import Plans
from edgeinfer.runtime.serve.sequences import Sequences
from edgeinfer.runtime.serve.turns import own_of
from edgeinfer.types import Feeds, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.pipelines import Pipeline


@dataclass(slots=True)
class Served:
    """One model.

    Attributes:
        name: in addresses.
        path: Path of its bundle.
        metrics: its counters.
        kind: ``tensors``, ``text``, ``pipeline`` for bundles that are one only together, or
            ``upstream`` for texts of another server.
        state: ``loading``, ``ready``, ``unloaded`` or why it failed.
        waiting: requests without an answer.
        waiting_of: those of each key of several.
        created: when it was added, in seconds since 1970.
        batch: requests that one run may hold.
        lane: runs requests on the event loop, where the model's runs are brief.
        sequences: Sequences of clients, where the model has states.
        plans: what the JSON of its requests said before.
        answer_size: says how large its answers are.
        warm: inputs to run it with before it is ready.
        has_meaning: whether its bundle says what it takes and gives.
        pipeline: it takes images, recordings or texts, where it is ready and its bundle says so.
        no_meaning: why there is none.
        parts: bundles of a pipeline of several, but a language model.
        meaning: what the first takes, what the last gives, and its labels.
        chat: Bundle of the language model that answers behind a pipeline; None for none.
        answerer: model whose language model that is: itself, or another one of the same bundle.
        digests: Digests of all its bundles by path, as what is said of it was read from them.
        engines: Engines of its bundles.
        upstream: where it is, if it is another server's.
        loads: how often it was unloaded: what it answered before is not what it answers.
        down_until: Time of the monotonic clock until which its server, which took no connection, is
            not asked.
        fallback: answers in its place where it cannot; None for none.
        spill: requests without an answer from which on that one answers.
        changing: held while it is loaded or unloaded.
    """

    name: str
    path: Path
    metrics: ModelMetrics
    kind: str = "tensors"
    state: str = "loading"
    waiting: int = 0
    waiting_of: Counter[bytes] = field(default_factory=Counter)
    created: int = 0
    tensors: FleetModel | None = None
    text: LLM | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batch: int = 1
    lane: Lane | None = None
    sequences: Sequences | None = None
    plans: Plans = field(default_factory=lambda: Plans(()))
    answer_size: AnswerSize = field(default_factory=lambda: AnswerSize((), ()))
    warm: Sequence[Feeds] = field(default_factory=tuple)
    has_meaning: bool = False
    pipeline: Pipeline | None = None
    no_meaning: str = ""
    parts: tuple[Path, ...] = ()
    digests: dict[Path, str] = field(default_factory=dict)
    meaning: tuple[object, ...] = ()
    chat: Path | None = None
    answerer: Served | None = None
    engines: list[FleetModel] = field(default_factory=list)
    upstream: Upstream | None = None
    down_until: float = 0.0
    loads: int = 0
    fallback: Served | None = None
    spill: int = 0
    changing: threading.Lock = field(default_factory=forks.lock)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.state == "ready"

    def check_place(self, most: int, share: bytes) -> None:
        """Raise where there is no place in its queue.

        Args:
            most: Length of the queue.
            share: whose share one is; empty for nobody's.

        Raises:
            QueueFullError: none is free, or the key has its share.
        """
        if self.waiting >= most:
            raise QueueFullError(f"model {self.name!r}: {self.waiting} requests wait already")
        if share and (own := self.waiting_of[share]) >= own_of(most):
            raise QueueFullError(f"model {self.name!r}: {own} requests of this key wait already")

    def enter(self, share: bytes) -> None:
        """Take a place, which ``leave`` gives back."""
        self.waiting += 1
        count_share(self.waiting_of, share, 1)

    def leave(self, share: bytes) -> None:
        """Give a place back."""
        self.waiting -= 1
        count_share(self.waiting_of, share, -1)

    @property
    def role(self) -> tuple[object, ...]:
        """What requests it takes; those of one role may answer for each other."""
        if self.kind in ("text", "upstream"):
            return ("text",)
        sides = (self.inputs, self.outputs)
        tensors = tuple((s.name, s.dtype, s.shape) for side in sides for s in side)
        more = (self.sequences is None, self.meaning, self.answerer is not None)
        return (self.kind, len(self.inputs), tensors, *more)

    @property
    def is_down(self) -> bool:
        """Whether its server is not requested now."""
        return self.down_until > 0.0 and time.monotonic() < self.down_until

    def unloaded(self) -> ClosedError:
        """Return the answer to requests that came before it was unloaded."""
        return ClosedError(f"model {self.name!r} was unloaded")

    def unreachable(self) -> RequestError:
        """Return the answer while its server takes no connection."""
        return RequestError(503, f"the server of model {self.name!r} does not answer", 1.0)

    @property
    def other(self) -> Served | None:
        """The model that answers in its place now; None where it answers itself."""
        other = self.fallback
        if other is None or not other.is_ready or other.is_down:
            return None
        busy = not self.is_ready or self.is_down or self.waiting >= self.spill
        return other if busy else None
