"""The gate of language models: distributions of the next token on real text, against float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json, refused
from edgeinfer.convert.llm.oracle import Given, Oracle
from edgeinfer.errors import NotAvailableError, SourceError
from edgeinfer.llm.step import PAGE, Executor, StepBatch
from edgeinfer.media.growth import check_growth
from edgeinfer.records import dataclass
from edgeinfer.types import Array

MARGIN = 1.0
"""Logits by which the likeliest token leads where it has to be the same one."""

_LONGEST = 96
"""Tokens of a text that are looked at."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How far apart two models are on a text.

    Attributes:
        tokens: that were compared.
        kl: mean divergence of the next token's distribution from the right one, in nats.
        top1: share of tokens with the same likeliest next one.
        sure: likewise, of those where the right one leads by a logit.
        perplexity: Perplexity of the text.
        expected: perplexity of the text by the model in float32.
    """

    tokens: int
    kl: float
    top1: float
    sure: float
    perplexity: float
    expected: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens of text: KL {self.kl:.4f}, same token {self.top1:.1%} "
            f"({self.sure:.1%} where sure), perplexity {self.perplexity:.2f} "
            f"({self.expected:.2f} in float32)"
        )


@dataclass(frozen=True, slots=True)
class TextLossLimits:
    """What may be lost.

    Attributes:
        kl: at most.
        sure: at least.
        perplexity: times the right one, at most.
    """

    kl: float
    sure: float
    perplexity: float

    def breaches(self, found: Quality) -> list[str]:
        """List what leaves them."""
        lines = []
        if not found.kl <= self.kl:
            lines.append(f"KL {found.kl:.4f} above {self.kl:g}")
        if not found.sure >= self.sure:
            lines.append(f"same token where sure {found.sure:.1%} below {self.sure:.0%}")
        ratio = found.perplexity / found.expected
        if not ratio <= self.perplexity:
            lines.append(f"perplexity {ratio:.3f} times that in float32, above {self.perplexity:g}")
        return lines


STORED = TextLossLimits(0.02, 0.98, 1.02)
"""Weights as they came: what rounding of activations may cost."""

LIMITS = {
    "fp32": STORED,
    "fp16": STORED,
    "bf16": STORED,
    "w8": STORED,
    # Models of 135 million weights lose most by four bits, larger ones much less.
    "w4": TextLossLimits(0.25, 0.9, 1.25),
}
"""By what was requested."""


_MOST_TOKENS = 4
"""Tokens of a character; one of four bytes may be as many."""


def encoded(tokenizer: bytes, parts: Sequence[str]) -> list[list[int]]:
    """Tokens of texts, without special ones.

    Raises:
        SourceError: the tokenizer is damaged, or a text is more than it can be given.
        NotAvailableError: the tokenizers library is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        install = 'pip install "edgeinfer[llm]"'
        raise NotAvailableError(f"judging a language model needs tokenizers: {install}") from e
    with refused(_unusable):
        bounds = check_growth(parse_json(tokenizer))
        inner = Tokenizer.from_str(tokenizer.decode())
    for part in parts:
        bounds.check(part)
    found: list[list[int]] = []
    for part in parts:
        with refused(_unusable):
            ids = inner.encode(part, add_special_tokens=False).ids
        if len(ids) > _MOST_TOKENS * len(part) + 1:
            raise SourceError(
                f"the model's tokenizer makes {len(ids)} tokens of {len(part)} characters; at most "
                f"{_MOST_TOKENS} for each are taken"
            )
        found.append(ids)
    return found


def _unusable(reason: str) -> SourceError:
    return SourceError(f"the model's tokenizer cannot be used: {reason}")


def texts(tokenizer: bytes) -> list[Array]:
    """Tokens of texts that the package brings.

    Raises:
        SourceError: the tokenizer is damaged.
        NotAvailableError: the tokenizers library is not installed.
    """
    whole = resources.files("edgeinfer.convert.llm").joinpath("texts.txt").read_text("utf-8")
    found = encoded(tokenizer, [part.strip("\n") for part in whole.split("%%")])
    return [np.array(ids[:_LONGEST], np.int32) for ids in found]


class _Sums:
    """What a model's logits add up to, compared with the right ones."""

    def __init__(self) -> None:
        self.sums, self.losses, self.counts = np.zeros(3), np.zeros(2), np.zeros(3)

    def add(self, ids: Array, right: Array, found: Array) -> None:
        p, q = _log_softmax(right), _log_softmax(found)
        same = p.argmax(-1) == q.argmax(-1)
        top = np.partition(right, -2, axis=-1)
        is_sure = top[:, -1] - top[:, -2] > MARGIN
        self.sums += (np.exp(p) * (p - q)).sum(), same.sum(), (same & is_sure).sum()
        self.counts += len(ids), is_sure.sum(), len(ids) - 1
        at = np.arange(len(ids) - 1), ids[1:]
        self.losses += -p[at].sum(dtype=np.float64), -q[at].sum(dtype=np.float64)

    def quality(self) -> Quality:
        count, sure, predicted = self.counts
        return Quality(
            tokens=int(count),
            kl=float(self.sums[0] / count),
            top1=float(self.sums[1] / count),
            # Where it is never sure no such token is lost.
            sure=float(self.sums[2] / sure) if sure else 1.0,
            perplexity=float(np.exp(self.losses[1] / predicted)),
            expected=float(np.exp(self.losses[0] / predicted)),
        )


def compare(
    oracle: Oracle, executors: Sequence[Executor], sequences: Sequence[Array], adapter: int = -1
) -> tuple[list[Quality], list[Array]]:
    """Compare executors, with an adapter or -1 for none, with the model in float32.

    Returns:
        How far apart each is, and the right logits behind each sequence's last token.
    """
    sums = [_Sums() for _ in executors]
    last = []
    states = oracle.states(list(sequences))
    for ids, right in zip(sequences, oracle.heads(states), strict=True):
        for executor, each in zip(executors, sums, strict=True):
            each.add(ids, right, _logits(executor, ids, adapter))
        last.append(right[-1].copy())
    return [each.quality() for each in sums], last


_BEFORE, _BEHIND = 32, 64
"""Tokens of text around an image that a decoder is judged behind."""


def behind_image(
    oracle: Oracle, executors: Sequence[Executor], sequences: Sequence[Array], image: Array
) -> list[Quality]:
    """Compare executors on text behind the embeddings of an image.

    Args:
        oracle: the model in float32.
        executors: to compare.
        sequences: Tokens of two texts.
        image: (rows, hidden) float32.
    """
    before, after = sequences[0][:_BEFORE], sequences[1][:_BEHIND]
    first, count = len(before), len(image)
    given = Given(np.arange(first, first + count, dtype=np.int32), image)
    # What stands in the place of embeddings says nothing.
    ids = np.concatenate([before, np.zeros(count, np.int32), after])
    (right,) = oracle.heads(oracle.states([ids], given))
    sums = [_Sums() for _ in executors]
    for executor, each in zip(executors, sums, strict=True):
        found = _logits(executor, ids, -1, given)
        each.add(after, right[first + count :], found[first + count :])
    return [each.quality() for each in sums]


def length_behind(image: Array) -> int:
    """Return how many tokens ``behind_image`` has a step of."""
    return _BEFORE + len(image) + _BEHIND


def _log_softmax(x: Array) -> Array:
    moved = x - x.max(-1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(-1, keepdims=True, dtype=np.float64)))


def _logits(executor: Executor, ids: Array, adapter: int, given: Given | None = None) -> Array:
    """Logits of all tokens of a sequence."""
    count = len(ids)
    batch = StepBatch(
        tokens=ids,
        positions=np.arange(count, dtype=np.int32),
        owner=np.zeros(count, np.int32),
        table=np.arange(-(-count // PAGE), dtype=np.int32)[None],
        rows=np.arange(count, dtype=np.int32),
        adapter=np.full(count, adapter, np.int32),
        embedded=None if given is None else given.positions,
        embeddings=None if given is None else given.rows,
    )
    return np.asarray(executor.step(batch)).copy()
