# mypy: disable-error-code="misc"
"""Transformers and recurrent nets in plain ``torch.nn``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BertSizes:
    """Sizes of a BERT encoder."""

    vocabulary: int
    width: int
    inner: int
    heads: int
    layers: int
    positions: int = 512
    epsilon: float = 1e-12


class BertEmbeddings(nn.Module):
    """Words, positions and token types; the names are those of published checkpoints."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position_embeddings = nn.Embedding(sizes.positions, sizes.width)
        self.token_type_embeddings = nn.Embedding(2, sizes.width)
        self.LayerNorm = nn.LayerNorm(sizes.width, eps=sizes.epsilon)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.word_embeddings(ids) + self.token_type_embeddings(torch.zeros_like(ids))
        y: Tensor = self.LayerNorm(x + self.position_embeddings(positions))
        return y


def _named(**parts: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(parts)


class BertLayer(nn.Module):
    """Self-attention and two linear layers, each with its norm after the sum."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        width, inner, epsilon = sizes.width, sizes.inner, sizes.epsilon
        self.heads = sizes.heads
        self.attention = _named(
            self=_named(
                query=nn.Linear(width, width),
                key=nn.Linear(width, width),
                value=nn.Linear(width, width),
            ),
            output=_named(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, epsilon)),
        )
        self.intermediate = _named(dense=nn.Linear(width, inner))
        self.output = _named(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width, epsilon))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        own, out = self.attention["self"], self.attention["output"]
        q, k, v = (
            own[name](x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(2, 3) / (q.shape[-1] ** 0.5) + bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = out["LayerNorm"](x + out["dense"](mixed))
        y = self.output["dense"](functional.gelu(self.intermediate["dense"](x)))
        z: Tensor = self.output["LayerNorm"](x + y)
        return z


class BertEncoder(nn.Module):
    """Devlin et al. 2018; the output is the unit-length mean over a sentence's tokens."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(sizes)
        self.encoder = _named(layer=nn.ModuleList(BertLayer(sizes) for _ in range(sizes.layers)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.to(torch.float32)
        bias = (1.0 - mask)[:, None, None, :] * -1e9
        x = self.embeddings(input_ids)
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        return functional.normalize(mean, dim=1)


class VisionTransformer(nn.Module):
    """ViT-Ti/16 with fewer layers; attention by ``scaled_dot_product_attention``."""

    def __init__(self, width: int = 192, heads: int = 3, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(x.shape[0], -1, -1), tokens), 1) + self.positions
        for layer in self.layers:
            tokens = layer(tokens)
        y: Tensor = self.head(self.norm(tokens[:, 0]))
        return y


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward (Gulati et al. 2020)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = self._feed_forward(width), self._feed_forward(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.before = nn.LayerNorm(width)
        self.widen = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)
        self.after = nn.LayerNorm(width)

    @staticmethod
    def _feed_forward(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = functional.glu(self.widen(self.before(x).transpose(1, 2)), 1)
        y = self.narrow(functional.silu(self.batch_norm(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        z: Tensor = self.after(x + 0.5 * self.second(x))
        return z


class RecurrentNet(nn.Module):
    """Two recurrent layers and a linear one; gives every frame's output and the last state."""

    def __init__(self, kind: str, bidirectional: bool, width: int = 32) -> None:
        super().__init__()
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind]
        self.recurrent = layer(16, width, 2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (2 if bidirectional else 1), 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frames, state = self.recurrent(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(frames), hidden


class AudioNet(nn.Module):
    """One-dimensional convolutions over a recording: strided, dilated, gated, pooled over time."""

    def __init__(self, classes: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 32, 25, 4, 12), nn.BatchNorm1d(32), nn.ReLU())
        self.gates = nn.ModuleList(
            nn.Conv1d(32, 64, 3, padding=d, dilation=d, padding_mode="zeros") for d in (1, 2, 4, 8)
        )
        self.pool = nn.MaxPool1d(4)
        self.depthwise = nn.Sequential(
            nn.Conv1d(32, 32, 9, padding=4, groups=32), nn.Conv1d(32, 64, 1), nn.Hardtanh()
        )
        self.grow = nn.ConvTranspose1d(64, 16, 4, 2, 1)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x[:, None])
        for gate in self.gates:
            value, weight = gate(x).chunk(2, 1)
            x = x + torch.tanh(value) * torch.sigmoid(weight)
        x = self.depthwise(self.pool(x))
        scores = self.head(x.mean(2)).log_softmax(1)
        return scores, self.grow(x)
