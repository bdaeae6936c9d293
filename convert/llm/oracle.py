"""Logits of a language model in float32, from its definition: what everything is judged against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.llm import LlmConfig
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_LOWEST = np.float32(-1e30)


@dataclass(frozen=True, slots=True)
class Given:
    """Embeddings in the place of tokens.

    Attributes:
        positions: (given,) int32, ascending.
        rows: (given, hidden) float32.
    """

    positions: Array
    rows: Array


class Oracle:
    """A decoder over whole sequences, without a cache.

    Args:
        config: what it consists of.
        tensors: weights by name; a layer's are decoded while it is computed.

    Attributes:
        grams: where it is a dict, sums of products of inputs are added to it, by the matrices that
            have the same ones.
    """

    def __init__(self, config: LlmConfig, tensors: Mapping[str, StoredTensor]) -> None:
        self.config, self.tensors = config, tensors
        self.grams: dict[tuple[str, ...], Array] | None = None
        self._held: dict[str, Array] = {}

    def logits(self, sequences: list[Array]) -> list[Array]:
        """Return the logits of all tokens of each sequence, (tokens, vocab) float32."""
        return list(self.heads(self.states(sequences)))

    def states(self, sequences: list[Array], given: Given | None = None) -> list[Array]:
        """Return what the last block gives, (tokens, hidden) of each sequence."""
        *_, last = self.layers(sequences, given)
        return last

    def layers(self, sequences: list[Array], given: Given | None = None) -> Iterator[list[Array]]:
        """Yield what each block gives, (tokens, hidden) of each sequence.

        Args:
            sequences: tokens of each.
            given: embeddings in the place of some tokens of each sequence.
        """
        config = self.config
        length = max(len(ids) for ids in sequences)
        tables = [rope.tables(max(length, 1)) for rope in config.ropes]
        scale = np.float32(config.embedding_scale)
        embedding = self.tensors["token_embd"]
        states = [embedding.rows(ids).float32() * scale for ids in sequences]
        if given is not None:
            for x in states:
                x[given.positions] = given.rows
        for layer in range(config.layers):
            names = [n for n in self.tensors if n.startswith(f"blk.{layer}.")]
            with self._decoded(*names):
                states = [self._block(x, layer, tables) for x in states]
            yield states

    def _note(self, x: Array, *names: str) -> None:
        if self.grams is not None:
            before = self.grams.get(names)
            self.grams[names] = x.T @ x if before is None else before + x.T @ x

    def heads(self, states: list[Array]) -> Iterator[Array]:
        """Yield the logits of what ``states`` gave, one sequence after the other."""
        name = "token_embd" if self.config.tied else "output"
        with self._decoded("output_norm", name):
            for x in states:
                found = self._norm(x, "output_norm") @ self._held[name].T
                yield _capped(found, self.config.logit_softcap)

    @contextmanager
    def _decoded(self, *names: str) -> Iterator[None]:
        self._held = {name: self.tensors[name].float32() for name in names}
        yield
        self._held = {}

    def _norm(self, x: Array, name: str) -> Array:
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        return (
            np.asarray(x / np.sqrt(mean + np.float32(self.config.norm_epsilon))) * self._held[name]
        )

    def _block(self, x: Array, layer: int, tables: list[tuple[Array, Array]]) -> Array:
        at = f"blk.{layer}."
        more = self._attention(self._norm(x, at + "attn_norm"), layer, tables)
        if self.config.post_norms:
            more = self._norm(more, at + "post_attention_norm")
        x = x + more
        inner = self._norm(x, at + "ffn_norm")
        more = self._ffn(inner, at) if self.config.experts is None else self._experts(inner, at)
        if self.config.post_norms:
            more = self._norm(more, at + "post_ffw_norm")
        return np.asarray(x + more)

    def _attention(self, x: Array, layer: int, tables: list[tuple[Array, Array]]) -> Array:
        config, at = self.config, f"blk.{layer}."
        parts = []
        self._note(x, *(f"{at}attn_{n}" for n in "qkv"))
        for name, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
            value = x @ self._held[f"{at}attn_{name}"].T
            if config.qkv_bias:
                value = value + self._held[f"{at}attn_{name}.bias"]
            if name != "v" and config.qk_norm_rows:
                value = self._norm(value, f"{at}attn_{name}_norm")
            value = value.reshape(len(x), heads, config.head_dim)
            if name != "v" and config.qk_norm:
                value = self._norm(value, f"{at}attn_{name}_norm")
            if name != "v" and config.layer_rope[layer] >= 0:
                value = rotated(value, *tables[config.layer_rope[layer]])
            parts.append(value)
        q, k, v = parts
        mixed = attended(q, k, v, config, config.windows[layer])
        mixed = mixed.reshape(len(x), -1)
        self._note(mixed, at + "attn_output")
        return np.asarray(mixed @ self._held[at + "attn_output"].T)

    def _gated(self, gate: Array, up: Array) -> Array:
        if self.config.activation == "silu":
            return np.asarray(gate / (1 + np.exp(-gate)) * up)
        root = np.float32((2 / np.pi) ** 0.5)
        inner = np.tanh(root * (gate + np.float32(0.044715) * gate * gate * gate))
        return np.asarray(np.float32(0.5) * gate * (1 + inner) * up)

    def _ffn(self, x: Array, at: str) -> Array:
        self._note(x, at + "ffn_gate", at + "ffn_up")
        gate, up = (x @ self._held[f"{at}ffn_{n}"].T for n in ("gate", "up"))
        inner = self._gated(gate, up)
        self._note(inner, at + "ffn_down")
        return np.asarray(inner @ self._held[at + "ffn_down"].T)

    def _experts(self, x: Array, at: str) -> Array:
        experts = self.config.experts
        if experts is None:
            raise TypeError("the model has no experts")
        scores = x @ self._held[at + "ffn_gate_inp"].T
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        # Of equal shares the first ones.
        chosen = np.argsort(-shares, axis=-1, kind="stable")[:, : experts.used]
        weights = np.take_along_axis(shares, chosen, -1)
        if experts.normalised:
            weights = weights / weights.sum(-1, keepdims=True)
        found = np.zeros_like(x)
        gates, ups, downs = (self._held[f"{at}ffn_{n}_exps"] for n in ("gate", "up", "down"))
        for expert in range(experts.count):
            rows, positions = np.nonzero(chosen == expert)
            if rows.size:
                inner = self._gated(x[rows] @ gates[expert].T, x[rows] @ ups[expert].T)
                found[rows] += (inner @ downs[expert].T) * weights[rows, positions, None]
        return found


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Turn the first elements of heads, (tokens, heads, size), by their positions from 0."""
    half = cos.shape[1]
    c, s = cos[: len(x), None], sin[: len(x), None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)


def attended(q: Array, k: Array, v: Array, config: LlmConfig, window: int) -> Array:
    """Attend each token to itself and those before it; (tokens, heads, size) each."""
    count, group = len(q), config.heads // config.kv_heads
    positions = np.arange(count)
    seen = positions[:, None] >= positions
    if window:
        seen &= positions[:, None] - positions < window
    found = np.empty_like(q)
    for head in range(config.heads):
        scores = q[:, head] @ k[:, head // group].T * np.float32(config.attention_scale)
        scores = np.where(seen, _capped(scores, config.attention_softcap), _LOWEST)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found[:, head] = weights @ v[:, head // group]
    return found


def _capped(x: Array, cap: float) -> Array:
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x
