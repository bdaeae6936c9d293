"""What a decoder-only transformer consists of, without its weights.

One block for all families::

    h = x + post_attention_norm(attention(attn_norm(x)))      each norm where there is one
    x = h + post_ffn_norm(ffn(ffn_norm(h)))

Weights are named as in GGUF files, without ``.weight``: ``token_embd``, ``output`` (not where it is
tied), ``output_norm``, and with ``blk.<layer>.`` before them ``attn_norm``, ``attn_q``, ``attn_k``,
``attn_v``, ``attn_output``, ``ffn_norm``, ``ffn_gate``, ``ffn_up``, ``ffn_down``; where the family
has them ``attn_q.bias`` (likewise k and v), ``attn_q_norm``, ``attn_k_norm``,
``post_attention_norm``, ``post_ffw_norm``, ``ffn_gate_inp`` (the router) and ``ffn_gate_exps``,
``ffn_up_exps``, ``ffn_down_exps`` (experts, rows, columns). A matrix has the shape (outputs,
inputs). Factors of norms multiply as they are: a family that stores them less one is read so. The
elements of a head that are rotated together are ``i`` and ``i + dims / 2``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from edgeinfer.bundle import documents
from edgeinfer.records import dataclass
from edgeinfer.types import Array

FILE_NAME = "llm.json"
"""In the folder of a variant."""


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary position embedding.

    Attributes:
        frequencies: angle of each pair of elements at position 1, in radians; half as many as
            elements are rotated. What scales them for longer contexts is in them already.
        factor: that cosines and sines are multiplied by.
        switch: where the frequencies are others for long contexts, the longest one that these are
            for; 0 for all. An executor takes one kind for its whole life, by the context it has:
            keys that were rotated by one cannot be read with the other.
        long_frequencies: for contexts beyond ``switch``; empty where there is none.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    switch: int = 0
    long_frequencies: tuple[float, ...] = ()

    def tables(self, context: int) -> tuple[Array, Array]:
        """Cosines and sines for an executor of this context, each (context, pairs) float32.

        Angles are products of float32, as in the models' own code.
        """
        is_long = self.switch and context > self.switch
        chosen = self.long_frequencies if is_long else self.frequencies
        positions = np.arange(context, dtype=np.float32)
        angles = np.outer(positions, np.array(chosen, np.float32)).astype(np.float64)
        factor = np.float64(self.factor)
        return (
            (np.cos(angles) * factor).astype(np.float32),
            (np.sin(angles) * factor).astype(np.float32),
        )


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward parts of which each token uses a few.

    Attributes:
        count: Number of experts in a layer.
        used: The part used by each token.
        ffn: their inner size.
        normalised: the weights of those used are scaled to a sum of one.
    """

    count: int
    used: int
    ffn: int
    normalised: bool


_MOST = {
    **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim"), 1 << 12),
    **dict.fromkeys(("hidden", "ffn", "vocab"), 1 << 20),
    "context": 1 << 24,
}
"""What sizes may be: tables are made by them, before any weight is looked at."""


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """A decoder.

    Attributes:
        family: name of the architecture, e.g. ``llama``, ``qwen2``, ``gemma3``.
        hidden: elements of a token between blocks.
        layers: blocks.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        head_dim: elements of a head.
        ffn: inner size of the feed-forward part.
        vocab: rows of the embedding, and of the logits.
        context: tokens that it was trained for, or is scaled to.
        norm_epsilon: Epsilon of RMS norms.
        activation: Activation of the gate.
        tied: the head uses the embedding's weights.
        ropes: kinds of position embeddings.
        layer_rope: for each layer its place in ``ropes``; -1 for none.
        windows: for each layer the tokens that one sees, itself included; 0 for all.
        attention_scale: that scores are multiplied by.
        embedding_scale: that embeddings are multiplied by.
        qkv_bias: queries, keys and values have biases.
        qk_norm: queries and keys are normed by head, before they are rotated.
        post_norms: attention and feed-forward parts are normed before they are added.
        attention_softcap: scores are ``cap * tanh(score / cap)``; 0 for none.
        logit_softcap: likewise, logits.
        experts: in place of the feed-forward part; None for none.
        qk_norm_rows: norms of queries and keys go over all heads together.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_epsilon: float
    activation: Literal["silu", "gelu_tanh"]
    tied: bool
    ropes: tuple[Rope, ...]
    layer_rope: tuple[int, ...]
    windows: tuple[int, ...]
    attention_scale: float
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    experts: Experts | None = None
    qk_norm_rows: bool = False

    def to_json(self) -> str:
        """Return the text of ``llm.json``."""
        return documents.text_of(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> LlmConfig:
        """Read the text of ``llm.json`` strictly.

        Raises:
            BundleError: it is no JSON, a key is missing or wrong, or sizes contradict one another;
                lists everything.
        """
        return documents.read(cls, text, FILE_NAME)

    def problems(self) -> Iterator[str]:
        """List what contradicts itself."""
        for name, most in _MOST.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                yield f"{name}: expected 1 to {most}, received {value}"
        if self.kv_heads > 0 and self.heads % self.kv_heads:
            yield f"heads: {self.heads} are no multiple of {self.kv_heads} kv_heads"
        for name in ("layer_rope", "windows"):
            if len(getattr(self, name)) != self.layers:
                yield f"{name}: expected {self.layers} entries, received {len(getattr(self, name))}"
        for i, place in enumerate(self.layer_rope):
            if not -1 <= place < len(self.ropes):
                yield f"layer_rope[{i}]: there is no rope {place}"
        for i, rope in enumerate(self.ropes):
            if not 0 < 2 * len(rope.frequencies) <= self.head_dim:
                yield f"ropes[{i}]: {len(rope.frequencies)} pairs in heads of {self.head_dim}"
            if len(rope.long_frequencies) != (len(rope.frequencies) if rope.switch else 0):
                yield f"ropes[{i}]: {len(rope.long_frequencies)} long_frequencies"
        if min(self.windows, default=0) < 0:
            yield "windows: expected at least 0"
        for name in ("attention_scale", "embedding_scale"):
            if not 0 < getattr(self, name) < math.inf:
                yield f"{name}: expected above 0, received {getattr(self, name)}"
        if self.norm_epsilon < 0:
            yield f"norm_epsilon: expected at least 0, received {self.norm_epsilon}"
        if self.experts is not None and not 0 < self.experts.used <= self.experts.count:
            yield f"experts: {self.experts.used} used of {self.experts.count}"
