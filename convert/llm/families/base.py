"""What families of decoders have in common: how their files name sizes and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.rope import RopeError, divided, rope
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig, Rope
from edgeinfer.records import dataclass

Tensors = dict[str, StoredTensor]
Activation = Literal["silu", "gelu_tanh"]


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
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The value, where it is there and not null."""
        self.read.add(name)
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
        self.read.add(name)
        value = self.data.get(self.prefix + name)
        # Lists of numbers are arrays, which are in no tuple.
        if isinstance(value, np.ndarray) or value not in unless:
            self.problems.append(f"{self.prefix}{name}: {_short(value)} is not supported")

    def refuse_unread(self, context: int) -> None:
        """Note what a GGUF file says of its model that nobody asked for and that may matter."""
        for key in sorted(k for k in self.data if k.startswith(self.prefix)):
            name = key.removeprefix(self.prefix)
            if name in self.read or name in _SAYS_NOTHING or name.startswith(_OF_PICTURES):
                continue
            if name == "attention.sliding_window" and self.size(name, context) >= context:
                continue
            self.refuse(name, unless=(None, *_NEUTRAL.get(name, ())))


_SAYS_NOTHING = frozenset({
    *("vocab_size", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned"),
    *("attention.layer_norm_epsilon", "feed_forward_length", "expert_feed_forward_length"),
})  # fmt: skip
_OF_PICTURES = ("vision.", "mm.")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_gating_func": (0, 1),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    **dict.fromkeys(
        ("leading_dense_block_count", "nextn_predict_layers", "n_deepstack_layers"), (0,)
    ),
    **dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count"), (0,)),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count"), (0, 1)),
    **dict.fromkeys(("interleave_moe_layer_step", "moe_every_n_layers"), (0, 1)),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), (0.0, 1.0)),
    **dict.fromkeys(("attention.output_scale", "expert_weights_scale"), (0.0, 1.0)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias"), (0.0,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (0.0,)),
    **dict.fromkeys(("router_logit_softcapping", "rope.scaling.yarn_log_multiplier"), (0.0,)),
}
"""Values of a GGUF file with which a model computes what it does without them."""


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


_ACTIVATIONS: dict[Any, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu_tanh", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
}


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
        activation: Activation = "silu",
        **more: Any,
    ) -> LlmConfig:
        """The description, with what a family has of its own.

        Raises:
            SourceError: something lacks or is not supported; lists everything.
        """
        if not self.is_gguf:
            activation = self._activation(activation)
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
        if self.is_gguf:
            self.keys.refuse_unread(int(self.common["context"]))
        made = LlmConfig(**values)
        if found := [*self.keys.problems, *made.problems()]:
            raise SourceError(f"a {family} model's description: " + "; ".join(found))
        return made

    def _activation(self, usual: Activation) -> Activation:
        """The gate's, of a config.json; a family's own where it says nothing."""
        name = "hidden_activation" if usual == "gelu_tanh" else "hidden_act"
        value = self.keys.get(name, usual)
        if value not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            what = f"expected {known}, received {_short(value)}"
            self.keys.problems.append(f"{name}: {what}")
            return usual
        return _ACTIVATIONS[value]

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
        factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear"))
        kind = keys.get("rope.scaling.type", "none" if not factor else "linear")
        share = keys.number("rope.scaling.attn_factor", 1.0)
        if (original := keys.get("rope.scaling.original_context_length")) is not None:
            scaling["original_max_position_embeddings"] = int(original)
        if long is not None and short is not None:
            scaling |= {"rope_type": "longrope", "long_factor": long.float32().ravel()}
            scaling |= {"short_factor": short.float32().ravel()}
            if keys.get("rope.scaling.attn_factor") is not None:
                scaling["attention_factor"], share = share, 1.0
        elif kind != "none" and base is None:
            # No factor, or zero, is none.
            scaling |= {"rope_type": kind, "factor": float(factor or 1.0), **self._yarn()}
        made = rope(found, whole, scaling, int(self.common["context"]))
        if share != 1.0 and base is None:
            made = replace(made, factor=made.factor * share)
        factors = self.tensors.get("rope_freqs")
        return made if factors is None else divided(made, factors.float32().ravel())

    def _yarn(self) -> dict[str, float]:
        """What a GGUF file may say of YaRN beside its factor."""
        keys = self.keys
        keys.refuse("rope.scaling.yarn_ext_factor", unless=(None, 1.0, -1.0))
        keys.refuse("rope.scaling.yarn_attn_factor", unless=(None, 1.0, -1.0))
        names = {n: keys.get(f"rope.scaling.yarn_{n}") for n in ("beta_fast", "beta_slow")}
        return {name: float(value) for name, value in names.items() if value is not None}


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
    if common["tied"] and keys.get("tie_word_embeddings", True) is False:
        keys.problems.append("weight 'output' is missing, and tie_word_embeddings is false")
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
