"""Texts from a bundle with a language model: the public face of the engine."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import InputError, LoadError, UsageError
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.bundle import BundledModel, CacheSizes, read
from edgeinfer.runtime.llm.chat import Message, plain
from edgeinfer.runtime.llm.drafting import Drafter
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.runtime.llm.grammar import Grammars
from edgeinfer.runtime.llm.images import ImagePrompt, ImageReader, separated
from edgeinfer.runtime.llm.options import EngineOptions, StepLimits
from edgeinfer.runtime.llm.params import Event, FinishReason, Logprob, SamplingParams, Usage
from edgeinfer.runtime.llm.ranking import INSTRUCTION, answers, question
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.stats import EngineStats
from edgeinfer.runtime.llm.thread import EngineThread
from edgeinfer.runtime.llm.tools import Tool, ToolCall, ToolFormat, tool_format
from edgeinfer.runtime.llm.vectors import Pooling, Vectors
from edgeinfer.runtime.telemetry import SizeHistogram, TimeHistogram

if TYPE_CHECKING:
    from typing import Self

Prompt = str | Sequence[int] | ImagePrompt
"""A text, which gets exactly one token that begins a sequence, and maybe pictures; or tokens, taken
as they are."""

ToolChoice = Literal["auto", "required", "none"]


_log = logging.getLogger("edgeinfer")


@dataclass(frozen=True, slots=True)
class Generated:
    """One generation.

    Attributes:
        text: without what ended it.
        tokens: all of them, what ended it included.
        finish: why it ended.
        usage: what it took.
        logprobs: Log-probabilities of the tokens, where requested.
        stop: the text or token that ended it, where one did.
        calls: Calls of tools, found in the text.
    """

    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    usage: Usage
    logprobs: tuple[Logprob, ...] = ()
    stop: str | int | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of one prompt.

    Attributes:
        prompt: its tokens.
        outputs: as many generations as were requested.
    """

    prompt: tuple[int, ...]
    outputs: tuple[Generated, ...]

    @property
    def text(self) -> str:
        """Text of the first generation."""
        return self.outputs[0].text


def _do_nothing() -> None:
    pass


class LLM:
    """A language model of a bundle, ready to generate.

    >>> with LLM("model.edge") as llm:                                      # doctest: +SKIP
    ...     print(llm.generate("Once upon a time")[0].text)

    Threads and tasks may share one; their requests run together.

    Args:
        bundle: path of it.
        variant: id of the variant; empty for the first that is a language model.
        draft: path of a bundle with a smaller model of the same vocabulary, which guesses.
        context: tokens of a sequence; 0 for what the model was made for.
        sequences: that run at once; more wait.
        cache_mb: for keys and values; 0 takes what all sequences could need, at most half of the
            memory that is free.
        cache: type of it, ``float16``, ``uint8`` or ``uint4``, of those that the bundle has;
            empty for its first.
        threads: Threads of the executor; 0 for all cores that this process may use.
        lookup: guess by copying what followed the same words before.
        slowdown: a step that also reads prompts takes at most so many times what the running
            generations alone take.
        step_ms: that such a step may take even if that is more; 0 for none.
        disk: folder for what was read, so that a restart need not read it again; None for none.
            It holds what the model made of the prompts: whoever reads it may learn them.
        disk_mb: Megabytes on disk of it.
        max_queue: requests that may wait; more are refused.
        idle_sleep_s: after so long without a request weights and cache leave the memory; None for
            never.
        trust: keyword arguments of ``Bundle.open``: ``trusted``, ``key``, ``native`` and others.

    Attributes:
        model: what the bundle holds.
        context: tokens of a sequence.
        tools: how the model writes calls of tools.

    Raises:
        UsageError: the bundle has no language model, or a size is not possible.
        BundleError: it is damaged.
        BackendError: it cannot run here; says what to do.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        *,
        variant: str = "",
        draft: str | os.PathLike[str] | None = None,
        context: int = 0,
        sequences: int = 16,
        cache_mb: int = 0,
        cache: str = "",
        threads: int = 0,
        lookup: bool = True,
        slowdown: float = 2.0,
        step_ms: float = 0.0,
        disk: str | os.PathLike[str] | None = None,
        disk_mb: int = 1024,
        max_queue: int = 1024,
        idle_sleep_s: float | None = None,
        **trust: Any,
    ) -> None:
        sizes = CacheSizes(context, sequences, cache_mb, kind=cache, threads=threads)
        limits = StepLimits(slowdown, step_ms / 1e3 or None)
        options = EngineOptions(limits, max_queue, lookup, Path(disk) if disk else None, disk_mb)
        self._bundles: list[Bundle] = []
        self._thread: EngineThread | None = None
        self._vectors: Vectors | None = None
        self._opening = threading.Lock()
        # Releases the vision tower; a method of ours would keep this from being forgotten.
        self._rest: Callable[[], None] = _do_nothing
        self._ids = itertools.count()
        try:
            self.model = self._open(bundle, sizes, variant, trust)
            if self.model.instead:
                given = (self.model.name, self.model.variant, self.model.device)
                _log.warning("%s: %s runs on the %s: %s", *given, self.model.instead)
            self.context = context or self.model.config.context
            alone = CacheSizes(context, 1, kind=cache, threads=threads)
            # Of the same bundle, whatever its path names by then.
            self._alone = partial(self.model.open_executor, alone)
            if options.disk is not None:
                self._refuse_sealed()
            drafter = None
            if draft is not None:
                # Texts that are longer than it can read go without its guesses.
                room = CacheSizes(0, sequences, cache_mb, threads=threads)
                drafter = self._drafter(self._open(draft, room, "", trust))
            engine = self._engine(options, drafter)
            pictures = self.model.pictures
            if pictures is not None:
                self._rest = pictures.close
            self._thread = EngineThread(engine, idle_sleep_s, self._rest)
            # Who forgets to close it keeps no thread, and loses nothing of what goes to disk.
            weakref.finalize(self, self._thread.close)
        except BaseException:
            self.close()
            raise
        self.tools: ToolFormat = tool_format(self.model.template)

    def _open(
        self, path: str | os.PathLike[str], sizes: CacheSizes, variant: str, trust: dict[str, Any]
    ) -> BundledModel:
        bundle = Bundle.open(path, verify=False, **trust)
        self._bundles.append(bundle)
        found = read(bundle, sizes, variant)
        bundle.keep_counters()
        return found

    def _drafter(self, small: BundledModel) -> Drafter:
        if small.tokenizer.vocabulary != self.model.tokenizer.vocabulary:
            raise LoadError(
                f"the draft model {small.name} has another vocabulary than {self.model.name}"
            )
        return Drafter(small.open_executor(), self.model.config.vocab)

    def _refuse_sealed(self) -> None:
        if any(bundle.sealed_by for bundle in self._bundles):
            raise UsageError("disk: an encrypted bundle leaves nothing on a disk")

    def _engine(self, options: EngineOptions, drafter: Drafter | None) -> Engine:
        model = self.model
        eos = model.generation.eos
        return Engine(
            model.open_executor,
            model.tokenizer.vocabulary,
            eos,
            grammars=partial(Grammars, model.tokenizer.json, model.config.vocab, eos),
            options=options,
            drafter=drafter,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def digest(self) -> str:
        """Digest of the bundle that it was read from."""
        return self.model.digest

    @property
    def engine(self) -> EngineThread:
        """The engine, for servers and others who speak in requests and events.

        Raises:
            ClosedError: never here, but from its methods once this is closed.
        """
        if self._thread is None:
            raise UsageError("the engine was not started")
        return self._thread

    @property
    def defaults(self) -> SamplingParams:
        """What the model's source recommends."""
        texts = self.model.generation
        return SamplingParams(
            temperature=texts.temperature,
            top_k=texts.top_k,
            top_p=texts.top_p,
            min_p=texts.min_p,
            repetition_penalty=texts.repetition_penalty,
        )

    # Requests.

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        adapter: str = "",
        id: str | None = None,
        salt: bytes = b"",
        go_on: Callable[[], None] = _do_nothing,
    ) -> SequenceRequest:
        """Return a request for ``engine``.

        Args:
            prompt: Prompt, maybe with images.
            params: None for the model's own.
            adapter: name of a low-rank adapter; empty for none.
            id: Identifier of the request; None for a new one.
            salt: what was read before is shared only where it is the same.
            go_on: Called before each tile of an image; what it raises ends it.

        Raises:
            InputError: the prompt is neither text nor tokens, or a text that can never fit.
        """
        name = f"local-{next(self._ids)}" if id is None else id
        if isinstance(prompt, ImagePrompt):
            reader = self._picture_reader()
            encode = partial(self.model.tokenizer.encode, most=self.context)
            read = reader.read(prompt, encode, self.context, salt, go_on)
            return SequenceRequest(
                *(name, read.tokens, params or self.defaults, adapter),
                embeddings=read.embeddings,
                embedded=read.positions,
                salt=salt,
            )
        if isinstance(prompt, str):
            tokens = self.model.tokenizer.encode(prompt, most=self.context)
        elif isinstance(prompt, Sequence) and all(isinstance(t, int) for t in prompt):
            tokens = [int(token) for token in prompt]
        else:
            expected = "a text, a list of tokens or an ImagePrompt"
            raise InputError("prompt", expected, type(prompt).__name__)
        return SequenceRequest(name, tokens, params or self.defaults, adapter, salt=salt)

    def _picture_reader(self) -> ImageReader:
        if self.model.pictures is None:
            name = self.model.name
            raise InputError("images", "none", "some", f"{name} is a model that reads text alone")
        return self.model.pictures

    def chat_request(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: ToolChoice | str = "auto",
        adapter: str = "",
        id: str | None = None,
        salt: bytes = b"",
        go_on: Callable[[], None] = _do_nothing,
        **template: Any,
    ) -> SequenceRequest:
        """Return a request for ``engine`` that goes on with a conversation.

        Args:
            messages: each with a ``role`` and a ``content``, oldest first. A content may be a list
                of parts: ``{"type": "text", "text": …}``, and for a model that sees ``{"type":
                "image", "image": …}`` with an image as ``ImagePrompt`` takes it: a text names no
                file.
            params: None for the model's own.
            tools: functions that the model may call: objects with ``name``, ``description`` and
                ``parameters``, a JSON schema, or such objects in ``{"type": "function",
                "function": …}``.
            tool_choice: ``auto`` leaves it to the model, ``required`` makes it call one, ``none``
                makes none, and a name makes it call that one.
            adapter: name of a low-rank adapter; empty for none.
            id: Identifier of the request; None for a new one.
            salt: what was read before is shared only where it is the same.
            go_on: Called before each tile of an image; what it raises ends it.
            template: further variables of the chat template.

        Raises:
            InputError: messages or tools are not of that form.
            UsageError: the model knows no conversations or no tools.
        """
        if self.model.template is None:
            raise UsageError(f"{self.model.name}: the model has no chat template; give a prompt")
        known = [Tool.of(tool) for tool in tools]
        shown = [tool.as_openai() for tool in known] if tool_choice != "none" else []
        messages, images = separated(messages)
        if images or self.model.pictures is not None:
            messages = self._picture_reader().fitted(self.model.template, messages, bool(images))
        else:
            messages = [plain(m, f"messages[{i}]") for i, m in enumerate(messages)]
        text = self.model.template.render(messages, shown or None, **template)
        if shown and not any(tool.name in text for tool in known):
            raise UsageError(f"{self.model.name}: the model's chat template shows no tools")
        params = params or self.defaults
        if known and tool_choice != "none":
            grammar = self.tools.grammar(known, tool_choice)
            if grammar is not None and params.grammar is not None:
                raise InputError("grammar", "none where tools must be called", "one")
            if grammar is not None:
                params = replace(params, grammar=grammar)
            params = replace(params, skip_special=False)
        prompt: Prompt = ImagePrompt(text, images) if images else text
        more: dict[str, Any] = {"adapter": adapter, "id": id, "salt": salt, "go_on": go_on}
        return self.request(prompt, params, **more)

    # Results.

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        unit: bool = True,
        go_on: Callable[[int], None] = lambda tokens: None,
    ) -> Floats:
        """Return a vector of each text, (texts, hidden) float32: the model as one of embeddings.

        It reads with a cache of its own, of one sequence, which the first call makes.

        Args:
            texts: texts or lists of tokens; a token that the model wants at the end is the
                caller's to give.
            pooling: ``last`` takes the state of the last token, ``mean`` the mean of all.
            unit: vectors have the length 1, so that products of two are cosines.
            go_on: Called before each step with the tokens that it reads; what it raises ends it.

        Raises:
            InputError: a text is empty or too long.
            MemoryBudgetError: there is no room for the cache.
        """
        requests = [self.request(text) for text in self._several(texts)]
        if any(request.embeddings is not None for request in requests):
            raise InputError("texts", "texts or lists of tokens", "images")
        return self._reader().of([r.prompt for r in requests], pooling, unit, go_on)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str = INSTRUCTION,
        go_on: Callable[[int], None] = lambda tokens: None,
    ) -> Floats:
        """Return how well each document answers a query, (documents,) float32 from 0 to 1.

        It is for models that were trained to judge so, as Qwen3-Reranker: each document is put into
        that model's prompt, and the odds of "yes" over "no" after it are returned.

        Args:
            query: what is looked for.
            documents: texts to judge.
            instruction: what makes a document right.
            go_on: Called before each step with the tokens that it reads; what it raises ends it.

        Raises:
            UsageError: the vocabulary has no tokens "yes" and "no".
            InputError: a document is too long.
            MemoryBudgetError: there is no room for the cache.
        """
        yes, no = answers(self.model.tokenizer)
        asked = [self.request(question(query, text, instruction)).prompt for text in documents]
        return self._reader().odds(asked, yes, no, go_on)

    def _reader(self) -> Vectors:
        with self._opening:
            if self._vectors is None:
                self._vectors = Vectors(self._alone())
        return self._vectors

    @staticmethod
    def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
        if isinstance(prompts, str | ImagePrompt):
            return [prompts]
        return [prompts] if prompts and all(isinstance(p, int) for p in prompts) else prompts

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str = "",
    ) -> list[Completion]:
        """Generate for one prompt or several, which run together.

        Args:
            prompts: texts or lists of tokens.
            params: for all of them, or one for each; None for the model's own.
            adapter: name of a low-rank adapter; empty for none.

        Raises:
            InputError: a prompt or a parameter is not what the model takes; nothing is generated.
            QueueFullError: more prompts than may wait.
            RunError: the executor failed.
        """
        several = self._several(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.defaults] * len(several)
        if len(params) != len(several):
            raise InputError("params", f"one for each of {len(several)} prompts", f"{len(params)}")
        requests = [
            self.request(prompt, each, adapter=adapter)
            for prompt, each in zip(several, params, strict=True)
        ]
        return self.run(requests)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        **more: Any,
    ) -> Completion:
        """Go on with a conversation; see ``chat_request``."""
        return self.run([self.chat_request(messages, params, **more)])[0]

    def run(self, requests: Sequence[SequenceRequest]) -> list[Completion]:
        """Run requests together and wait for all.

        Raises:
            InputError: one is not what the model takes; the others are cancelled.
            RunError: the executor failed.
        """
        with contextlib.ExitStack() as stack:
            opened = (self.engine.open(request) for request in requests)
            streams = [stack.enter_context(contextlib.closing(stream)) for stream in opened]
            return [
                self._completed(request, stream)
                for request, stream in zip(requests, streams, strict=True)
            ]

    def _completed(self, request: SequenceRequest, stream: Iterator[Event]) -> Completion:
        events: list[list[Event]] = [[] for _ in range(request.params.n)]
        for event in stream:
            events[event.index].append(event)
        return Completion(tuple(request.prompt), tuple(map(self._generated, events)))

    def _generated(self, events: list[Event]) -> Generated:
        last = events[-1]
        if last.error is not None:
            raise last.error
        if last.finish is None or last.usage is None:
            raise UsageError("the last event of a generation says why it ended")
        text = "".join(event.text for event in events)
        return Generated(
            text=text,
            tokens=tuple(token for event in events for token in event.tokens),
            finish=last.finish,
            usage=last.usage,
            logprobs=tuple(each for event in events for each in event.logprobs),
            stop=last.stop,
            calls=self.tools.calls(text),
        )

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str = ""
    ) -> Iterator[Event]:
        """Give what is new as it comes; ending the iteration early cancels the request."""
        return self.engine.open(self.request(prompt, params, adapter=adapter))

    async def stream_async(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str = ""
    ) -> AsyncIterator[Event]:
        """Likewise for asyncio: ``async for event in await llm.stream_async(prompt)``."""
        return await self.engine.submit_async(self.request(prompt, params, adapter=adapter))

    def stats(self) -> EngineStats:
        """Return what the engine did so far."""
        return self.engine.stats()

    def histograms(self) -> dict[str, TimeHistogram]:
        """Return the times of all requests, to be read at once: the engine goes on."""
        return self.engine.call(lambda engine: engine.histograms()).result()

    def sizes(self) -> dict[str, SizeHistogram]:
        """Return how many tokens all texts had, likewise."""
        return self.engine.call(lambda engine: engine.sizes()).result()

    def sleep(self) -> None:
        """Let weights and cache leave the memory; the next request brings them back."""
        self.engine.sleep()

    def wake(self) -> None:
        """Bring weights and cache back before a request comes."""
        self.engine.wake()

    def close(self) -> None:
        """End what runs and release everything; may be called twice."""
        if self._thread is not None:
            self._thread.close()
            self._rest()
        if self._vectors is not None:
            self._vectors.close()
        for bundle in self._bundles:
            bundle.close()
