"""What families of decoders have in common: how their files name sizes and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.rope import RopeError, divided, rope
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig, Rope
from edgeinfer.records import dataclass

Tensors = dict[str, StoredTensor]


MOST = 1 << 24
"""Of any count in a description; what is made for each of them stays small."""

MOST_LAYERS = 4096


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:59]}…"


class ConfigValues:
    """Values of a description, of which those that lack are collected."""

    def __init__(self, data: Mapping[str, Any], prefix: str = "") -> None:
        self.data, self.prefix = data, prefix
        self.problems: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        """The value, where it is there and not null."""
        found = self.data.get(self.prefix + name)
        return default if found is None else found

    def size(self, name: str, default: int | None = None) -> int:
        """A count; noted as a problem where it is none."""
        value = self.get(name, default)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = int(value.flat[0])
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            what = f"expected a count, at most {MOST}, received {_short(value)}"
            what = "is missing" if value is None else what
            self.problems.append(f"{self.prefix}{name}: {what}")
            return 1
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number; noted as a problem where it is none."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            what = f"expected a number, received {_short(value)}"
            what = "is missing" if value is None else what
            self.problems.append(f"{self.prefix}{name}: {what}")
            return 1.0
        return float(value)

    def refuse(self, name: str, *, unless: tuple[Any, ...] = (None, False)) -> None:
        """Note what the block has no place for."""
        value = self.data.get(self.prefix + name)
        if value not in unless:
            self.problems.append(f"{self.prefix}{name}: {_short(value)} is not supported")


@dataclass(frozen=True, slots=True)
class Family:
    """A family.

    Attributes:
        name: Name of ours.
        gguf: names of its architecture in GGUF files.
        hf: ``model_type`` of its config.json.
        config: makes the description from what both kinds of files are read into.
        hf_names: weights' names in Hugging Face's files where they are not the usual ones.
        paired: in GGUF files rows of queries and keys lie in pairs that are rotated together.
        norm_less_one: Hugging Face's files keep factors of norms less one.
        split: takes fused weights apart; gets names as ours.
    """

    name: str
    gguf: tuple[str, ...]
    hf: tuple[str, ...]
    config: Callable[[Shape], LlmConfig]
    hf_names: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    norm_less_one: bool = False
    split: Callable[[Tensors, LlmConfig], Tensors] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder, wherever they come from.

    Attributes:
        keys: the file's own description.
        is_gguf: Whether it is a GGUF file.
        common: arguments of ``LlmConfig`` that all families read alike.
        tensors: Tensors of the file, by our names where it is a GGUF file, for what these tell.
    """

    keys: ConfigValues
    is_gguf: bool
    common: dict[str, Any]
    tensors: Tensors

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return int(self.common["layers"])

    def make(
        self,
        family: str,
        *,
        ropes: tuple[Rope, ...] | None = None,
        layer_rope: tuple[int, ...] | None = None,
        windows: tuple[int, ...] | None = None,
        activation: Literal["silu", "gelu_tanh"] = "silu",
        **more: Any,
    ) -> LlmConfig:
        """The description, with what a family has of its own.

        Raises:
            SourceError: something lacks or is not supported; lists everything.
        """
        values = {
            **self.common,
            "family": family,
            "ropes": ropes or (self.rope(),),
            "layer_rope": layer_rope or (0,) * self.layers,
            "windows": windows or (0,) * self.layers,
            "activation": activation,
            **more,
        }
        values.setdefault("attention_scale", float(values["head_dim"]) ** -0.5)
        made = LlmConfig(**values)
        if found := [*self.keys.problems, *made.problems()]:
            raise SourceError(f"a {family} model's description: " + "; ".join(found))
        return made

    def rope(self, *, base: float | None = None, dims: int = 0, kind: str = "") -> Rope:
        """Its rope.

        Args:
            base: in place of the file's.
            dims: elements of a head that are rotated; 0 for what the file says.
            kind: Kind of layers, where a config.json has parameters by kind.
        """
        try:
            if self.is_gguf:
                return self._gguf_rope(base, dims)
            return self._hf_rope(base, dims, kind)
        except RopeError as e:
            self.keys.problems.append(str(e))
            return Rope((1.0,))

    def _hf_rope(self, base: float | None, dims: int, kind: str) -> Rope:
        keys, size = self.keys, int(self.common["head_dim"])
        given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
        if kind and kind in given:
            given = given[kind]
        share = given.get("partial_rotary_factor", keys.get("partial_rotary_factor", 1.0))
        whole = dims or int(size * float(share))
        stated = given.get("rope_theta", keys.get("rope_theta", 10000.0))
        original = keys.get("original_max_position_embeddings")
        scaling = {**({"original_max_position_embeddings": original} if original else {}), **given}
        found = float(stated if base is None else base)
        return rope(found, whole, scaling, int(self.common["context"]))

    def _gguf_rope(self, base: float | None, dims: int) -> Rope:
        keys, size = self.keys, int(self.common["head_dim"])
        whole = dims or keys.size("rope.dimension_count", size)
        found = keys.number("rope.freq_base", 10000.0) if base is None else base
        long, short = (self.tensors.get(f"rope_factors_{k}") for k in ("long", "short"))
        scaling: dict[str, Any] = {}
        if (original := keys.get("rope.scaling.original_context_length")) is not None:
            scaling["original_max_position_embeddings"] = int(original)
        if long is not None and short is not None:
            scaling |= {"rope_type": "longrope", "long_factor": long.float32().ravel()}
            scaling |= {"short_factor": short.float32().ravel()}
            if (factor := keys.get("rope.scaling.attn_factor")) is not None:
                scaling["attention_factor"] = float(factor)
        elif (kind := keys.get("rope.scaling.type", "none")) != "none" and base is None:
            scaling |= {"rope_type": kind, "factor": keys.number("rope.scaling.factor", 1.0)}
        made = rope(found, whole, scaling, int(self.common["context"]))
        factors = self.tensors.get("rope_freqs")
        return made if factors is None else divided(made, factors.float32().ravel())


def _layers(keys: ConfigValues, name: str) -> int:
    found = keys.size(name)
    if found > MOST_LAYERS:
        keys.problems.append(f"{keys.prefix}{name}: {found} layers, at most {MOST_LAYERS}")
    return min(found, MOST_LAYERS)


def from_gguf(architecture: str, fields: Mapping[str, Any], tensors: Tensors) -> Shape:
    """Read the sizes of a GGUF file."""
    keys = ConfigValues(fields, f"{architecture}.")
    heads, hidden = keys.size("attention.head_count"), keys.size("embedding_length")
    embedding = tensors.get("token_embd")
    if embedding is None:
        keys.problems.append("tensor 'token_embd.weight' is missing")
    common: dict[str, Any] = {
        "hidden": hidden,
        "layers": _layers(keys, "block_count"),
        "heads": heads,
        "kv_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": keys.size("attention.key_length", hidden // heads),
        "ffn": keys.size("feed_forward_length", keys.get("expert_feed_forward_length")),
        "vocab": 1 if embedding is None else embedding.shape[0],
        "context": keys.size("context_length"),
        "norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "tied": "output" not in tensors,
    }
    size = int(common["head_dim"])
    if (values := keys.size("attention.value_length", size)) != size:
        keys.problems.append(f"values have {values} elements a head, keys {size}")
    return Shape(keys, True, common, tensors)


def from_hf(data: Mapping[str, Any], tensors: Tensors) -> Shape:
    """Read the sizes of a config.json."""
    keys = ConfigValues(data)
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    common: dict[str, Any] = {
        "hidden": hidden,
        "layers": _layers(keys, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": keys.size("num_key_value_heads", heads),
        "head_dim": keys.size("head_dim", hidden // heads),
        "ffn": keys.size("intermediate_size", keys.get("moe_intermediate_size")),
        "vocab": keys.size("vocab_size"),
        "context": keys.size("max_position_embeddings"),
        "norm_epsilon": keys.number("rms_norm_eps"),
        "tied": "output" not in tensors,
    }
    for name in ("mlp_bias", "clip_qkv", "quantization_config"):
        keys.refuse(name)
    return Shape(keys, False, common, tensors)


def hf_windows(shape: Shape, default: Callable[[int], bool] | None = None) -> tuple[int, ...]:
    """Windows by layer, from a config.json.

    Args:
        shape: Shape of the model.
        default: whether a layer has the window, where the file does not list its kinds of layers.
    """
    keys, size = shape.keys, shape.keys.get("sliding_window") or 0
    kinds = keys.get("layer_types")
    if kinds is not None:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            keys.problems.append(f"layer_types: {', '.join(map(repr, unknown))} not supported")
        return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    if default is None:
        return (0,) * shape.layers
    return tuple(size if default(i) else 0 for i in range(shape.layers))
