"""What an executor has room for, and what is known of it before it runs."""

from __future__ import annotations

from edgeinfer.errors import UsageError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.step import PAGE
from edgeinfer.llm.tape import Tape
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorSizes:
    """What an executor has room for.

    Attributes:
        pages: Pages of the cache.
        max_tokens: Most tokens of a step.
        max_sequences: rows of a table.
        context: tokens of a sequence; 0 for what the model was made for.
        cache: type of the cache; empty for the tape's first.
        threads: Threads of the team; 0 for as many as this process may keep busy.
    """

    pages: int
    max_tokens: int = 512
    max_sequences: int = 32
    context: int = 0
    cache: str = ""
    threads: int = 0


class TapeExecutor:
    """Sizes of what runs a tape; see ``Executor`` for attributes.

    Args:
        config: Configuration of the model.
        tape: Tape of the model.
        sizes: What there is room for.
        digest: Digest of all that the model's numbers depend on.

    Raises:
        UsageError: sizes contradict one another or the model.
    """

    def __init__(self, config: LlmConfig, tape: Tape, sizes: ExecutorSizes, digest: str) -> None:
        self._config, self._tape = config, tape
        self.vocab, self.hidden, self.layers = config.vocab, config.hidden, config.layers
        self.context = sizes.context or config.context
        self.page, self.pages = PAGE, sizes.pages
        self.max_tokens = self.max_rows = sizes.max_tokens
        self.max_sequences = sizes.max_sequences
        self.window = max(config.windows) if all(config.windows) else 0
        self.adapters = tuple(adapter.name for adapter in tape.adapters)
        self.cache = sizes.cache or tape.caches[0]
        _check(sizes, self.context, self.cache, tape)
        self.fingerprint = f"tape {digest} {self.cache} {self.context}"
        self._columns = -(-self.context // PAGE)


def _check(sizes: ExecutorSizes, context: int, cache: str, tape: Tape) -> None:
    """Refuse sizes that contradict one another or the model.

    Raises:
        UsageError: lists what does.
    """
    found = []
    if cache not in tape.caches:
        found.append(f"cache {cache!r}: known: {', '.join(tape.caches)}")
    counts = ("pages", "max_tokens", "max_sequences")
    found += [f"{n}: expected at least 1" for n in counts if getattr(sizes, n) < 1]
    if context < 1 or sizes.threads < 0:
        found.append("context and threads are counts")
    if found:
        raise UsageError("; ".join(found))
