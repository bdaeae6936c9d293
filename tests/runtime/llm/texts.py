"""Small tokenizers of the kinds that language models have, trained on a few words."""

from __future__ import annotations

import functools
import json
from typing import Any

WORDS = [
    "the cat sat on the mat and the dog saw it",
    'hello world, {"name": "Ada", "age": 36}, {"city": "Paris"}',
    "<tool_call> true false null 0 1 2 3 4 5 6 7 8 9 [] {}",
    "user assistant system one two three four five",
] * 4
SPECIAL = ["<|end|>", "<|start|>", "<|im_end|>"]


@functools.cache
def byte_level() -> str:
    """Return a ``tokenizer.json`` like those of GPT-2, Llama 3, Qwen and SmolLM2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator(WORDS, trainer)
    return str(made.to_str())


@functools.cache
def byte_fallback() -> str:
    """Return one like those of Llama 2, Mistral and Gemma: words with ▁, bytes where none fits."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    made: Any = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    made.train_from_iterator(WORDS, trainer)
    data = json.loads(made.to_str())
    # Bytes are no special tokens; the trainer knows no other way to have them.
    data["added_tokens"] = data["added_tokens"][:3]
    return json.dumps(data)


TEMPLATE = """
{%- if tools %}{{ '<|start|>system\\n' }}{{ tools | tojson }}
You call with <tool_call>{{ '<|im_end|>\\n' }}{% endif -%}
{%- for message in messages -%}
{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}
"""
