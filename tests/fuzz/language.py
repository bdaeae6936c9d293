"""Readers of language models: GGUF files, safetensors, what lies next to them, chat templates."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.errors import SourceError
from tests.convert.llm.test_gguf import f32, write
from tests.fuzz import mutate
from tests.runtime.llm.texts import TEMPLATE, byte_level

if TYPE_CHECKING:
    from tests.fuzz.readers import Reader

_ODD: tuple[Any, ...] = (0, 1, 2**31 - 1, 0.5, "", "x" * 3000, ["a", "a"], [], True, "gpt2")
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 420,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": True,
}
_HF = {
    "model.embed_tokens": (420, 8),
    "model.norm": (8,),
    "model.layers.0.input_layernorm": (8,),
    "model.layers.0.self_attn.q_proj": (8, 8),
    "model.layers.0.self_attn.k_proj": (4, 8),
    "model.layers.0.self_attn.v_proj": (4, 8),
    "model.layers.0.self_attn.o_proj": (8, 8),
    "model.layers.0.post_attention_layernorm": (8,),
    "model.layers.0.mlp.gate_proj": (12, 8),
    "model.layers.0.mlp.up_proj": (12, 8),
    "model.layers.0.mlp.down_proj": (8, 12),
}


def readers(folder: Path) -> Iterator[Reader]:
    """Make them."""
    from tests.fuzz.readers import Reader, call

    gguf = _gguf_file(folder / "seed.gguf", _gguf_fields())
    yield Reader(
        "gguf",
        ".gguf",
        [gguf, _adapter_file(folder / "adapter.gguf")],
        [mutate.in_bytes, _fields_changed(folder / "seed.gguf")],
        [call(_read)],
    )
    weights = _safetensors()
    files = {
        "model.safetensors": (weights, [mutate.in_bytes, _in_header]),
        "config.json": (json.dumps(_CONFIG).encode(), [mutate.in_bytes, mutate.in_json]),
        "tokenizer.json": (byte_level().encode(), [mutate.in_bytes, mutate.in_json]),
        "tokenizer_config.json": (
            b'{"eos_token": "<|end|>", "bos_token": {"content": "<|start|>"}, '
            b'"add_bos_token": true, "chat_template": [{"name": "default", "template": "x"}]}',
            [mutate.in_bytes, mutate.in_json],
        ),
        "generation_config.json": (
            b'{"eos_token_id": [2, 3], "do_sample": true, "temperature": 0.7, "top_k": 20}',
            [mutate.in_bytes, mutate.in_json],
        ),
    }
    adapter = _joined(*_adapter())
    yield Reader("adapter", ".safetensors", [adapter], [mutate.in_bytes, _in_header], [call(_read)])
    place = folder / "hf"
    place.mkdir()
    for name, (content, _) in files.items():
        (place / name).write_bytes(content)
    for name, (content, ways) in files.items():
        suffix = Path(name).suffix
        whole = {other: raw for other, (raw, _) in files.items()}
        yield Reader(f"hf-{name}", suffix, [content], ways, [call(_in_folder(place, name, whole))])
    yield Reader(
        "template", ".jinja", [TEMPLATE.encode()], [mutate.in_bytes, _in_template], [call(_render)]
    )


def _read(path: Path) -> None:
    from edgeinfer.convert.llm import source, tokenizer
    from edgeinfer.convert.sniff import is_llm
    from edgeinfer.runtime.llm.tokenizer import TextTokenizer

    if not is_llm(path):
        raise SourceError(f"{path}: no language model")
    given = source.read(path)
    files, _ = tokenizer.files(given)
    text = files["tokenizer.json"].decode("utf-8", "replace")
    TextTokenizer(text, given.config.vocab, None).encode("the cat sat, 12 times")


def _in_folder(place: Path, name: str, whole: dict[str, bytes]) -> Callable[[Path], None]:
    """Read a folder in which one file is the one that is given.

    All are written anew: a copy that was ended leaves what it was given.
    """

    def act(path: Path) -> None:
        for other, content in whole.items():
            (place / other).write_bytes(path.read_bytes() if other == name else content)
        _read(place)

    return act


def _render(path: Path) -> None:
    from edgeinfer.runtime.llm.chat import ChatTemplate

    text = path.read_bytes().decode("utf-8", "replace")
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    ChatTemplate(text, {"bos_token": "<s>"}).render(messages)


_PIECES = (
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ 'x'.center(9999999999) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ [1] * 9999999999 }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "{{ '{:99999999999}'.format(1) }}",
    "{{ lipsum(n=999999) }}",
    "{{ 'a' | replace('', 'x' * 9999) | replace('x', 'y' * 9999) }}",
    "{{ messages | tojson(indent=99999999) }}",
    "{{ strftime_now('%Y' * 9999) }}",
    "{% include 'x' %}",
    "{{ cycler(1, 2).next() }}",
    "{% call(x) f() %}{% endcall %}",
)


def _in_template(raw: bytes, rng: random.Random) -> bytes:
    at = rng.choice([i for i, c in enumerate(raw) if c in b"{}\n"] or [0])
    return raw[:at] + rng.choice(_PIECES).encode() + raw[at:]


def _gguf_fields() -> dict[str, Any]:
    tokens = [f"t{i}" for i in range(24)]
    sizes = {"embedding_length": 32, "block_count": 1, "context_length": 64}
    sizes |= {"feed_forward_length": 32, "attention.head_count": 2, "attention.head_count_kv": 1}
    return {
        "general.architecture": "llama",
        **{f"llama.{name}": size for name, size in sizes.items()},
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


def _gguf_file(path: Path, fields: dict[str, Any]) -> bytes:
    shapes = {"token_embd": (24, 32), "output_norm": (32,)}
    block = {"attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32)}
    block |= {"attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (32, 32)}
    block |= {"ffn_up": (32, 32), "ffn_down": (32, 32)}
    shapes |= {f"blk.0.{name}": shape for name, shape in block.items()}
    ones = {f"{name}.weight": f32(np.ones(shape)) for name, shape in shapes.items()}
    return write(path, fields, ones).read_bytes()


def _fields_changed(path: Path) -> Callable[[bytes, random.Random], bytes]:
    """Write a GGUF file anew, with other values in its description."""

    def change(raw: bytes, rng: random.Random) -> bytes:
        fields = _gguf_fields()
        if rng.random() < 0.4:
            scores = [-float(i) for i in range(24)]
            fields |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            fields[rng.choice(sorted(fields))] = rng.choice(_ODD)
        return _gguf_file(path, fields)

    return change


def _adapter_file(path: Path) -> bytes:
    """Return a low-rank adapter as llama.cpp writes one: no model, which is to be said."""
    fields: dict[str, Any] = {"general.architecture": "llama", "general.type": "adapter"}
    fields |= {"adapter.type": "lora", "adapter.lora.alpha": 16.0}
    pair = {"lora_a": (4, 32), "lora_b": (32, 4)}
    ones = {f"blk.0.attn_q.weight.{name}": f32(np.ones(shape)) for name, shape in pair.items()}
    return write(path, fields, ones).read_bytes()


def _adapter() -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of an adapter as PEFT writes one."""
    name, half = "base_model.model.model.layers.0.self_attn.q_proj.lora_", 4 * 4 * 8
    ends = {"A": ([4, 8], [0, half]), "B": ([8, 4], [half, 2 * half])}
    header = {
        f"{name}{side}.weight": {"dtype": "F32", "shape": shape, "data_offsets": span}
        for side, (shape, span) in ends.items()
    }
    return header, np.ones(64, np.float32).tobytes()


def _safetensors() -> bytes:
    header, body = {}, b""
    for name, shape in _HF.items():
        data = np.ones(shape, np.float32).tobytes()
        ends = [len(body), len(body) + len(data)]
        header[f"{name}.weight"] = {"dtype": "F32", "shape": list(shape), "data_offsets": ends}
        body += data
    return _joined(header, body)


def _joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _in_header(raw: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    for _ in range(rng.choice((1, 1, 2, 5))):
        header = mutate.in_value(header, rng)
    return _joined(header, raw[8 + size :])
