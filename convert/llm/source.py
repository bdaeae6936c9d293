"""Language models as they come: a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json, read_bounded
from edgeinfer.convert.llm import gguf, safetensors, vision
from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.families import FAMILIES
from edgeinfer.convert.llm.families.base import Family, Tensors, from_gguf, from_hf
from edgeinfer.convert.llm.vision import VisionSource
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig
from edgeinfer.records import dataclass

MOST_LISTED = 12

MOST_JSON = 256 << 20
"""Bytes of a JSON file of a folder; tokenizers have tens of megabytes."""

HF_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_IGNORED = re.compile(r".*rotary_emb\.inv_freq|rope_(freqs|factors_long|factors_short)")


@dataclass(frozen=True, slots=True)
class LlmSource:
    """A language model in its file.

    Attributes:
        path: Path of the file or folder.
        format: ``gguf`` or ``hf``.
        config: what it consists of.
        tensors: its weights by the names of ``edgeinfer.llm.config``.
        fields: metadata of a GGUF file; of a folder, its config.json.
        vision: Vision part of a folder; None where it has none.
    """

    path: Path
    format: str
    config: LlmConfig
    tensors: Tensors
    fields: Mapping[str, Any] = field(repr=False, default_factory=dict)
    vision: VisionSource | None = None


def read(path: Path, text_only: bool = False) -> LlmSource:
    """Read a language model's description and map its weights.

    Args:
        path: a GGUF file or a folder.
        text_only: leave a vision part out.

    Raises:
        SourceError: it cannot be read, its family is not known, or it has something that its family
            lacks; lists everything of a kind.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder")
    with undamaged(path):
        return _folder(path, text_only) if path.is_dir() else _file(path)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Say of a stranger's file that it is damaged where its values have types nobody foresaw.

    Raises:
        SourceError: as said.
    """
    try:
        yield
    except SourceError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        raise SourceError(f"{path}: a damaged model: {reason[:200]}") from e


def read_json(path: Path) -> Any:
    """Read a JSON file of a folder.

    Raises:
        SourceError: it cannot be read, is none, or is too large.
    """
    try:
        return parse_json(read_bounded(path, MOST_JSON).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise SourceError(f"{path}: cannot be read: {e}") from e


def _file(path: Path) -> LlmSource:
    file = gguf.read(path)
    kind = file.fields.get("general.type", "model")
    if kind != "model":
        raise SourceError(
            f"{path}: a GGUF file of the type {str(kind)[:40]!r}, which is no model by itself; a "
            "low-rank adapter is given with its model: --adapter NAME=FILE"
        )
    architecture = file.fields.get("general.architecture")
    family = next(
        (f for f in FAMILIES if isinstance(architecture, str) and architecture in f.gguf), None
    )
    if family is None:
        raise _unknown(path, "architecture", architecture, [n for f in FAMILIES for n in f.gguf])
    named = {name.removesuffix(".weight"): t for name, t in file.tensors.items()}
    config = _described(path, family, from_gguf(str(architecture), file.fields, named))
    if family.split is not None:
        named = family.split(named, config)
    whole = _complete(path, named, config)
    if family.paired:
        whole = {name: in_halves(name, tensor, config) for name, tensor in whole.items()}
    return LlmSource(path, "gguf", config, whole, file.fields)


_TRAVEL = (".json", ".jinja")
"""Ends of the names of files, besides weights, whose contents may get into a bundle."""


def _folder(path: Path, text_only: bool) -> LlmSource:
    safetensors.check_links(
        path, sorted(p.name for p in path.iterdir() if p.name.endswith(_TRAVEL))
    )
    data = read_json(path / "config.json")
    data = data if isinstance(data, dict) else {}
    tensors, seen = safetensors.read(path), None
    if data.get("vision_config"):
        tensors, parts = vision.parted(tensors)
        seen = None if text_only else _vision(path, data, parts)
    inner = data.get("text_config") or {}
    data = {**vision.TEXT_DEFAULTS.get(f"{inner.get('model_type')}", {}), **data, **inner}
    kind = data.get("model_type")
    family = next(
        (f for f in FAMILIES if kind in f.hf or f"{kind}".removesuffix("_text") in f.hf), None
    )
    if family is None:
        raise _unknown(path, "model_type", kind, [n for f in FAMILIES for n in f.hf])
    data = {**family.usual, **data}
    named = dict(renamed(family, tensors))
    if data.get("tie_word_embeddings") and "output" in named:
        # Some writers keep a copy.
        if not _is_same(named["output"], named.get("token_embd")):
            raise SourceError(
                f"{path}: tie_word_embeddings is true, and weight 'output' is not the embedding"
            )
        del named["output"]
    config = _described(path, family, from_hf(data, named, frozenset(inner or data)))
    if family.split is not None:
        named = family.split(named, config)
    if family.norm_less_one:
        named = {n: _plus_one(t) if _is_norm(n) else t for n, t in named.items()}
    return LlmSource(path, "hf", config, _complete(path, named, config), data, seen)


def _is_same(one: StoredTensor, other: StoredTensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    if one.kind == other.kind:
        return np.array_equal(one.data, other.data)
    return np.array_equal(one.float32(), other.float32())


def _vision(path: Path, config: Mapping[str, Any], seen: Tensors) -> VisionSource:
    """Read what a folder says of images."""
    files = {name: read_json(path / name) for name in vision.FILES if (path / name).is_file()}
    if wrong := [name for name, found in files.items() if not isinstance(found, dict)]:
        raise SourceError(f"{path}: {', '.join(wrong)}: expected an object")
    try:
        return vision.described(config, files, seen)
    except SourceError as e:
        raise SourceError(f"{path}: {e}") from e


def _unknown(path: Path, what: str, value: object, known: list[str]) -> SourceError:
    shown = repr(value)[:60]
    return SourceError(f"{path}: {what} {shown} is not known; known: {', '.join(sorted(known))}")


def _described(path: Path, family: Family, shape: Any) -> LlmConfig:
    try:
        return family.config(shape)
    except SourceError as e:
        raise SourceError(f"{path}: {e}") from e


def renamed(family: Family, tensors: Tensors) -> Iterator[tuple[str, StoredTensor]]:
    """Give tensors of a Hugging Face folder our names; what is unknown keeps its own."""
    whole = {theirs: ours for ours, theirs in HF_WHOLE.items()}
    layer = {theirs: ours for ours, theirs in {**HF_LAYER, **family.hf_names}.items()}
    experts: dict[str, dict[int, StoredTensor]] = {}
    for full, tensor in tensors.items():
        name = vision.text_name(full)
        if m := _EXPERT.fullmatch(name):
            experts.setdefault(f"{m[1]}|{m[3]}", {})[int(m[2])] = tensor
            continue
        stem, _, suffix = name.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = name, "weight"
        end = "" if suffix == "weight" else ".bias"
        if m := _LAYER.fullmatch(stem):
            ours = layer.get(m[2])
            yield (f"blk.{m[1]}.{ours}{end}" if ours else full), tensor
        else:
            yield whole.get(stem, full) + (end if stem in whole else ""), tensor
    for key, parts in experts.items():
        stem, _, part = key.partition("|")
        number = stem.split(".")[2]
        if sorted(parts) != list(range(len(parts))):
            raise SourceError(f"{stem}: {len(parts)} experts, whose numbers are not 0 and so on")
        data = np.stack([parts[i].data for i in range(len(parts))])
        first = parts[0]
        yield (
            f"blk.{number}.ffn_{part}_exps",
            StoredTensor(first.kind, (len(parts), *first.shape), data),
        )


def in_halves(name: str, tensor: StoredTensor, config: LlmConfig) -> StoredTensor:
    """Order rows of queries and keys so that elements rotated together lie half a head apart."""
    part = name.rpartition(".")[2] if not name.endswith(".bias") else name.split(".")[-2]
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(part)
    if heads is None:
        return tensor
    size = config.head_dim
    order = np.arange(heads * size).reshape(heads, size // 2, 2).transpose(0, 2, 1).reshape(-1)
    if len(tensor.shape) == 1:
        return StoredTensor(
            tensor.kind, tensor.shape, tensor.data.reshape(-1, 4)[order].reshape(-1)
        )
    return tensor.rows(order)


def _is_norm(name: str) -> bool:
    return name.endswith("norm")


def _plus_one(tensor: StoredTensor) -> StoredTensor:
    return floats(tensor.float32() + np.float32(1))


def floats(values: Any) -> StoredTensor:
    """Numbers as a tensor of float32."""
    data = np.ascontiguousarray(values, np.float32)
    return StoredTensor("F32", data.shape, data.view(np.uint8))


def expected(config: LlmConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of a decoder, by name."""
    hidden, size = config.hidden, config.head_dim
    queries, keys = config.heads * size, config.kv_heads * size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (config.vocab, hidden),
        "output_norm": (hidden,),
        **({} if config.tied else {"output": (config.vocab, hidden)}),
    }
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
    }
    if config.qkv_bias:
        block |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config.qk_norm:
        block |= {"attn_q_norm": (size,), "attn_k_norm": (size,)}
    if config.qk_norm_rows:
        block |= {"attn_q_norm": (queries,), "attn_k_norm": (keys,)}
    if config.post_norms:
        block |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    if (experts := config.experts) is not None:
        block["ffn_gate_inp"] = (experts.count, hidden)
        for part in ("gate", "up"):
            block[f"ffn_{part}_exps"] = (experts.count, experts.ffn, hidden)
        block["ffn_down_exps"] = (experts.count, hidden, experts.ffn)
    else:
        block |= {"ffn_gate": (config.ffn, hidden), "ffn_up": (config.ffn, hidden)}
        block["ffn_down"] = (hidden, config.ffn)
    for i in range(config.layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def _complete(path: Path, tensors: Tensors, config: LlmConfig) -> Tensors:
    """Compare the weights with what the family has.

    Raises:
        SourceError: some lack, are unknown or of another shape.
    """
    tensors = dict(_apart(tensors, config))
    wanted = expected(config)
    problems = [f"weight {name!r} is missing" for name in wanted if name not in tensors]
    for name, tensor in tensors.items():
        if name not in wanted and not _IGNORED.fullmatch(name):
            problems.append(f"weight {name!r} is unknown to family {config.family!r}")
        elif name in wanted and tensor.shape != wanted[name]:
            problems.append(f"weight {name!r}: expected {wanted[name]}, received {tensor.shape}")
    if problems:
        more = len(problems) - MOST_LISTED
        tail = f"; and {more} more" if more > 0 else ""
        raise SourceError(f"{path}: " + "; ".join(problems[:MOST_LISTED]) + tail)
    return {name: tensors[name] for name in wanted}


def _apart(tensors: Tensors, config: LlmConfig) -> Iterator[tuple[str, StoredTensor]]:
    """Take apart gates and inputs of experts that lie in one array."""
    for name, tensor in tensors.items():
        if name.endswith("ffn_gate_up_exps") and config.experts is not None:
            stem, inner = name.removesuffix("ffn_gate_up_exps"), config.experts.ffn
            for part, data in (("gate", tensor.data[:, :inner]), ("up", tensor.data[:, inner:])):
                shape = (tensor.shape[0], data.shape[1], tensor.shape[2])
                yield f"{stem}ffn_{part}_exps", StoredTensor(tensor.kind, shape, data)
        else:
            yield name, tensor


def about(given: LlmSource) -> dict[str, dict[str, int]]:
    """Number and bytes of tensors by type, the most bytes first."""
    found: dict[str, dict[str, int]] = {}
    for tensor in given.tensors.values():
        entry = found.setdefault(tensor.kind, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += tensor.data.nbytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))
