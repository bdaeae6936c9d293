"""Vision-language models in tiny random form, by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.convert.llm.tiny import SIZES

SIDE, IMAGE = 32, 257
SPECIAL = ("<eos>", "<image>", "<fake_token_around_image>", "<end_of_utterance>")
"""Added tokens, behind the 256 of bytes."""

_TEXT = {
    **SIZES,
    "head_dim": 32,
    "vocab_size": 320,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
}
_TEXT |= {"pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256, "model_type": "llama"}
_VISION = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "image_size": SIDE, "patch_size": 8},
}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_TILES = {
    **{"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": SIDE}, "resample": 1},
    **_HALF,
}
_CLIP = {"model_type": "clip_vision_model", "projection_dim": 16, "num_hidden_layers": 3}
_SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
_OF_TOKEN = {"image_token_id": IMAGE}

PICTURED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "smolvlm": (
        "smolvlm",
        {"vision_config": {**_VISION, "model_type": "smolvlm_vision"}, "scale_factor": 2},
        _TILES,
    ),
    "idefics3-whole": (
        "idefics3",
        {"vision_config": {**_VISION, "model_type": "idefics3_vision"}, "scale_factor": 2},
        {**_TILES, "do_image_splitting": False},
    ),
    "llava": (
        "llava",
        {"vision_config": {**_VISION, **_CLIP}},
        {
            **{"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
            **{"resample": 3, "image_processor_type": "CLIPImageProcessor"},
        },
    ),
    "gemma3": (
        "gemma3",
        {
            "vision_config": {**_VISION, **_SIGLIP},
            "mm_tokens_per_image": 4,
            "text_config": {**_TEXT, "model_type": "gemma3_text", "sliding_window": 16},
        },
        _HALF,
    ),
    "llava-siglip": (
        "llava",
        {
            "vision_config": {**_VISION, **_SIGLIP},
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": -1,
            "text_config": {**_TEXT, "model_type": "qwen2"},
        },
        {"size": {"height": SIDE, "width": SIDE}, "resample": 3, **_HALF},
    ),
}

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def tokenizer(folder: Path) -> None:
    """Write a tokenizer whose tokens are bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def save(name: str, folder: Path) -> Any:
    """Write a tiny model with all its files; return it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, more, processor = PICTURED[name]
    torch.manual_seed(0)
    given = {"text_config": _TEXT, **_OF_TOKEN, **more}
    config = transformers.AutoConfig.for_model(kind, **given)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForImageTextToText.from_config(config).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.add_(torch.randn(value.shape) * (0.2 if value.ndim == 1 else 0.1))
            if "norm" in key and value.ndim == 1 and key.endswith("weight"):
                value.clamp_(min=0.3)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
