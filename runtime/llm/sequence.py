"""A request, and the sequences of tokens that it becomes."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from edgeinfer.errors import InputError
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.drafts import Acceptance, Lookup
from edgeinfer.runtime.llm.executor import Executor, Floats
from edgeinfer.runtime.llm.grammar import Matcher
from edgeinfer.runtime.llm.params import SamplingParams, Usage
from edgeinfer.runtime.llm.sampling import Sampler
from edgeinfer.runtime.llm.text import GrowingText


@dataclass(slots=True, eq=False)
class SequenceRequest:
    """What somebody requested.

    Attributes:
        id: unique among those that have not ended.
        prompt: tokens; at least one.
        params: how to go on.
        adapter: name of a low-rank adapter; empty for none.
        embeddings: (given, hidden) float32, in the place of some tokens'; None for none.
        embedded: positions of these in the prompt, ascending.
        matcher: Matcher of the grammar, at the start of a text; made by ``Engine.prepare``.
        salt: requests share pages of the prefix cache only where it is the same.
        priority: higher ones run first, and take the place of lower ones.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    adapter: str = ""
    embeddings: Floats | None = None
    embedded: tuple[int, ...] = ()
    matcher: Matcher | None = None
    salt: bytes = b""
    priority: int = 0


def room_for(request: SequenceRequest, executor: Executor) -> int:
    """Check a request; return how many tokens it may generate at most.

    Raises:
        InputError: something in it is not what the model takes.
    """
    prompt = request.prompt
    if not prompt:
        hint = "this model's sequences begin with no token of their own"
        raise InputError("prompt", "at least one token", "none", hint)
    limit = min(executor.context, executor.pages * executor.page)
    if len(prompt) >= limit:
        hint = "shorten it; one place is needed for what is generated"
        if limit < executor.context:
            hint += ", and the cache is smaller than the model's context"
        raise InputError("prompt", f"at most {limit - 1} tokens", f"{len(prompt)}", hint)
    if not 0 <= min(prompt) <= max(prompt) < executor.vocab:
        raise InputError("prompt", f"tokens from 0 to {executor.vocab - 1}", "others")
    request.params.fits(executor.vocab)
    if request.adapter and request.adapter not in executor.adapters:
        there = ", ".join(executor.adapters) or "none"
        raise InputError("adapter", f"one of the bundle's ({there})", repr(request.adapter))
    if request.embeddings is not None:
        _check_given(request, request.embeddings, executor.hidden)
    return limit - len(prompt)


def _check_given(request: SequenceRequest, given: Floats, hidden: int) -> None:
    """Refuse embeddings that no token of the prompt has, or that are no numbers."""
    positions, count = np.asarray(request.embedded, np.int64), len(request.prompt)
    if given.shape != (len(positions), hidden) or given.dtype != np.float32:
        expected = f"float32{[len(positions), hidden]}"
        raise InputError("embeddings", expected, f"{given.dtype}{list(given.shape)}")
    if (len(positions) and not 0 <= positions[0] <= positions[-1] < count) or (
        np.diff(positions) < 1
    ).any():
        raise InputError("embedded", f"ascending positions below {count}", "others")
    if not np.isfinite(given).all():
        raise InputError("embeddings", "finite numbers", "others")


class Sequence:
    """One generation: its tokens, and where its keys and values are.

    Attributes:
        request: that it belongs to.
        index: which of the request's generations.
        order: sequences are served in this order: by priority, then by arrival.
        tokens: Tokens of the prompt and generated.
        limit: tokens that it may have.
        computed: leading tokens whose keys and values are in the cache.
        pages: Pages of the cache, by place; -1 where no layer looks back any more.
        slot: row of the table; -1 while it waits.
        keys: hashes of its full pages.
        given: hashes of the embeddings that pages are given, by the number of the page.
        kept: leading pages that are labelled or given back.
        root: hash that the chain of keys starts with.
        adapter: index of the adapter, -1 for none.
        is_plain: it has neither adapter nor embeddings.
        is_greedy: its next token is the likeliest one, and nobody wants to know more of it.
        proposed: guesses for this step, whether they are verified or not.
        blocked: hash of the page for which it waits while another sequence computes it.
    """

    def __init__(
        self,
        request: SequenceRequest,
        index: int,
        order: tuple[int, int, int],
        *,
        root: bytes,
        adapter: int,
        limit: int,
        arrived: float,
    ) -> None:
        self.request, self.index, self.order = request, index, order
        self.tokens = list(request.prompt)
        self.limit, self.root, self.adapter = limit, root, adapter
        self.is_plain = adapter < 0 and request.embeddings is None
        self.is_greedy = False
        self.computed = self.kept = 0
        self.pages: list[int] = []
        self.slot = -1
        self.keys: list[bytes] = []
        self.given: dict[int, bytes] = {}
        self.sampler: Sampler
        self.text: GrowingText
        self.matcher: Matcher | None = None
        self.lookup: Lookup | None = None
        self.draft: object = None
        self.acceptance = Acceptance()
        self.proposed: list[int] = []
        self.blocked = b""
        self.forked = False
        self.cached = self.drafted = self.accepted = self.preemptions = 0
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token = arrived

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - len(self.request.prompt)

    def usage(self, now: float) -> Usage:
        """Return what it took so far."""
        started = self.admitted if self.admitted is not None else now
        first = None if self.first_token is None else self.first_token - self.arrived
        return Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached,
            completion_tokens=self.generated,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            preemptions=self.preemptions,
            queue_s=started - self.arrived,
            first_token_s=first,
            total_s=now - self.arrived,
        )


@dataclass(slots=True, eq=False)
class StepPart:
    """What one sequence does in a step.

    Attributes:
        sequence: whose tokens are fed.
        start: position of the first.
        count: tokens of the sequence that are fed.
        guesses: fed behind them.
        wants: the last token is among them, so the next one will be chosen.
    """

    sequence: Sequence
    start: int
    count: int
    guesses: list[int] = field(default_factory=list)
    wants: bool = True

    @property
    def size(self) -> int:
        """Tokens fed, guesses included."""
        return self.count + len(self.guesses)

    @property
    def reach(self) -> int:
        """Positions that they look back on together."""
        size = self.count + len(self.guesses)
        return size * self.start + size * (size + 1) // 2
