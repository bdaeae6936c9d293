"""What families of decoders have in common: how their files name sizes and weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.families.keys import MOST_LAYERS, ConfigValues, short
from edgeinfer.convert.llm.rope import RopeError, divided, rope
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig, Rope
from edgeinfer.records import dataclass

Tensors = dict[str, StoredTensor]
Activation = Literal["silu", "gelu_tanh"]


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
        usual: what a config.json means that leaves it out, as in transformers' class.
    """

    name: str
    gguf: tuple[str, ...]
    hf: tuple[str, ...]
    config: Callable[[Shape], LlmConfig]
    hf_names: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    norm_less_one: bool = False
    split: Callable[[Tensors, LlmConfig], Tensors] | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)


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
        own: names that a config.json has for the decoder.
    """

    keys: ConfigValues
    is_gguf: bool
    common: dict[str, Any]
    tensors: Tensors
    own: Collection[str] = ()

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
        else:
            self.keys.refuse_unknown(self.own)
        made = LlmConfig(**values)
        if found := [*self.keys.problems, *made.problems()]:
            raise SourceError(f"a {family} model's description: " + "; ".join(found))
        return made

    def _activation(self, usual: Activation) -> Activation:
        """The gate's, of a config.json; a family's own where it says nothing."""
        name = "hidden_activation" if usual == "gelu_tanh" else "hidden_act"
        # Gemma's files have both, of which its class reads the one.
        self.keys.ignore("hidden_act")
        value = self.keys.get(name, usual)
        if value not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            what = f"expected {known}, received {short(value)}"
            self.keys.problems.append(f"{name}: {what}")
            return usual
        return _ACTIVATIONS[value]

    def rope(
        self,
        *,
        base: float | None = None,
        kind: str = "",
        partial: bool = False,
        scalings: tuple[str, ...] = (),
    ) -> Rope:
        """Its rope.

        Args:
            base: Base of the frequencies; of a GGUF file in place of the file's, and nothing is
                scaled, of a config.json where its parameters have none.
            kind: Kind of layers, where a config.json has parameters by kind.
            partial: the family may rotate a part of a head, as a config.json says.
            scalings: those that a config.json may ask for; empty for all.
        """
        try:
            if self.is_gguf:
                return self._gguf_rope(base)
            return self._hf_rope(base, kind, partial, scalings)
        except RopeError as e:
            self.keys.problems.append(str(e))
            return Rope((1.0,))

    def _hf_rope(
        self, base: float | None, kind: str, partial: bool, scalings: tuple[str, ...]
    ) -> Rope:
        keys, given = self.keys, self._scaling(kind)
        share = given.pop("partial_rotary_factor", keys.get("partial_rotary_factor", 1.0))
        if share != 1.0 and not partial:
            raise RopeError(f"partial_rotary_factor: {short(share)} is not supported")
        usual = keys.get("rope_theta", 10000.0) if base is None else base
        theta = float(given.pop("rope_theta", usual))
        name = "original_max_position_embeddings"
        if (original := keys.get(name)) is not None and given.setdefault(
            name, original
        ) != original:
            raise RopeError(f"{name}: {original} of the model, {short(given[name])} of its rope")
        asked = given.get("rope_type", given.get("type", "default"))
        if scalings and asked not in scalings:
            known = ", ".join(scalings)
            raise RopeError(f"rope scaling: expected {known}, received {short(asked)}")
        whole = int(int(self.common["head_dim"]) * float(share))
        return rope(theta, whole, given, int(self.common["context"]))

    def _scaling(self, kind: str) -> dict[str, Any]:
        """Parameters of a rope in a config.json, old ones by one name and new ones by another."""
        old, new = (self.keys.get(n) or {} for n in ("rope_scaling", "rope_parameters"))
        by_kind = {k for k, v in new.items() if isinstance(v, Mapping)}
        if by_kind - ({"full_attention", "sliding_attention"} if kind else set()):
            raise RopeError(f"rope_parameters: by kind of layers, {', '.join(sorted(by_kind))}")
        if new and not by_kind and (kind or (old and old != new)):
            what = "expected some for each kind of layers" if kind else "not those of rope_scaling"
            raise RopeError(f"rope_parameters: {what}")
        if not kind:
            return dict(old or new)
        # The old name is of the layers that see everything.
        return {**(new.get(kind) or {}), **(old if kind == "full_attention" else {})}

    def _gguf_rope(self, base: float | None) -> Rope:
        keys, size = self.keys, int(self.common["head_dim"])
        whole = keys.size("rope.dimension_count", size)
        # Ollama's converter names it otherwise.
        usual = keys.get("rope.global.freq_base", 10000.0)
        found = keys.number("rope.freq_base", usual) if base is None else base
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
            scaling |= {"rope_type": kind, "factor": float(factor or 1.0)}
            scaling |= self._yarn() if kind == "yarn" else {}
        made = rope(found, whole, scaling, int(self.common["context"]))
        if share != 1.0 and base is None:
            made = replace(made, factor=made.factor * share)
        factors = self.tensors.get("rope_freqs")
        return made if factors is None else divided(made, factors.float32().ravel())

    def _yarn(self) -> dict[str, float]:
        """What a GGUF file may say of YaRN besides its factor."""
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


def from_hf(data: Mapping[str, Any], tensors: Tensors, own: Collection[str]) -> Shape:
    """Read the sizes of a config.json.

    Args:
        data: its contents, with what the family means where it says nothing.
        tensors: Tensors by our names.
        own: names that it has for the decoder, and not for images.
    """
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
    if not keys.get("tie_word_embeddings", False) and common["tied"]:
        keys.problems.append("weight 'output' is missing, and tie_word_embeddings is false")
    return Shape(keys, False, common, tensors, own)


def hf_windows(shape: Shape, size: int, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Windows by layer, from a config.json that may list its kinds of layers.

    Args:
        shape: Shape of the model.
        size: Size of the window; 0 for none.
        default: whether a layer has the window, where the file does not list kinds.
    """
    kinds = shape.keys.get("layer_types")
    if kinds is None:
        return tuple(size if default(i) else 0 for i in range(shape.layers))
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        what = f"{', '.join(map(repr, unknown))} not supported"
        shape.keys.problems.append(f"layer_types: {what}")
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def one_window(shape: Shape) -> tuple[int, ...]:
    """The window of all layers, from a config.json or a GGUF file."""
    name = "attention.sliding_window" if shape.is_gguf else "sliding_window"
    return (int(shape.keys.get(name, 0)),) * shape.layers
