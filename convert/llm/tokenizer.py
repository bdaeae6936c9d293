"""Tokenizers, chat templates and advice on generating, from what a model's files say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import read_bounded
from edgeinfer.convert.llm.source import MOST_JSON, LlmSource, read_json, undamaged
from edgeinfer.errors import SourceError
from edgeinfer.llm.generation import (
    FILE_NAME,
    MOST_TEMPLATE,
    TEMPLATE_NAME,
    TOKENIZER_NAME,
    Generation,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6
"""Kinds of tokens in GGUF files."""

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Phi-4 mini. Source: ``o200k_base`` of tiktoken."""

_TEKKEN = _O200K.replace(_ENDING, "").replace(r"|\p{N}{1,3}|", r"|\p{N}|")
"""Of Mistral Nemo: digits one by one, and no endings. Source: its tokenizer.json, by llama.cpp."""

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_WHOLE = (*_LLAMA3_NAMES, "tekken")
"""Rules with which texts begin with a token, and a part that is a token is taken as that."""

_PATTERNS = {
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "gpt-4o": _O200K,
    "tekken": _TEKKEN,
    **dict.fromkeys(_LLAMA3_NAMES, _LLAMA3),
}
_DIGITS = ("smollm", "smollm3")
_PLAIN = ("gpt-2", "gpt2", "olmo", "phi-2")

_NAMES = ("bos", "eos", "unk", "pad", "sep", "cls")


def files(source: LlmSource) -> tuple[dict[str, bytes], list[str]]:
    """Return a model's files next to its weights, by name, and what the user should know.

    Raises:
        SourceError: there is no tokenizer, or of a kind that is not known.
    """
    with undamaged(source.path):
        return _of_gguf(source) if source.format == "gguf" else _of_folder(source.path)


def _of_gguf(source: LlmSource) -> tuple[dict[str, bytes], list[str]]:
    fields = source.fields
    prefix = "tokenizer.ggml."
    own = {k[len(prefix) :]: v for k, v in fields.items() if k.startswith(prefix)}
    kind = own.get("model")
    if kind not in ("gpt2", "llama") or "tokens" not in own:
        raise SourceError(f"{source.path}: tokenizer {kind!r} is not known; known: gpt2, llama")
    _check_fields(own)
    strips = source.config.family == "phi3"
    made = _bpe(source.path, own) if kind == "gpt2" else _sentencepiece(own, strips)
    tokens = own["tokens"]
    ids = {
        n: own.get(f"{ {'unk': 'unknown', 'pad': 'padding'}.get(n, n) }_token_id") for n in _NAMES
    }
    names = {f"{n}_token": tokens[i] for n, i in ids.items() if i is not None and i < len(tokens)}
    ends = [ids["eos"], own.get("eot_token_id"), own.get("eom_token_id")]
    known = {t: i for i, t in enumerate(tokens)}
    ends += [known[t] for t in _ENDS if t in known and not _is_ordinary(own, known[t])]
    # Llama 3 begins texts with one, and most of its files do not say so (``llama-vocab.cpp``).
    begins = kind == "llama" or own.get("pre") in _WHOLE
    adds = bool(own.get("add_bos_token", begins))
    generation = Generation(
        bos=ids["bos"] if adds else None,
        eos=tuple(dict.fromkeys(int(e) for e in ends if e is not None)),
        tokens=names,
    )
    found = {TOKENIZER_NAME: _json(made), FILE_NAME: generation.to_json().encode()}
    template = fields.get("tokenizer.chat_template")
    notes = [_ENDED] if own.get("add_eos_token") or own.get("add_sep_token") else []
    if template:
        found[TEMPLATE_NAME] = str(template).encode()
    else:
        notes.append("the model has no chat template: it can generate, not chat")
    return found, notes


def _check_fields(own: Mapping[str, Any]) -> None:
    """Refuse lists that do not belong to the tokens, and tokens too long to look into."""
    tokens = own["tokens"]
    for name in ("tokens", "merges"):
        found = own.get(name, [])
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise ValueError(f"tokenizer.ggml.{name}: expected texts")
    if len(longest := max(tokens, key=len, default="")) > _MOST_CHARACTERS:
        raise ValueError(f"the token {longest[:20]!r}… has {len(longest)} characters")
    if (whole := sum(map(len, tokens))) > _MOST_TOGETHER:
        raise ValueError(f"the tokens have {whole} characters, at most {_MOST_TOGETHER} are read")
    for name in ("scores", "token_type"):
        found = own.get(name)
        if found is not None and not (
            isinstance(found, list | np.ndarray) and len(found) == len(tokens)
        ):
            raise ValueError(f"tokenizer.ggml.{name}: expected a number for each token")
    for name, value in own.items():
        if name.endswith("_token_id") and type(value) is not int:
            raise ValueError(f"tokenizer.ggml.{name}: expected a token, received {value!r:.40}")


_MOST_CHARACTERS, _MOST_TOGETHER = 1024, 8 << 20
"""Of a token, and of all: each place where one could be cut in two is looked at."""

_PAIRS, _FREE_PAIRS = 8, 4 << 20
"""Characters of pairs for each of the tokens, and those that any may have; models have three."""

_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|eom_id|>"),
    *("<|end_of_text|>", "<end_of_utterance>", "<EOT>"),
)
"""Tokens that end a turn, where a file names one end only.

Source: ``llama-vocab.cpp`` of llama.cpp."""

_ENDED = (
    "its tokenizer ends texts with a token, as models of embeddings want it, which nothing here "
    "does: give texts whose vectors are requested as tokens, with that one at the end"
)

_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
"""Of Phi-3's tokens; the others take away the white space behind them, which files do not say."""


def _json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _is_ordinary(own: Mapping[str, Any], token: int) -> bool:
    """Whether a token is part of ordinary text, which is not split at it."""
    kinds = own.get("token_type")
    return kinds is None or int(kinds[token]) not in (_CONTROL, _USER, _UNKNOWN)


def _added(own: Mapping[str, Any], strips: bool = False) -> list[dict[str, Any]]:
    """Tokens that texts are cut at.

    Args:
        own: what the file says of its tokenizer.
        strips: They take white space behind them away.
    """
    kinds = own.get("token_type")
    if kinds is None:
        return []
    return [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": strips and content not in _KEEPS_SPACES,
            "normalized": False,
            "special": int(kinds[i]) != _USER or content in _ENDS,
        }
        for i, content in enumerate(own["tokens"])
        if not _is_ordinary(own, i)
    ]


def _bpe(path: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level pairs, split by the rule that the file names."""
    rule = str(own.get("pre", "default"))
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if rule in _PATTERNS:
        pattern = {"Regex": _PATTERNS[rule]}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps: list[dict[str, Any]] = [split, {**bytes_, "use_regex": False}]
    elif rule in _DIGITS:
        steps = [{"type": "Digits", "individual_digits": True}, {**bytes_, "use_regex": True}]
    elif rule in _PLAIN:
        steps = [{**bytes_, "use_regex": True}]
    else:
        known = ", ".join(sorted((*_PATTERNS, *_DIGITS, *_PLAIN)))
        raise SourceError(f"{path}: splitting rule {rule!r} is not known; known: {known}")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(own),
        "normalizer": {"type": "NFC"} if rule == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {**bytes_, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule in _WHOLE,
            "vocab": {token: i for i, token in enumerate(own["tokens"])},
            "merges": [merge.split(" ", 1) for merge in own.get("merges", ())],
        },
    }


def _sentencepiece(own: Mapping[str, Any], strips: bool = False) -> dict[str, Any]:
    """Pairs with bytes for what is unknown; scores decide which pair goes first."""
    tokens, kinds = own["tokens"], own.get("token_type")
    scores = [float(s) for s in own["scores"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    is_word = (
        [kinds is None or int(k) in (_NORMAL, _USER) for k in kinds] if kinds is not None else None
    )
    pairs: list[tuple[float, int, int, str, str]] = []
    spare = _FREE_PAIRS + _PAIRS * sum(map(len, tokens))
    for i, token in enumerate(tokens):
        if len(token) < 2 or (is_word is not None and not is_word[i]):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                pairs.append((-scores[i], vocab[left], vocab[right], left, right))
                spare -= len(token)
        if spare < 0:
            raise ValueError("more pairs of tokens than any text needs")
    pairs.sort(key=lambda p: (p[0], -len(p[3]), -len(p[4]), p[1], p[2]))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    begins = bool(own.get("add_space_prefix", True))
    steps = [{"type": "Prepend", "prepend": "▁"}, spaces] if begins else [spaces]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if begins:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = own.get("unknown_token_id")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(own, strips),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [[left, right] for _, _, _, left, right in pairs],
        },
    }


def _of_folder(path: Path) -> tuple[dict[str, bytes], list[str]]:
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        hint = "save it with a fast tokenizer of transformers"
        raise SourceError(f"{path}: there is no tokenizer.json; {hint}")
    about, advice, config = (
        _read(path / f"{name}.json") for name in ("tokenizer_config", "generation_config", "config")
    )
    names = {}
    for name in _NAMES:
        value = about.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            names[f"{name}_token"] = text
    ids = {t["content"]: t["id"] for t in _read(tokenizer).get("added_tokens", ())}
    inner = config.get("text_config")
    decoder = {**config, **inner} if isinstance(inner, dict) else config
    ends = _numbers(advice.get("eos_token_id", decoder.get("eos_token_id")))
    if "eos_token" in names and names["eos_token"] in ids:
        ends.append(ids[names["eos_token"]])
    found = {TOKENIZER_NAME: read_bounded(tokenizer, MOST_JSON)}
    generation = Generation(
        bos=_bos(about, _read(tokenizer), names, ids),
        eos=tuple(dict.fromkeys(ends)),
        tokens=names,
        **_advised(advice),
    )
    found[FILE_NAME] = generation.to_json().encode()
    notes = [_ENDED] if _ends(about, _read(tokenizer)) else []
    beside = path / "chat_template.jinja"
    # Older processors keep theirs in a file of its own.
    template = _read(path / "chat_template.json").get("chat_template", about.get("chat_template"))
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template}
        template = named.get("default")
    if beside.is_file():
        found[TEMPLATE_NAME] = read_bounded(beside, MOST_TEMPLATE)
    elif isinstance(template, str):
        found[TEMPLATE_NAME] = template.encode()
    else:
        notes.append("the model has no chat template: it can generate, not chat")
    return found, notes


def _bos(
    about: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    names: Mapping[str, str],
    ids: Mapping[str, int],
) -> int | None:
    """The token that the tokenizer puts first, which its post-processor knows best."""
    first = names.get("bos_token")
    if first is None or first not in ids:
        return None
    if (adds := about.get("add_bos_token")) is not None:
        return ids[first] if adds else None
    return ids[first] if json.dumps(first) in json.dumps(tokenizer.get("post_processor")) else None


def _ends(about: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> bool:
    """Whether the tokenizer ends every text with a token."""
    if (adds := about.get("add_eos_token")) is not None:
        return bool(adds)
    whole = tokenizer.get("post_processor") or {}
    steps = whole.get("processors", [whole]) if isinstance(whole, dict) else []
    return any(
        step.get("type") == "TemplateProcessing"
        and "SpecialToken" in (step.get("single") or [{}])[-1]
        for step in steps
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def _numbers(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]


def _advised(advice: Mapping[str, Any]) -> dict[str, Any]:
    """How the source likes to be sampled, where it says that it does."""
    given = dict(advice)
    if not given.get("do_sample"):
        given = {k: v for k, v in given.items() if k == "repetition_penalty"}
    made: dict[str, Any] = {}
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if given.get(name) is not None:
            made[name] = float(given[name])
    if given.get("top_k") is not None:
        made["top_k"] = int(given["top_k"])
    return made
