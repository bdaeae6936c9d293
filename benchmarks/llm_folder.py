"""A GGUF file's model as the Hugging Face folder that peers' builders read.

    python -m benchmarks.llm_folder GGUF FOLDER

Weights are the file's own, in float32; the tokenizer is ours of the file. Of the Llama family.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from edgeinfer.convert.llm import source, tokenizer
from edgeinfer.convert.llm.source import LlmSource
from edgeinfer.llm import generation


def described(model: LlmSource) -> dict[str, Any]:
    """Return what config.json says."""
    config, fields = model.config, model.fields
    if config.family != "llama":
        raise SystemExit(f"{model.path}: family {config.family}, and only llama is written")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }


def theirs(name: str) -> str:
    """Return a weight's name in such a folder."""
    if not name.startswith("blk."):
        return f"{source.HF_WHOLE[name]}.weight"
    _, number, part = name.split(".")
    return f"model.layers.{number}.{source.HF_LAYER[part]}.weight"


def write_weights(model: LlmSource, path: Path) -> None:
    """Write a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in model.tensors.items():
        size = 4 * tensor.float32().size
        shape = list(tensor.shape)
        header[theirs(name)] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in model.tensors.values():
            file.write(tensor.float32().tobytes())


def main() -> None:
    """Write the folder."""
    gguf, folder = map(Path, sys.argv[1:])
    model = source.read(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described(model), indent=1))
    files, _ = tokenizer.files(model)
    (folder / "tokenizer.json").write_bytes(files[generation.TOKENIZER_NAME])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    names = generation.Generation.from_json(files[generation.FILE_NAME].decode()).tokens
    (folder / "tokenizer_config.json").write_text(json.dumps(about | dict(names), indent=1))
    write_weights(model, folder / "model.safetensors")
    if (again := source.read(folder).config) != model.config:
        raise SystemExit(f"{folder}: read again as {again}, which is not {model.config}")


if __name__ == "__main__":
    main()
