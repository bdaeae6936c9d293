"""What a model's description says: read, known to change no number, or refused by name.

Source: the configuration classes of transformers 5.24, of which each family has one; GGUF's
specification, and what llama.cpp's ``llama-model.cpp`` reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

MOST = 1 << 24
"""Of any count in a description; what is made for each of them stays small."""

MOST_LAYERS = 4096


def short(value: object) -> str:
    """Return a value as a message shows it."""
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
            what = f"expected a count, at most {MOST}, received {short(value)}"
            what = "is missing" if value is None else what
            self.problems.append(f"{self.prefix}{name}: {what}")
            return 1
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number; noted as a problem where it is none."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            what = f"expected a number, received {short(value)}"
            what = "is missing" if value is None else what
            self.problems.append(f"{self.prefix}{name}: {what}")
            return 1.0
        return float(value)

    def ignore(self, *names: str) -> None:
        """Say that these change nothing, whatever their values."""
        self.read.update(names)

    def refuse(self, name: str, *, unless: tuple[Any, ...] = (None, False)) -> None:
        """Note what the block has no place for."""
        self.read.add(name)
        value = self.data.get(self.prefix + name)
        # Lists of numbers are arrays, which are in no tuple.
        if isinstance(value, np.ndarray) or value not in unless:
            self.problems.append(f"{self.prefix}{name}: {short(value)} is not supported")

    def refuse_unknown(self, own: Collection[str]) -> None:
        """Note what a config.json says that nobody requested and that may matter.

        Args:
            own: names that it has for a decoder, and not for images.
        """
        before = len(self.problems)
        for name in sorted(own):
            if name not in self.read | _BESIDE and not name.startswith("_"):
                self.refuse(name, unless=(*_NOTHING, *_NEUTRAL_HERE.get(name, ())))
        if len(self.problems) > before:
            self.problems.append("keys of config.json that change no number can be taken out of it")

    def refuse_unread(self, context: int) -> None:
        """Note what a GGUF file says of its model that nobody requested and that may matter."""
        for key in sorted(k for k in self.data if k.startswith(self.prefix)):
            name = key.removeprefix(self.prefix)
            if name in self.read or name in _SAYS_NOTHING or name.startswith(_OF_PICTURES):
                continue
            if name == "attention.sliding_window" and self.size(name, context) >= context:
                continue
            self.refuse(name, unless=(None, *_NEUTRAL.get(name, ())))


_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
_NEUTRAL_HERE: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("full_attn_mod", "interpolate_factor"), (1,)),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier", "residual_multiplier"), (1,)),
    **dict.fromkeys(("logits_scaling", "logit_scale"), (1,)),
}
"""Values of a config.json with which a model computes what it does without them."""

_BESIDE = frozenset({
    *("architectures", "auto_map", "dtype", "model_type", "name_or_path", "torch_dtype"),
    *("transformers_version", "transformers.js_config", "unsloth_fixed", "unsloth_version"),
    *("is_llama_config", "model_name", "tokenizer_class", "vocab_file", "is_decoder"),
    *("max_sequence_length", "model_max_length", "seq_length", "classifier_dropout"),
    # How it is trained, and what other tasks have.
    *("attention_dropout", "embd_pdrop", "hidden_dropout", "resid_pdrop", "initializer_range"),
    *("gradient_checkpointing", "neftune_noise_alpha", "output_router_logits"),
    *("router_aux_loss_coef", "finetuning_task", "id2label", "label2id", "num_labels"),
    *("problem_type", "task_specific_params", "pretraining_tp", "use_bfloat16"),
    # How it is run, and what is returned.
    *("attn_implementation", "cache_implementation", "chunk_size_feed_forward", "return_dict"),
    *("output_attentions", "output_hidden_states", "torchscript", "use_cache", "use_flash_attn"),
    # Tokens, and how they are chosen.
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "prefix"),
    *("bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty"),
    *("do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "epsilon_cutoff"),
    *("eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id"),
    *("forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length"),
    *("min_p", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences"),
    *("output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate"),
    *("suppress_tokens", "temperature", "top_k", "top_p", "typical_p"),
    # Parts of Idefics 3 that its decoder does not have.
    *("perceiver_config", "pixel_shuffle_factor"),
})  # fmt: skip
"""What a config.json says besides what is computed."""

_SAYS_NOTHING = frozenset({
    *("vocab_size", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned"),
    # YaRN's, which asks for them; other ropes do not.
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    *("attention.layer_norm_epsilon", "feed_forward_length", "expert_feed_forward_length"),
})  # fmt: skip
_OF_PICTURES = ("vision.", "mm.")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_gating_func": (0, 1),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "rope.scaling.yarn_ext_factor": (-1.0, 0.0),
    "rope.scaling.yarn_attn_factor": (-1.0, 1.0),
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
