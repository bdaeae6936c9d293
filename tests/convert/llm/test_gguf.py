from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import gguf, source
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.sniff import is_llm
from edgeinfer.errors import SourceError
from edgeinfer.types import Array
from tests.convert.llm import tiny

_NUMBERS = {int: (4, "<I"), float: (6, "<f"), bool: (7, "<?")}
_TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 8, "IQ1_S": 19}


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        inner = [_value(v) for v in value] or [struct.pack("<I", 8)]
        items = b"".join(v[4:] for v in inner)
        return struct.pack("<I", 9) + inner[0][:4] + struct.pack("<Q", len(value)) + items
    number, form = _NUMBERS[type(value)]
    return struct.pack("<I", number) + struct.pack(form, value)


def write(
    path: Path,
    fields: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
) -> Path:
    """A GGUF file of these fields and tensors: element type, shape, bytes."""
    head, body = [], b""
    for key, value in fields.items():
        head.append(_text(key) + _value(value))
    for name, (kind, shape, data) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        info = struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", _TYPES[kind], len(body))
        head.append(_text(name) + info)
        body += data + bytes(-len(data) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(head)
    path.write_bytes(start + bytes(-len(start) % 32) + body)
    return path


def f32(values: Array) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", values.shape, np.ascontiguousarray(values, np.float32).tobytes()


def test_fields_and_tensors_are_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    fields = {"general.architecture": "llama", "a.count": 3, "a.list": ["x", "ü"], "a.flag": True}
    found = gguf.read(write(tmp_path / "a.gguf", fields, {"t": f32(values)}))
    assert found.fields == fields
    assert found.tensors["t"].float32().tolist() == values.tolist()


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {"one": ("IQ1_S", (256,), bytes(50))})
    with pytest.raises(SourceError, match=r"'one': type IQ1_S is not read; known: .*Q6_K"):
        gguf.read(path)


@pytest.mark.parametrize("keep", [3, 20, 90, -1])
def test_a_file_that_ends_early_is_refused(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.gguf", {"general.architecture": "llama"}, {"t": f32(np.ones(64))})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match="cut off"):
        gguf.read(path)


def test_a_count_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    path.write_bytes(head + _text("k") + struct.pack("<IIQ", 9, 8, 1 << 60))
    with pytest.raises(SourceError, match="cut off"):
        gguf.read(path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"something else")
    with pytest.raises(SourceError, match="no GGUF file"):
        gguf.read(path)


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", {}, {"t": f32(np.ones(4))})
    (tmp_path / "other.gguf").write_bytes(b"no")
    assert is_llm(path)
    assert not is_llm(tmp_path / "other.gguf")
    assert not is_llm(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_llm(str(tmp_path))
    assert not is_llm(tmp_path / "nothing")
    assert not is_llm(object())


def test_an_unknown_architecture_lists_those_that_are_known(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {"general.architecture": "rwkv9"}, {"t": f32(np.ones(4))})
    with pytest.raises(SourceError, match=r"'rwkv9' is not known; known: .*gemma3, llama"):
        source.read(path)


@pytest.mark.parametrize("kind", ["adapter", "mmproj", 3])
def test_what_is_no_model_by_itself_is_said(kind: object, tmp_path: Path) -> None:
    """An adapter had been a model of which everything is missing."""
    fields = {"general.architecture": "llama", "general.type": kind}
    path = write(tmp_path / "a.gguf", fields, {"blk.0.attn_q.weight.lora_a": f32(np.ones((4, 8)))})
    with pytest.raises(SourceError, match=f"of the type '{kind}', which is no model by itself"):
        source.read(path)


def _llama(hidden: int = 64, vocab: int = 96) -> tuple[dict[str, Any], dict[str, Array]]:
    fields = {
        "general.architecture": "llama",
        "llama.embedding_length": hidden,
        "llama.block_count": 1,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.feed_forward_length": 96,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    rng = np.random.default_rng(0)
    shapes = {
        **{"token_embd": (vocab, hidden), "output_norm": (hidden,)},
        **{f"blk.0.{n}_norm": (hidden,) for n in ("attn", "ffn")},
        **{"blk.0.attn_q": (64, hidden), "blk.0.attn_k": (32, hidden)},
        **{"blk.0.attn_v": (32, hidden), "blk.0.attn_output": (hidden, 64)},
        **{f"blk.0.ffn_{n}": (96, hidden) for n in ("gate", "up")},
        "blk.0.ffn_down": (hidden, 96),
    }
    return fields, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def test_missing_and_unknown_weights_are_listed_together(tmp_path: Path) -> None:
    fields, weights = _llama()
    del weights["blk.0.ffn_up"]
    weights["blk.0.extra"] = np.ones((1, 4), np.float32)
    weights["blk.0.attn_k"] = weights["blk.0.attn_k"][:16]
    path = write(tmp_path / "a.gguf", fields, {f"{n}.weight": f32(w) for n, w in weights.items()})
    with pytest.raises(SourceError) as error:
        source.read(path)
    for part in ("'blk.0.ffn_up' is missing", "'blk.0.extra' is unknown", "expected (32, 64)"):
        assert part in str(error.value)


def test_rows_in_pairs_give_the_numbers_of_rows_in_halves(tmp_path: Path) -> None:
    """A GGUF file of Llama has heads whose elements 2i and 2i + 1 are turned together."""
    model = tiny.save("llama-tied-3.1", tmp_path / "hf")
    ids = np.random.default_rng(1).integers(3, 128, 12)
    read = source.read(tmp_path / "hf")
    config = read.config

    def paired(name: str, value: Array) -> Array:
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.rpartition(".")[2])
        if heads is None:
            return value
        return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)

    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden,
        "llama.block_count": config.layers,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.feed_forward_length": config.ffn,
        "llama.context_length": config.context,
        "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
    }
    tensors = {n: f32(paired(n, t.float32())) for n, t in read.tensors.items()}
    # What scales the frequencies is a weight of its own there.
    plain = 1 / 10000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16)
    factors = plain / np.array(config.ropes[0].frequencies, np.float32)
    tensors["rope_freqs"] = f32(factors)
    path = write(tmp_path / "a.gguf", fields, {f"{n}.weight": t for n, t in tensors.items()})
    found = source.read(path)
    result = Oracle(found.config, found.tensors).logits([ids])[0]
    expected = tiny.logits(model, ids)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {n: f32(np.zeros((8, 8), np.float32)) for n in "ab"})
    # The second one's place, 256, is the last number of the head.
    head, found, rest = path.read_bytes().rpartition(struct.pack("<IQ", 0, 256))
    path.write_bytes(head + bytes(len(found)) + rest)
    with pytest.raises(SourceError, match="'a' and 'b' share bytes"):
        gguf.read(path)


def test_a_tensor_without_elements_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {"t": ("F32", (1 << 63, 0), b"")})
    with pytest.raises(SourceError, match="is no shape of F32"):
        gguf.read(path)


def test_arrays_in_an_array_are_few(tmp_path: Path) -> None:
    """Each is of 13 bytes and takes hundreds."""

    def file(count: int) -> Path:
        inner = struct.pack("<IQB", 0, 1, 7) * count
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _text("a")
        place = tmp_path / f"{count}.gguf"
        place.write_bytes(head + struct.pack("<IIQ", 9, 9, count) + inner)
        return place

    assert len(gguf.read(file(1_024)).fields["a"]) == 1_024
    with pytest.raises(SourceError, match="1025 arrays in arrays, at most 1024 are read"):
        gguf.read(file(1_025))


def test_arrays_in_arrays_are_few_over_all_keys(tmp_path: Path) -> None:
    inner = struct.pack("<IQB", 0, 1, 7) * 600
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 2)
    keys = (_text(key) + struct.pack("<IIQ", 9, 9, 600) + inner for key in ("a", "b"))
    (tmp_path / "two.gguf").write_bytes(head + b"".join(keys))
    with pytest.raises(SourceError, match="1200 arrays in arrays, at most 1024 are read"):
        gguf.read(tmp_path / "two.gguf")


def test_a_file_has_so_many_fields(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 10_001)
    fields = (_text(f"{i}") + struct.pack("<IIQB", 9, 0, 1, 7) for i in range(10_001))
    (tmp_path / "m.gguf").write_bytes(head + b"".join(fields))
    with pytest.raises(SourceError, match="10001 fields, at most 10000 are read"):
        gguf.read(tmp_path / "m.gguf")


def test_a_file_has_so_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MOST_TENSORS", 1)
    place = tmp_path / "m.gguf"
    write(place, {}, {"a": f32(np.ones(1, np.float32)), "b": f32(np.ones(1, np.float32))})
    with pytest.raises(SourceError, match="2 tensors, at most 1 are read"):
        gguf.read(place)
