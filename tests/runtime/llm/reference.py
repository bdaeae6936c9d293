"""The executor as it is defined: NumPy, float32, one token after the other.

It is slow and simple. Tests compare faster executors with it, and the engine's own tests run on it:
as every token is computed alone, by the same operations on the same shapes, a row's bits cannot
depend on anything but its own sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from edgeinfer.errors import ClosedError, LoadError
from edgeinfer.llm.config import LlmConfig
from edgeinfer.runtime.llm.executor import PAGE, Bytes, Floats, Ints, StepBatch

Adapter = Mapping[str, tuple[Floats, Floats]]
"""By weight: A (rank, inputs) and B (outputs, rank); ``B A x`` is added to the product."""


class ReferenceExecutor:
    """Runs a decoder by its definition; see ``Executor`` for attributes and methods.

    Args:
        config: Configuration of the model.
        weights: float32, named as ``edgeinfer.llm.config`` says.
        pages: Pages of the cache.
        max_tokens: Most tokens of a step.
        max_sequences: rows of a table.
        adapters: low-rank adapters by name.

    Raises:
        LoadError: a weight is missing.
    """

    def __init__(
        self,
        config: LlmConfig,
        weights: Mapping[str, Floats],
        *,
        pages: int,
        max_tokens: int = 512,
        max_sequences: int = 32,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        self._config = config
        self._weights = {name: np.ascontiguousarray(w, np.float32) for name, w in weights.items()}
        if missing := [n for n in ("token_embd", "output_norm") if n not in weights]:
            raise LoadError(f"weights are missing: {', '.join(missing)}")
        self._adapters = list((adapters or {}).values())
        self.vocab, self.hidden, self.context = config.vocab, config.hidden, config.context
        self.page, self.pages, self.layers = PAGE, pages, config.layers
        self.max_tokens = self.max_rows = max_tokens
        self.max_sequences = max_sequences
        self.window = max(config.windows) if all(config.windows) else 0
        self.adapters = tuple(adapters or {})
        shape = (pages, config.layers, 2, PAGE, config.kv_heads, config.head_dim)
        self._cache = np.zeros(shape, np.float32)
        self.page_bytes = self._cache[0].nbytes
        self.fingerprint = self._fingerprint()
        self.best: Ints | None = None
        self._closed = False

    def _fingerprint(self) -> str:
        digest = blake2b(self._config.to_json().encode(), digest_size=16)
        tables: list[Mapping[str, Any]] = [self._weights, *self._adapters]
        for table in tables:
            for name in sorted(table):
                digest.update(name.encode())
                for array in table[name] if isinstance(table[name], tuple) else (table[name],):
                    digest.update(np.ascontiguousarray(array).data)
        return f"reference float32 {digest.hexdigest()}"

    def step(self, batch: StepBatch) -> Floats:
        """Compute the logits of the wanted rows and append keys and values to the cache."""
        logits = [self._logits(x) for x in self.states(batch)]
        return np.array(logits, np.float32).reshape(len(logits), self.vocab)

    def states(self, batch: StepBatch) -> Floats:
        """Like ``step``, but return what goes into the head."""
        if self._closed:
            raise ClosedError("the executor is closed")
        given: dict[int, Floats] = {}
        if batch.embedded is not None and batch.embeddings is not None:
            given = dict(zip(batch.embedded.tolist(), batch.embeddings, strict=True))
        wanted = set(batch.rows.tolist())
        states = []
        for index, token in enumerate(batch.tokens.tolist()):
            adapter = -1 if batch.adapter is None else int(batch.adapter[index])
            x = given.get(index)
            if x is None:
                x = self._weights["token_embd"][token]
                x = x * np.float32(self._config.embedding_scale)
            position = int(batch.positions[index])
            pages = batch.table[batch.owner[index], : position // PAGE + 1]
            x = self._token(x.astype(np.float32), position, pages, adapter)
            if index in wanted:
                states.append(self._norm(x, "output_norm"))
        return np.array(states, np.float32).reshape(len(states), self.hidden)

    def _token(self, x: Floats, position: int, pages: Any, adapter: int) -> Floats:
        config = self._config
        for layer in range(config.layers):
            name = f"blk.{layer}."
            y = self._norm(x, name + "attn_norm")
            y = self._attention(y, layer, position, pages, adapter)
            if config.post_norms:
                y = self._norm(y, name + "post_attention_norm")
            x = x + y
            y = self._norm(x, name + "ffn_norm")
            y = self._experts(y, name) if config.experts else self._ffn(y, name, adapter)
            if config.post_norms:
                y = self._norm(y, name + "post_ffw_norm")
            x = x + y
        return x

    def _logits(self, x: Floats) -> Floats:
        config = self._config
        y: Floats = self._weights["token_embd" if config.tied else "output"] @ x
        cap = np.float32(config.logit_softcap)
        if config.logit_softcap:
            y = np.tanh(y / cap) * cap
        return y

    def _norm(self, x: Floats, name: str) -> Floats:
        # A family without a norm here has no weight for it.
        return self._normed(x, self._weights[name]) if name in self._weights else x

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._config.norm_epsilon)
        y: Floats = (x / scale * weight).astype(np.float32)
        return y

    def _product(self, x: Floats, name: str, adapter: int) -> Floats:
        y: Floats = self._weights[name] @ x
        if name + ".bias" in self._weights:
            y = y + self._weights[name + ".bias"]
        if adapter >= 0 and name in self._adapters[adapter]:
            low, high = self._adapters[adapter][name]
            y = y + high @ (low @ x)
        return y

    def _attention(self, x: Floats, layer: int, position: int, pages: Any, adapter: int) -> Floats:
        config, name = self._config, f"blk.{layer}."
        q, k, v = (self._product(x, name + "attn_" + part, adapter) for part in "qkv")
        if config.qk_norm and config.qk_norm_rows:
            q, k = self._norm(q, name + "attn_q_norm"), self._norm(k, name + "attn_k_norm")
        q, k = q.reshape(config.heads, -1), k.reshape(config.kv_heads, -1)
        if config.qk_norm and not config.qk_norm_rows:
            q, k = self._norm(q, name + "attn_q_norm"), self._norm(k, name + "attn_k_norm")
        q, k = self._turned(q, layer, position), self._turned(k, layer, position)
        cache = self._cache[:, layer]
        cache[pages[-1], 0, position % PAGE] = k
        cache[pages[-1], 1, position % PAGE] = v.reshape(config.kv_heads, -1)
        window = config.windows[layer]
        first = max(0, position + 1 - window) if window else 0
        seen = cache[pages[first // PAGE :]]
        start, end = first % PAGE, position + 1 - first // PAGE * PAGE
        keys = seen[:, 0].reshape(-1, config.kv_heads, config.head_dim)[start:end]
        values = seen[:, 1].reshape(-1, config.kv_heads, config.head_dim)[start:end]
        group = config.heads // config.kv_heads
        out = np.empty((config.heads, config.head_dim), np.float32)
        for head in range(config.heads):
            scores = np.ascontiguousarray(keys[:, head // group]) @ q[head]
            scores = scores * np.float32(config.attention_scale)
            if config.attention_softcap:
                cap = np.float32(config.attention_softcap)
                scores = np.tanh(scores / cap) * cap
            weights = np.exp(scores - scores.max())
            shares = weights / weights.sum()
            out[head] = shares @ np.ascontiguousarray(values[:, head // group])
        return self._product(out.reshape(-1), name + "attn_output", adapter)

    def _turned(self, x: Floats, layer: int, position: int) -> Floats:
        place = self._config.layer_rope[layer]
        if place < 0:
            return x
        rope = self._config.ropes[place]
        angles = position * np.array(rope.frequencies)
        cos = (np.cos(angles) * rope.factor).astype(np.float32)
        sin = (np.sin(angles) * rope.factor).astype(np.float32)
        half = len(angles)
        low, high, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=1)

    def _ffn(self, x: Floats, name: str, adapter: int) -> Floats:
        gate = self._activated(self._product(x, name + "ffn_gate", adapter))
        up = self._product(x, name + "ffn_up", adapter)
        return self._product(gate * up, name + "ffn_down", adapter)

    def _activated(self, x: Floats) -> Floats:
        if self._config.activation == "silu":
            y: Floats = x / (1 + np.exp(-x))
            return y
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        y = (0.5 * x * (1 + np.tanh(inner))).astype(np.float32)
        return y

    def _experts(self, x: Floats, name: str) -> Floats:
        experts = self._config.experts
        if experts is None:
            raise LoadError("the model has no experts")
        scores = self._weights[name + "ffn_gate_inp"] @ x
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        # Ties go to the lower number.
        chosen = np.argsort(-shares, kind="stable")[: experts.used]
        factors = shares[chosen]
        if experts.normalised:
            factors = factors / factors.sum()
        gate, up, down = (self._weights[f"{name}ffn_{n}_exps"] for n in ("gate", "up", "down"))
        y = np.zeros(self.hidden, np.float32)
        for expert, factor in zip(chosen, factors, strict=True):
            inner = self._activated(gate[expert] @ x) * (up[expert] @ x)
            y = y + factor * (down[expert] @ inner)
        return y

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of all layers."""
        self._cache[target] = self._cache[source]

    def read_page(self, page: int, into: Bytes) -> None:
        """Copy a page of all layers into (page_bytes,) uint8."""
        into[:] = self._cache[page].reshape(-1).view(np.uint8)

    def write_page(self, page: int, data: Bytes) -> None:
        """Fill a page of all layers with what ``read_page`` gave."""
        self._cache[page].reshape(-1).view(np.uint8)[:] = data

    def close(self) -> None:
        """Release the cache; may be called twice."""
        self._closed = True
        self._cache = self._cache[:0]
