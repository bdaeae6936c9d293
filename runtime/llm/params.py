"""What a caller may ask of a generation, and what it gets back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from edgeinfer.errors import InputError
from edgeinfer.records import dataclass

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""``stop``: a stop token, a stop string or the end of a grammar; ``length``: no more tokens."""

GrammarKind = Literal["json", "json_schema", "regex", "lark", "gbnf", "choice"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must look like.

    Attributes:
        kind: ``json`` is any JSON object; ``json_schema`` a schema as JSON text; ``regex`` in
            Rust's syntax, for the whole text; ``lark`` llguidance's dialect of Lark; ``gbnf``
            llama.cpp's grammars; ``choice`` a JSON list of texts.
        text: the schema, the expression, the grammar or the list; empty for ``json``.
        schema: JSON text of the schema in a ``lark`` of ours, where nothing else is a caller's.
    """

    kind: GrammarKind
    text: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a generation ends.

    The same prompt, parameters and seed give the same tokens, whatever else runs meanwhile.

    Attributes:
        max_tokens: the most to generate; None goes on to the end of the context.
        min_tokens: tokens before which no end-of-sequence or stop token is chosen.
        temperature: divides the logits; 0 takes the most probable token.
        top_k: tokens to choose from, the most probable ones; 0 for all.
        top_p: choose from the fewest tokens that together are at least so probable (Holtzman et
            al. 2020).
        min_p: choose from tokens that are at least so probable relative to the best (Nguyen et al.
            2024).
        repetition_penalty: divides positive and multiplies negative logits of tokens that are in
            the prompt or were generated (Keskar et al. 2019); 0.01 to 100.
        presence_penalty: is taken from logits of generated tokens; -2 to 2.
        frequency_penalty: is taken from logits of generated tokens, once for each time; -2 to 2.
        logit_bias: is added to logits, by token; -100 to 100, or ``-inf``, which forbids one.
        seed: Seed of the random choices; None draws one.
        n: generations of the same prompt; the prompt is read once.
        stop: texts that end a generation; the text ends before them.
        include_stop: leave the stop text in.
        stop_tokens: tokens that end a generation besides the model's own.
        ignore_eos: the model's own end-of-sequence tokens do not end it.
        logprobs: how many of the most probable tokens to tell the logarithms of their probability
            for, besides the chosen one; None tells none. They are those of the model, before any
            of the above.
        grammar: what the text must look like.
        skip_special: leave special tokens out of the text.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None
    skip_special: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, expected, holds in self._rules():
            if not holds:
                raise InputError(name, expected, repr(getattr(self, name)))

    def _rules(self) -> list[tuple[str, str, bool]]:
        return [
            ("max_tokens", "at least 1", self.max_tokens is None or self.max_tokens >= 1),
            ("min_tokens", "at least 0", self.min_tokens >= 0),
            ("temperature", "at least 0", 0 <= self.temperature < math.inf),
            ("top_k", "at least 0", self.top_k >= 0),
            ("top_p", "above 0, at most 1", 0 < self.top_p <= 1),
            ("min_p", "0 to 1", 0 <= self.min_p <= 1),
            ("repetition_penalty", "0.01 to 100", 0.01 <= self.repetition_penalty <= 100),
            ("presence_penalty", "-2 to 2", -2 <= self.presence_penalty <= 2),
            ("frequency_penalty", "-2 to 2", -2 <= self.frequency_penalty <= 2),
            ("logit_bias", "numbers from -100 to 100, or -inf", _biases(self.logit_bias)),
            ("n", "at least 1", self.n >= 1),
            ("stop", "texts of at least one character", all(self.stop)),
            ("logprobs", "at least 0", self.logprobs is None or self.logprobs >= 0),
        ]

    def fits(self, vocab: int) -> None:
        """Check what depends on the model.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        for name, tokens in (("logit_bias", self.logit_bias), ("stop_tokens", self.stop_tokens)):
            wrong = [token for token in tokens if not 0 <= token < vocab]
            if wrong:
                raise InputError(name, f"tokens from 0 to {vocab - 1}", str(wrong))
        if self.logprobs is not None and self.logprobs > vocab:
            raise InputError("logprobs", f"at most {vocab}", str(self.logprobs))


def _biases(biases: Mapping[int, float]) -> bool:
    return all(bias == -math.inf or -100 <= bias <= 100 for bias in biases.values())


@dataclass(frozen=True, slots=True)
class Logprob:
    """How probable a token was.

    Attributes:
        token: the chosen one.
        logprob: natural logarithm of its probability by the model.
        top: the most probable tokens and theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation took.

    Attributes:
        prompt_tokens: Prompt tokens of the prompt.
        cached_tokens: Cached tokens of them, those that the prefix cache had.
        completion_tokens: generated, those that ended it included.
        drafted_tokens: that speculation proposed.
        accepted_tokens: Accepted tokens of them, those that came true.
        preemptions: how often it gave its pages away and was computed anew.
        queue_s: until it first ran.
        first_token_s: from its arrival to the first token.
        total_s: from its arrival to the end.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    queue_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


@dataclass(slots=True)
class Event:
    """What is new of one generation.

    It is not frozen: that takes longer to make, and every token has one.

    The texts of all events of a generation, one after the other, are its final text.

    Attributes:
        request: its id.
        index: which of the ``n`` generations.
        text: whole characters; may be empty while a stop text might begin or a character is cut.
        tokens: that were generated since the last event.
        logprobs: Log-probabilities of these, where requested.
        finish: why it ended; None while it goes on.
        usage: with the last event.
        error: what failed, where ``finish`` is ``error``.
        stop: the text or token that ended it, where one did.
    """

    request: str
    index: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: Exception | None = None
    stop: str | int | None = None
