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

from edgeinfer.errors import RunError
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.runtime.llm.params import Logprob, SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
Doubles = npt.NDArray[np.float64]
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
        params: what the caller asked for.
        seed: of the random choices.
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
            self._bias = np.array([t for t, _ in biases]), np.array([b for _, b in biases])
        # Nothing but the largest logit counts.
        self.plain = (
            params.temperature == 0
            and not (self._repeats or self._counted or params.logit_bias)
            and (params.min_tokens == 0 or not len(self._ends))
        )

    def told(self, token: int) -> None:
        """Note a token that was generated."""
        if self._counted:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self._repeats:
            self._seen[token] = None

    def choose(self, row: Floats, index: int, allowed: Mask | None) -> int:
        """Return the next token.

        Args:
            row: (vocab,) logits; not changed.
            index: how many tokens were generated before.
            allowed: (vocab,) the tokens of a grammar; None for all.

        Raises:
            RunError: a logit is not finite, or no token may be chosen.
        """
        if self.plain and allowed is None:
            token = int(row.argmax())
            # NaN is the largest of all for argmax.
            if not -np.inf < row[token] < np.inf:
                raise RunError(f"the model gave the logit {row[token]}")
            return token
        _check(row)
        logits = self._changed(row, index, allowed)
        best = int(logits.argmax())
        if logits[best] == -np.inf:
            raise RunError("no token is left to choose: all are forbidden")
        params = self.params
        if params.temperature == 0:
            return best
        tokens = self._candidates(logits, float(logits[best]))
        weights = _weights(logits[tokens], params.temperature)
        limit = uniform(self._seed, self._branch, index)
        sums = weights.cumsum()
        at = int(sums.searchsorted(limit * sums[-1], side="right"))
        at = min(at, len(tokens) - 1)
        while not weights[at]:
            at -= 1
        return int(tokens[at])

    def _changed(self, row: Floats, index: int, allowed: Mask | None) -> Doubles:
        """Return the logits with penalties and biases, -inf for what may not be chosen."""
        params = self.params
        logits = row.astype(np.float64)
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._repeats and self._seen:
            seen = np.fromiter(self._seen, np.intp, len(self._seen))
            values = logits[seen]
            by = params.repetition_penalty
            logits[seen] = np.where(values > 0, values / by, values * by)
        if self._counts:
            tokens = np.fromiter(self._counts, np.intp, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
            logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
        if index < params.min_tokens:
            logits[self._ends] = -np.inf
        if allowed is not None:
            logits[~allowed] = -np.inf
        return logits

    def _candidates(self, logits: Doubles, best: float) -> npt.NDArray[np.intp]:
        """Return the tokens to choose from, in the order of their ids.

        Temperature comes first, then top-k, top-p of what is left, and min-p.
        """
        params = self.params
        chosen: Any = np.flatnonzero(logits > -np.inf)
        if params.top_k and params.top_k < len(chosen):
            chosen = _largest(logits, chosen, params.top_k)
        if params.top_p < 1:
            chosen = _nucleus(logits, chosen, best, params.temperature, params.top_p)
        if params.min_p > 0:
            least = best + params.temperature * np.log(params.min_p)
            chosen = chosen[logits[chosen] >= least]
        return np.sort(chosen)


def _check(row: Floats) -> None:
    # The sum is finite only if all are, and overflows of sums are no logits.
    if not np.isfinite(row.sum(dtype=np.float64)):
        raise RunError(
            f"the model gave {int((~np.isfinite(row)).sum())} logits that are not finite"
        )


def _weights(logits: Doubles, temperature: float) -> Doubles:
    """Return what is proportional to the probabilities; the largest is 1."""
    weights: Doubles = np.exp((logits - logits.max()) / temperature)
    return weights


def _largest(logits: Doubles, tokens: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """Return the ``count`` tokens of the largest logits; of equal ones those of lower ids."""
    values = logits[tokens]
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = tokens[values > least]
    ties = tokens[values == least][: count - len(above)]
    return np.concatenate([above, ties])


def _nucleus(
    logits: Doubles, tokens: npt.NDArray[np.intp], best: float, temperature: float, share: float
) -> npt.NDArray[np.intp]:
    """Return the fewest tokens whose probabilities add up to ``share``, the best first.

    Only as many as needed are sorted: those within a distance of the best that grows until they
    are probable enough.
    """
    values = logits[tokens]
    weights = np.exp((values - best) / temperature)
    wanted = share * float(weights.sum())
    reach = 4.0
    while True:
        near = np.flatnonzero(weights >= np.exp(-reach))
        if len(near) == len(tokens) or float(weights[near].sum()) >= wanted:
            break
        reach *= 2
        if reach > 800:
            near = np.arange(len(tokens))
    order = near[np.argsort(-values[near], kind="stable")]
    sums = weights[order].cumsum()
    count = int(sums.searchsorted(wanted, side="left")) + 1
    found: npt.NDArray[np.intp] = tokens[order[:count]]
    return found


def logprobs(row: Floats, token: int, top: int) -> Logprob:
    """Return how probable a token and the ``top`` best were by the model's own logits."""
    values = row.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best: tuple[tuple[int, float], ...] = ()
    if top:
        tokens = _largest(values, np.arange(len(values)), min(top, len(values)))
        order = tokens[np.lexsort((tokens, -values[tokens]))]
        best = tuple((int(t), float(values[t])) for t in order)
    return Logprob(token, float(values[token]), best)
