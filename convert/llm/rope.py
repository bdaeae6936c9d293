"""Frequencies of rotary position embeddings, as models' files describe them.

Source: the functions of ``transformers.modeling_rope_utils``; Peng et al. 2023 (YaRN), Ding et al.
2024 (LongRoPE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.llm import Rope
from edgeinfer.types import Array


class RopeError(Exception):
    """A description that is not understood."""


_ANY = ("rope_type", "type", "rope_theta", "original_max_position_embeddings", "finetuned")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("attention_factor", "factor", "long_factor", "short_factor"),
    "yarn": (
        *("attention_factor", "beta_fast", "beta_slow", "factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}
"""What each kind of scaling reads, besides what any may say."""


def plain(base: float, dims: int) -> Array:
    """Frequencies of all pairs, float32."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    return np.asarray(1.0 / np.float32(base) ** exponents, np.float32)


@np.errstate(all="ignore")
def rope(base: float, dims: int, scaling: Mapping[str, Any] | None, context: int) -> Rope:
    """Return a rope.

    Args:
        base: Base of the frequencies.
        dims: elements of a head that are rotated.
        scaling: as ``rope_scaling`` of a config.json; None for none.
        context: ``max_position_embeddings``.

    Raises:
        RopeError: its kind is unknown, or a number lacks or gives no frequencies.
    """
    given = {k: v for k, v in (scaling or {}).items() if v is not None}
    kind = str(given.get("rope_type", given.get("type", "default")))
    kind = {"su": "longrope", "linear": "linear"}.get(kind, kind)
    makers = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
    if kind in _KEYS and (odd := sorted(given.keys() - {*_ANY, *_KEYS[kind]})):
        said = ", ".join(f"{name} = {given[name]!r:.60}" for name in odd)
        raise RopeError(f"rope scaling {kind!r} has no {said}")
    if kind == "longrope":
        return _long(base, dims, given, context)
    if kind not in makers:
        known = ", ".join(sorted((*makers, "longrope")))
        raise RopeError(f"rope scaling {kind!r} is not known; known: {known}")
    try:
        frequencies, factor = makers[kind](base, dims, given, context)
    except KeyError as e:
        raise RopeError(f"rope scaling {kind!r} lacks {e}") from e
    return Rope(_numbers(frequencies), factor)


@np.errstate(all="ignore")
def divided(made: Rope, factors: Array) -> Rope:
    """A rope whose frequencies are divided by a factor each, as GGUF files keep them."""
    found = np.array(made.frequencies, np.float32) / factors.astype(np.float32)
    return Rope(_numbers(found), made.factor)


def _numbers(frequencies: Array) -> tuple[float, ...]:
    if not np.isfinite(frequencies).all():
        raise RopeError("frequencies of its rope are not finite: base and factors must be above 0")
    return tuple(float(f) for f in frequencies.astype(np.float32))


def _default(base: float, dims: int, given: dict[str, Any], context: int) -> tuple[Array, float]:
    return plain(base, dims), 1.0


def _linear(base: float, dims: int, given: dict[str, Any], context: int) -> tuple[Array, float]:
    return plain(base, dims) / np.float32(given["factor"]), 1.0


def _llama3(base: float, dims: int, given: dict[str, Any], context: int) -> tuple[Array, float]:
    found = plain(base, dims)
    factor, original = float(given["factor"]), float(given["original_max_position_embeddings"])
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    lengths = 2 * math.pi / found
    smooth = (original / lengths - low) / (high - low)
    between = (1 - smooth) * found / factor + smooth * found
    scaled = np.where(lengths > original / low, found / factor, found)
    is_between = (lengths >= original / high) & (lengths <= original / low)
    return np.where(is_between, between, scaled).astype(np.float32), 1.0


def _yarn(base: float, dims: int, given: dict[str, Any], context: int) -> tuple[Array, float]:
    original = float(given.get("original_max_position_embeddings") or context)
    factor = float(given["factor"])

    def dimension(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(float(given.get("beta_fast") or 32))
    high = dimension(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = high - low or 0.001
    ramp = np.clip((np.arange(dims // 2, dtype=np.float32) - low) / span, 0, 1)
    found = plain(base, dims)
    mixed = found / factor * ramp + found * (1 - ramp)
    attention = given.get("attention_factor")
    if attention is None:
        wide, all_ = given.get("mscale"), given.get("mscale_all_dim")
        if wide and all_:
            attention = _magnitude(factor, float(wide)) / _magnitude(factor, float(all_))
        else:
            attention = _magnitude(factor)
    return mixed.astype(np.float32), float(attention)


def _magnitude(factor: float, share: float = 1.0) -> float:
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def _long(base: float, dims: int, given: dict[str, Any], context: int) -> Rope:
    try:
        short, long = (np.array(given[k], np.float32) for k in ("short_factor", "long_factor"))
    except KeyError as e:
        raise RopeError(f"rope scaling 'longrope' lacks {e}") from e
    if short.shape != (dims // 2,) or long.shape != (dims // 2,):
        raise RopeError(f"rope scaling 'longrope': {short.size} and {long.size} factors, not half")
    original = int(given.get("original_max_position_embeddings") or context)
    factor = float(given.get("factor") or context / original)
    attention = given.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    found = plain(base, dims)
    return Rope(_numbers(found / short), float(attention), original, _numbers(found / long))
