from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import safetensors, tokenizer
from edgeinfer.convert.llm.source import LlmSource, read
from edgeinfer.errors import SourceError
from edgeinfer.llm.generation import FILE_NAME, TEMPLATE_NAME, TOKENIZER_NAME, Generation
from tests.backends.llm.small import CONFIG


def made(form: str, path: Path, **fields: Any) -> LlmSource:
    prefixed = {f"tokenizer.ggml.{k}": v for k, v in fields.items() if k != "template"}
    if "template" in fields:
        prefixed["tokenizer.chat_template"] = fields["template"]
    return LlmSource(path, form, CONFIG, {}, prefixed)


def generation(found: dict[str, bytes]) -> Generation:
    return Generation.from_json(found[FILE_NAME])


def test_pairs_of_bytes_are_joined_in_order(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokens = ["a", "b", "c", "Ġ", "1", "2", "ab", "abc", "<|im_end|>", "<s>"]
    given = made(
        *("gguf", tmp_path),
        model="gpt2",
        pre="smollm",
        tokens=tokens,
        merges=["a b", "ab c"],
        token_type=np.array([1] * 8 + [3, 3]),
        eos_token_id=8,
        bos_token_id=9,
        add_bos_token=True,
        template="{{ x }}",
    )
    found, notes = tokenizer.files(given)
    inner = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode())
    ids = inner.encode("abcab 12<|im_end|>", add_special_tokens=False).ids
    assert ids == [7, 6, 3, 4, 5, 8]
    assert inner.decode(ids, skip_special_tokens=True) == "abcab 12"
    assert generation(found) == Generation(
        eos=(8,), bos=9, tokens={"bos_token": "<s>", "eos_token": "<|im_end|>"}
    )
    assert found[TEMPLATE_NAME] == b"{{ x }}"
    assert notes == []


def test_pieces_are_joined_by_their_scores_and_bytes_stand_in(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words = ["▁", "h", "i", "hi", "▁hi", "▁h"]
    given = made(
        *("gguf", tmp_path),
        model="llama",
        tokens=[*tokens, *words],
        scores=[0.0] * len(tokens) + [-10.0, -11.0, -12.0, -2.0, -1.0, -3.0],
        token_type=np.array([2, 3, 3] + [6] * 256 + [1] * 6),
        eos_token_id=2,
        bos_token_id=1,
        unknown_token_id=0,
    )
    found, notes = tokenizer.files(given)
    inner = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode())
    first = len(tokens)
    assert inner.encode("hi hi", add_special_tokens=False).ids == [first + 4, first + 4]
    emoji = inner.encode("é", add_special_tokens=False).ids
    assert emoji == [first, 3 + 0xC3, 3 + 0xA9]
    assert inner.decode([first + 4, *emoji]) == "hi é"
    assert generation(found).bos == 1
    assert notes == ["the model has no chat template: it can generate, not chat"]


def test_every_end_of_a_turn_ends_a_text(tmp_path: Path) -> None:
    given = made(
        *("gguf", tmp_path),
        model="gpt2",
        pre="qwen2",
        tokens=["x", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"],
        token_type=np.array([1, 3, 3, 1]),
        eos_token_id=2,
    )
    # What only looks like an end, and is an ordinary token, is none.
    assert generation(tokenizer.files(given)[0]).eos == (2, 1)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="tokenizer 'rwkv' is not known; known: gpt2, llama"):
        tokenizer.files(made("gguf", tmp_path, model="rwkv", tokens=["a"]))


def test_a_folder_says_how_its_texts_begin_and_end(tmp_path: Path) -> None:
    files = {
        "tokenizer.json": {
            "added_tokens": [{"id": 5, "content": "<s>"}, {"id": 7, "content": "<end>"}],
            "post_processor": None,
        },
        "tokenizer_config.json": {
            "bos_token": {"content": "<s>"},
            "eos_token": "<end>",
            "add_bos_token": True,
            "chat_template": "{{ old }}",
        },
        "generation_config.json": {
            "eos_token_id": [6, 7],
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
        },
    }
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    found, _ = tokenizer.files(made("hf", tmp_path))
    assert generation(found) == Generation(
        eos=(6, 7),
        bos=5,
        tokens={"bos_token": "<s>", "eos_token": "<end>"},
        temperature=0.6,
        top_k=20,
    )
    assert found[TEMPLATE_NAME] == b"{{ old }}"
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert tokenizer.files(made("hf", tmp_path))[0][TEMPLATE_NAME] == b"{{ new }}"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no tokenizer\.json"):
        tokenizer.files(made("hf", tmp_path))


def test_pairs_do_not_outgrow_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair for every cut of every token: 0.7 MB became 2.5 GB."""
    monkeypatch.setattr(tokenizer, "_FREE_PAIRS", 10_000)
    for count, refused in ((20, False), (100, True)):
        own = {"tokens": ["a" * (i + 1) for i in range(count)], "scores": [-1.0] * count}
        if refused:
            with pytest.raises(ValueError, match="more pairs of tokens than any text needs"):
                tokenizer._sentencepiece(own)
        else:
            assert tokenizer._sentencepiece(own)["model"]["merges"]


def test_tokens_have_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer._check_fields({"tokens": ["a" * 1024, "b"]})
    with pytest.raises(ValueError, match="has 1025 characters"):
        tokenizer._check_fields({"tokens": ["a" * 1025, "b"]})
    monkeypatch.setattr(tokenizer, "_MOST_TOGETHER", 3)
    with pytest.raises(ValueError, match="the tokens have 4 characters, at most 3 are read"):
        tokenizer._check_fields({"tokens": ["ab", "cd"]})


@pytest.mark.parametrize("name", ["weights.dat", "adapter_model.safetensors"])
def test_weights_of_any_name_are_no_links_that_lead_out(tmp_path: Path, name: str) -> None:
    """An index lists what it likes, and an adapter's folder was not looked at."""
    (key := tmp_path / "key").write_bytes(b"secret")
    (folder := tmp_path / "model").mkdir()
    index = {"weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / name).symlink_to(key)
    given = () if name == "weights.dat" else (name,)
    with pytest.raises(SourceError, match=f"links that lead out of the folder: '{name}'"):
        safetensors.read(folder, given)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "model.safetensors"])
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (key := tmp_path / "key").write_text("secret")
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / name).symlink_to(key)
    with pytest.raises(SourceError, match=f"links that lead out of the folder: '{name}'"):
        read(folder)


@pytest.mark.parametrize(("said", "expected"), [({}, 1), ({"add_bos_token": False}, None)])
def test_texts_of_llama_3_begin_with_a_token(
    said: dict[str, bool], expected: int | None, tmp_path: Path
) -> None:
    """Files say so rarely, and texts began with none."""
    tokens = ["a", "<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"]
    kinds = np.array([1, 3, 3, 3])
    fields = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "merges": []}
    own = {"token_type": kinds, "bos_token_id": 1, "eos_token_id": 2}
    found, _ = tokenizer.files(made("gguf", tmp_path, **fields, **own, **said))
    assert generation(found).bos == expected
    assert generation(found).eos == (2, 3)


def test_an_end_of_a_turn_may_be_the_users_own_token(tmp_path: Path) -> None:
    """Of models that were trained on, it is: texts went on behind it."""
    tokenizers = pytest.importorskip("tokenizers")
    tokens = ["a", "<|im_end|>", "<|endoftext|>"]
    fields = {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "merges": []}
    kinds = np.array([1, 4, 4])
    found, _ = tokenizer.files(made("gguf", tmp_path, **fields, token_type=kinds))
    assert generation(found).eos == (1, 2)
    inner = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode())
    assert inner.encode("a<|im_end|>", add_special_tokens=False).ids == [0, 1]
    assert inner.decode([0, 1, 2], skip_special_tokens=True) == "a"


def test_tokens_of_phi_3_take_the_white_space_behind_them(tmp_path: Path) -> None:
    """As its own tokenizer and llama.cpp have it; files do not say so."""
    tokenizers = pytest.importorskip("tokenizers")
    tokens = ["<unk>", "<s>", "<|user|>", "<|end|>", "▁", "h", "▁h", "<0x0A>"]
    own = {"model": "llama", "tokens": tokens, "token_type": np.array([2, 3, 3, 3, 1, 1, 1, 6])}
    scores = np.array([0, 0, 0, 0, -1, -2, -3, 0], np.float32)
    given = made("gguf", tmp_path, **own, scores=scores)
    for family, expected in (("phi3", [2, 6, 3]), ("llama", [2, 4, 7, 5, 3, 4, 7])):
        found, _ = tokenizer.files(replace(given, config=replace(CONFIG, family=family)))
        inner = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode())
        text = "<|user|>\nh<|end|>\n"
        assert inner.encode(text, add_special_tokens=False).ids == expected


def test_texts_are_cut_as_phi_4_mini_was_trained(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    fields = {"model": "gpt2", "pre": "gpt-4o", "tokens": ["a"], "merges": []}
    found, _ = tokenizer.files(made("gguf", tmp_path, **fields))
    cut = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode()).pre_tokenizer
    parts = [part for part, _ in cut.pre_tokenize_str("HelloWorld's 12345 foo/bar.\n/ X's\n\n y")]
    wanted = ["Hello", "World's", "Ġ", "123", "45", "Ġfoo", "/bar", ".Ċ/", "ĠX's", "ĊĊ", "Ġy"]
    assert parts == wanted


def test_texts_are_cut_as_mistral_nemo_was_trained(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    kinds = {"token_type": np.array([1, 1, 1, 3]), "bos_token_id": 3}
    fields = {"model": "gpt2", "pre": "tekken", "tokens": ["a", "b", "ab", "<s>"], "merges": []}
    found, _ = tokenizer.files(made("gguf", tmp_path, **fields, **kinds))
    assert generation(found).bos == 3
    inner = tokenizers.Tokenizer.from_str(found[TOKENIZER_NAME].decode())
    assert inner.encode("ab", add_special_tokens=False).ids == [2]
    text = "HelloWorld's 12 foo/bar.\n/ X's\n\n y"
    parts = [part for part, _ in inner.pre_tokenizer.pre_tokenize_str(text)]
    wanted = ["Hello", "World", "'s", "Ġ", "1", "2", "Ġfoo", "/bar", ".Ċ/", "ĠX", "'s", "ĊĊ", "Ġy"]
    assert parts == wanted


def test_a_token_that_ends_every_text_is_noted(tmp_path: Path) -> None:
    """Models of embeddings read their vector from it, and nothing here puts it there."""
    fields: dict[str, Any] = {"model": "gpt2", "pre": "qwen2", "tokens": ["a", "<end>"]}
    fields |= {"merges": [], "template": "{{ x }}", "eos_token_id": 1}
    assert tokenizer.files(made("gguf", tmp_path, **fields))[1] == []
    (note,) = tokenizer.files(made("gguf", tmp_path, **fields, add_eos_token=True))[1]
    assert "ends texts with a token" in note
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    text, first, last = ({"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "b"}}, "<end>")
    for single, about, is_ended in (
        ([first, text], {}, False),
        ([text, {"SpecialToken": {"id": last}}], {}, True),
        ([text, {"SpecialToken": {"id": last}}], {"add_eos_token": False}, False),
        ([text], {"add_eos_token": True}, True),
    ):
        template = {"type": "TemplateProcessing", "single": single}
        whole = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
        for processor in (template, whole):
            said: dict[str, Any] = {"added_tokens": [], "post_processor": processor}
            (tmp_path / "tokenizer.json").write_text(json.dumps(said))
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
            assert tokenizer.files(made("hf", tmp_path))[1] == ([note] if is_ended else [])
