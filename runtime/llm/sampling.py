"""The choice of the next token from a row of logits.

A choice depends on the row, the tokens so far, the parameters, the seed and how many tokens were
generated before: on nothing else. So it is the same in any schedule, and speculation that accepts a
draft only where it is the very token that would have been chosen loses nothing, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import InputError, RunError
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.runtime.llm.params import Logprob, SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
Values = npt.NDArray[np.floating[Any]]
_BLOCK = 256
_GROUP = 64
"""Values of which the largest is looked for first."""

_TINY, _HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
Ids = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def uniform(seed: int, branch: int, index: int) -> float:
    """Return a number in [0, 1) that depends on its arguments alone.

    Source: splitmix64 (Steele, Lea and Flood 2014), seeded twice.
    """
    bits = _mix(_mix(_mix(seed) + branch * _GOLDEN) + index * _GOLDEN)
    return (bits >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Sampler:
    """Chooses tokens for one generation.

    Args:
        params: what the caller requested.
        seed: Seed of the random choices.
        branch: which of the ``n`` generations.
        eos: the model's end-of-sequence tokens.
        prompt: its tokens, for the repetition penalty.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        branch: int,
        eos: Sequence[int],
        prompt: Sequence[int],
    ) -> None:
        self.params = params
        self._seed, self._branch = seed, branch
        ends = [*(() if params.ignore_eos else eos), *params.stop_tokens]
        self._ends = np.array(sorted(set(ends)), np.intp)
        self._counts: dict[int, int] = {}
        self._repeats = params.repetition_penalty != 1
        self._counted = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._seen = dict.fromkeys(prompt) if self._repeats else {}
        self._bias = None
        if params.logit_bias:
            biases = sorted(params.logit_bias.items())
            values = np.array([b for _, b in biases], np.float32)
            self._bias = np.array([t for t, _ in biases]), values
        # Nothing but the largest logit counts.
        self.plain = (
            params.temperature == 0
            and not (self._repeats or self._counted or params.logit_bias)
            and (params.min_tokens == 0 or not len(self._ends))
        )

    def observe(self, token: int) -> None:
        """Note a token that was generated."""
        if self._counted:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self._repeats:
            self._seen[token] = None

    def choose(self, row: Floats, index: int, allowed: Mask | None, likeliest: int = -1) -> int:
        """Return the next token.

        Args:
            row: (vocab,) logits; not changed.
            index: how many tokens were generated before.
            allowed: (vocab,) the tokens of a grammar; None for all.
            likeliest: the token with the largest logit of a row that is known to be finite; -1
                where nobody has looked.

        Raises:
            RunError: a logit is not finite.
            InputError: what was asked leaves no token to choose.
        """
        if self.plain and allowed is None:
            token = int(row.argmax())
            # NaN is the largest of all for argmax.
            if not -np.inf < row[token] < np.inf:
                raise RunError(f"the model gave the logit {row[token]}")
            return token
        if likeliest < 0:
            _check(row)
        logits = self._changed(row, index, allowed)
        best = likeliest if likeliest >= 0 and logits is row else int(logits.argmax())
        if logits[best] == -np.inf:
            what = "logit_bias, min_tokens, grammar"
            raise InputError(what, "a token that may be chosen", "none", "all are forbidden")
        # NaN and infinity are the largest of all for argmax.
        if not logits[best] < np.inf:
            raise RunError(f"penalties and biases gave the logit {logits[best]}")
        if self.params.temperature == 0:
            return best
        tokens, weights = self._candidates(logits, logits[best])
        at = _pick(weights, uniform(self._seed, self._branch, index))
        return at if tokens is None else int(tokens[at])

    def _changed(self, row: Floats, index: int, allowed: Mask | None) -> Floats:
        """Return the logits with penalties and biases, -inf for what may not be chosen."""
        params = self.params
        ends = index < params.min_tokens and len(self._ends) > 0
        if not (self._repeats or self._counted or self._bias or ends or allowed is not None):
            return row
        logits = row.copy()
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._repeats and self._seen:
            seen = np.fromiter(self._seen, np.intp, len(self._seen))
            values = logits[seen]
            by = np.float32(params.repetition_penalty)
            with np.errstate(over="ignore"):
                logits[seen] = np.where(values > 0, values / by, values * by)
        if self._counts:
            tokens = np.fromiter(self._counts, np.intp, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
        if ends:
            logits[self._ends] = -np.inf
        if allowed is not None:
            logits[~allowed] = -np.inf
        return logits

    def _candidates(self, logits: Floats, best: np.float32) -> tuple[Ids | None, Floats]:
        """Return the tokens to choose from, by id, and what is proportional to their probabilities.

        Temperature comes first, then top-k, top-p of what is left, and min-p. None stands for all
        tokens.
        """
        params = self.params
        # What float32 cannot hold would make NaN of the best, or of what is forbidden.
        factor = np.float32(min(max(1 / params.temperature, _TINY), _HUGE))
        tokens: Ids | None = None
        if 0 < params.top_k < len(logits):
            tokens = _largest(logits, params.top_k)
            logits = logits[tokens]
        weights: Floats = logits - best
        with np.errstate(over="ignore"):
            weights *= factor
            np.exp(weights, out=weights)
        if params.top_p < 1:
            share = params.top_p * float(weights.sum(dtype=np.float64))
            found = _nucleus(weights, share)
            tokens, weights = found if tokens is None else tokens[found], weights[found]
        if params.min_p > 0:
            found = np.flatnonzero(weights >= params.min_p)
            tokens, weights = found if tokens is None else tokens[found], weights[found]
        return tokens, weights


def _pick(weights: Floats, share: float) -> int:
    """Return where the sum of all weights up to there first exceeds a share of the whole."""
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    sums = np.append(blocks, weights[whole:].sum()).cumsum(dtype=np.float64)
    limit = share * sums[-1]
    block = min(int(sums.searchsorted(limit, side="right")), len(sums) - 1)
    first = block * _BLOCK
    inner = weights[first : first + _BLOCK].cumsum(dtype=np.float64)
    if block:
        inner += sums[block - 1]
    at = first + min(int(inner.searchsorted(limit, side="right")), len(inner) - 1)
    # Sums of blocks are rounded in another order than those inside one.
    while not weights[at]:
        at -= 1
    return at


def _check(row: Floats) -> None:
    # NaN is the least and the largest of all.
    if not -np.inf < row.min() <= row.max() < np.inf:
        count = len(row) - int(np.isfinite(row).sum())
        raise RunError(f"the model gave {count} logits that are not finite")


def _largest(values: Values, count: int) -> Ids:
    """Return where the ``count`` largest are, in order; of equal ones the first.

    Values are taken by groups: those ``count`` groups whose largest values are the largest hold as
    many values that are no less than the least of these, so only what is not below it is sorted.
    """
    groups = len(values) // _GROUP
    if groups < count:
        return _above(values, _least(values, count), count)
    tops = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    near = np.flatnonzero(values >= _least(tops, count))
    inner = values[near]
    return np.asarray(near[_above(inner, _least(inner, count), count)])


def _least(values: Values, count: int) -> Any:
    """Return the least of the ``count`` largest."""
    at = len(values) - count
    return np.partition(values, at)[at]


def _above(values: Values, least: Any, count: int) -> Ids:
    above = np.flatnonzero(values > least)
    if len(above) == count:
        return above
    ties = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _nucleus(weights: Floats, share: float) -> Ids:
    """Return where the fewest weights are that add up to ``share``, in order.

    Only as many as needed are sorted: those above a bound that falls until they are enough.
    """
    bound = np.float32(1e-2)
    while True:
        near = np.flatnonzero(weights >= bound)
        inner = weights[near]
        if bound == 0 or float(inner.sum(dtype=np.float64)) >= share:
            break
        bound = np.float32(bound * 1e-2) if bound > 1e-9 else np.float32(0)
    ordered = np.sort(inner)[::-1]
    sums = ordered.cumsum(dtype=np.float64)
    count = min(int(sums.searchsorted(share, side="left")) + 1, len(ordered))
    return np.asarray(near[_above(inner, ordered[count - 1], count)])


def logprobs(row: Floats, token: int, top: int) -> Logprob:
    """Return how probable a token and the ``top`` best were by the model's own logits."""
    values = row.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best: tuple[tuple[int, float], ...] = ()
    if top:
        tokens = _largest(values, min(top, len(values)))
        order = tokens[np.lexsort((tokens, -values[tokens]))]
        best = tuple((int(t), float(values[t])) for t in order)
    return Logprob(token, float(values[token]), best)
