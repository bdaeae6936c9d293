"""Low-rank adapters as they come: a GGUF file, or a folder that the library PEFT wrote.

Source: llama.cpp's ``convert_lora_to_gguf.py`` and ``llama-adapter.cpp``; ``LoraConfig`` of PEFT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.llm import gguf, safetensors
from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.families import FAMILIES
from edgeinfer.convert.llm.families.base import Family
from edgeinfer.convert.llm.source import (
    MOST_LISTED,
    expected,
    in_halves,
    read_json,
    renamed,
    undamaged,
)
from edgeinfer.errors import SourceError, UsageError
from edgeinfer.llm import LlmConfig
from edgeinfer.records import dataclass
from edgeinfer.types import Array

PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Matrices of a layer that may have an adapter."""

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PEFT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_GGUF = re.compile(r"(.+)\.weight\.lora_([ab])")
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_PLAIN = re.compile(r"[\w.]+")

_ALL = "all-linear"
"""As ``target_modules``: all that an adapter may have here."""

_MOST, _MOST_RANK = float(np.finfo(np.float32).max), 1 << 16
_LONGEST, _LONGEST_EXPRESSION = 200, 1000
"""Letters of a module's name, and of an expression for such names."""

_MOST_WAYS = 1 << 20
"""Ways in which an expression may be tried on a name."""

_KNOWN = frozenset({
    *("auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules"),
    *("inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout"),
    *("lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision"),
    *("runtime_config", "target_modules", "task_type", "ensure_weight_tying"),
    *("peft_type", "bias", "init_lora_weights", "r", "lora_alpha", "use_rslora"),
    *("rank_pattern", "alpha_pattern"),
})  # fmt: skip
"""What a configuration may say: how it was trained, or what is looked at here."""

_GGUF_KNOWN = frozenset({"type", "lora.alpha", "lora.task_name"})
_KEPT_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the model's own weights alone."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to a product: ``scale * high @ (low @ x)``.

    Attributes:
        low: (rank, columns) float32.
        high: (rows, rank) float32.
        scale: Factor.
    """

    low: Array
    high: Array
    scale: float

    @property
    def rank(self) -> int:
        """Return the rank."""
        return len(self.low)


Adapter = dict[str, LowRank]
"""By the matrices' names."""


@dataclass(frozen=True, slots=True)
class MergedTensor(StoredTensor):
    """A matrix with what an adapter adds to it, which is merged when it is decoded."""

    pair: LowRank

    def float32(self) -> Array:
        """The weights."""
        product = self.pair.high @ self.pair.low
        return np.asarray(StoredTensor.float32(self) + np.float32(self.pair.scale) * product)


def with_adapter(tensors: Mapping[str, StoredTensor], adapter: Adapter) -> dict[str, StoredTensor]:
    """Weights of a model that an adapter is merged into."""
    made = dict(tensors)
    for name, pair in adapter.items():
        base = tensors[name]
        made[name] = MergedTensor(base.kind, base.shape, base.data, pair)
    return made


def named_adapters(
    paths: Mapping[str, str | Path], config: LlmConfig
) -> tuple[dict[str, Adapter], list[str]]:
    """Read adapters of a model; returns them by name, and what the user should know.

    Raises:
        SourceError: one cannot be read, or is for another model.
        UsageError: a name is none.
    """
    if odd := [name for name in paths if not _NAME.fullmatch(name)]:
        raise UsageError(f"adapter {odd[0][:64]!r}: names have letters, digits, '.', '_' and '-'")
    found, notes = {}, []
    for name, path in paths.items():
        found[name] = read(Path(path), config)
        ranks = ", ".join(map(str, sorted({pair.rank for pair in found[name].values()})))
        count = len(found[name])
        notes.append(f"adapter {name}: {Path(path).name}, rank {ranks}, {count} matrices")
    return found, notes


Pairs = dict[str, dict[str, StoredTensor]]
"""``A`` and ``B`` by the file's names of matrices."""


def read(path: Path, config: LlmConfig) -> Adapter:
    """Read an adapter of a model.

    Args:
        path: a GGUF file, or a folder with ``adapter_config.json``, or the weights in it.
        config: Configuration of the model.

    Raises:
        SourceError: it cannot be read, is for another model, or changes what no adapter here does;
            lists everything of a kind.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder")
    family = next(f for f in FAMILIES if f.name == config.family)
    problems: list[str] = []
    with undamaged(path):
        if path.is_dir() or path.suffix == ".safetensors":
            folder = path if path.is_dir() else path.parent
            found = _folder(folder, family, config, problems)
        else:
            found = _file(path, family, config, problems)
    problems += _problems(found, config)
    if problems:
        more = len(problems) - MOST_LISTED
        tail = f"; and {more} more" if more > 0 else ""
        raise SourceError(f"{path}: " + "; ".join(problems[:MOST_LISTED]) + tail)
    return found


def _problems(found: Adapter, config: LlmConfig) -> Iterator[str]:
    wanted = expected(config)
    if not found:
        yield "no matrices of an adapter"
    for name, pair in found.items():
        if name.rpartition(".")[2] not in PARTS or name not in wanted:
            known = ", ".join(part for part in PARTS if f"blk.0.{part}" in wanted)
            yield f"{name!r}: adapters of this model change {known} of its layers"
            continue
        rows, columns = wanted[name]
        shapes = (pair.rank, columns), (rows, pair.rank)
        received = pair.low.shape, pair.high.shape
        if received != shapes:
            yield f"{name!r}: expected A {shapes[0]} and B {shapes[1]}, received {received}"
        elif not all(np.isfinite(x).all() for x in (pair.low, pair.high, pair.scale)):
            yield f"{name!r}: numbers that are not finite"
        elif _largest(pair) > _MOST:
            yield f"{name!r}: B A may have numbers that are not finite in float32"


def _largest(pair: LowRank) -> float:
    """Return a number that no element of ``scale B A`` is beyond, nor any part of its sum."""
    low = np.abs(pair.low).max(1, initial=0).astype(np.float64)
    high = np.abs(pair.high).astype(np.float64)
    return float((high @ low).max(initial=0) * max(abs(pair.scale), 1))


def _paired(
    tensors: Mapping[str, StoredTensor], form: re.Pattern[str], problems: list[str]
) -> Pairs:
    """Put halves together; what is no half of a pair, or lacks its other one, is a problem."""
    pairs: Pairs = {}
    others = []
    for name, tensor in tensors.items():
        if (m := form.fullmatch(name)) is None or len(tensor.shape) != 2:
            others.append(name)
        elif m[2].upper() in pairs.get(m[1], ()):
            others.append(f"{name} once more")
        else:
            pairs.setdefault(m[1], {})[m[2].upper()] = tensor
    others += [f"{name} with {next(iter(p))} alone" for name, p in pairs.items() if len(p) != 2]
    if others:
        listed = ", ".join(map(repr, sorted(others)[:MOST_LISTED]))
        problems.append(f"{len(others)} tensors that no adapter here has: {listed}")
    return {name: pair for name, pair in pairs.items() if len(pair) == 2}


def _file(path: Path, family: Family, config: LlmConfig, problems: list[str]) -> Adapter:
    file = gguf.read(path)
    kinds = file.fields.get("general.type"), file.fields.get("adapter.type")
    if kinds != ("adapter", "lora"):
        raise SourceError(f"{path}: a GGUF file of the type {kinds[0]!r}, not of an adapter (LoRA)")
    architecture = file.fields.get("general.architecture")
    if architecture not in family.gguf:
        raise SourceError(
            f"{path}: an adapter of {architecture!r}, and the model is of {family.name!r}"
        )
    own = {key.removeprefix("adapter.") for key in file.fields if key.startswith("adapter.")}
    problems += [f"adapter.{name[:60]} is not supported" for name in sorted(own - _GGUF_KNOWN)]
    alpha = file.fields.get("adapter.lora.alpha", 0.0)
    if not _is_number(alpha):
        problems.append(f"adapter.lora.alpha: {str(alpha)[:60]!r} is no number")
        alpha = 0.0
    made: Adapter = {}
    for name, pair in _paired(file.tensors, _GGUF, problems).items():
        low = pair["A"].float32()
        scale = alpha / len(low) if alpha else 1.0
        # What is in pairs are rows of the product, of which B has as many.
        highs = {name: in_halves(name, pair["B"], config) if family.paired else pair["B"]}
        if family.split is not None:
            highs = family.split(highs, config)
        _take(made, low, highs, scale, problems)
    return made


def _take(
    made: Adapter,
    low: Array,
    highs: Mapping[str, StoredTensor],
    scale: float,
    problems: list[str],
) -> None:
    """Add the pairs of one product; a matrix that has one already is a problem."""
    if twice := sorted(made.keys() & highs.keys()):
        problems.append(f"more than one pair for {twice[0]!r}")
    made |= {ours: LowRank(low, high.float32(), scale) for ours, high in highs.items()}


def _folder(folder: Path, family: Family, config: LlmConfig, problems: list[str]) -> Adapter:
    safetensors.check_links(folder, (_CONFIG,))
    data = read_json(folder / _CONFIG)
    problems += (f"{_CONFIG}: {each}" for each in _unsupported(data))
    is_read = not problems
    made: Adapter = {}
    tensors = safetensors.read(folder, (_WEIGHTS,))
    for name, pair in _paired(tensors, _PEFT, problems).items():
        low = pair["A"].float32()
        scale = 1.0
        # Further ones are none of a model's, and an expression takes its time with them.
        if is_read and len(name) <= _LONGEST:
            problems += _left_out(data, name)
            scale = _scale(data, name, len(low), problems)
        highs = dict(renamed(family, {f"{name}.weight": pair["B"]}))
        if family.split is not None:
            highs = family.split(highs, config)
        _take(made, low, highs, scale, problems)
    return made


def _unsupported(data: Any) -> Iterator[str]:
    """Say what a configuration asks for that is more than ``B A x``."""
    if not isinstance(data, dict) or data.get("peft_type") != "LORA":
        kind = data.get("peft_type") if isinstance(data, dict) else data
        yield f"peft_type: expected 'LORA', received {str(kind)[:40]!r}"
        return
    for name in sorted(data.keys() - _KNOWN):
        if data[name]:
            yield f"{name[:60]}: {str(data[name])[:60]} is not supported"
    if not _is_number(data.get("lora_alpha")):
        yield f"lora_alpha: expected a number, received {str(data.get('lora_alpha'))[:60]!r}"
    if not _is_rank(data.get("r")):
        yield f"r: expected a whole number from 1, received {str(data.get('r'))[:60]!r}"
    yield from _unread(data)
    if data.get("use_rslora") not in (None, True, False):
        yield f"use_rslora: expected true or false, received {str(data['use_rslora'])[:60]!r}"
    if data.get("bias", "none") != "none":
        yield f"bias: {str(data['bias'])[:60]!r} is not supported"
    begun = data.get("init_lora_weights")
    if begun not in _KEPT_BASE:
        yield f"init_lora_weights: {str(begun)[:60]!r} changes the model's own weights"
    for name, fits in (("rank_pattern", _is_rank), ("alpha_pattern", _is_number)):
        pattern = data.get(name) or {}
        if not isinstance(pattern, dict) or not all(map(fits, pattern.values())):
            yield f"{name}: expected numbers by name, received {str(pattern)[:60]}"
        elif odd := [key for key in pattern if not _PLAIN.fullmatch(key)]:
            yield f"{name}: {str(odd[0])[:60]!r} is no plain name"


def _unread(data: Mapping[str, Any]) -> Iterator[str]:
    """Say which choice of modules is not read here."""
    targets, excluded = data.get("target_modules"), data.get("exclude_modules")
    for name, given in (("target_modules", targets), ("exclude_modules", excluded)):
        if given is None and name == "exclude_modules":
            continue
        if isinstance(given, str):
            if given != _ALL and not _is_quick(given):
                yield f"{name}: {given[:60]!r} may take long to match, or is none; list the names"
        elif not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            yield f"{name}: expected names, received {str(given)[:60]}"
    layers, pattern = data.get("layers_to_transform"), data.get("layers_pattern")
    of_list = layers if isinstance(layers, list) else [layers]
    if layers is not None and not all(type(each) is int for each in of_list):
        yield f"layers_to_transform: expected numbers of layers, received {str(layers)[:60]}"
    if layers not in (None, []) and isinstance(targets, str):
        yield "layers_to_transform: expected none next to an expression as target_modules"
    if pattern and (layers in (None, []) or not all(map(_PLAIN.fullmatch, _listed(pattern)))):
        yield f"layers_pattern: {str(pattern)[:60]!r} is not supported"


def _listed(pattern: Any) -> list[str]:
    return [pattern] if isinstance(pattern, str) else [str(each) for each in pattern]


def _is_quick(expression: str) -> bool:
    """Whether an expression is one whose search ends soon, whatever the name."""
    if len(expression) > _LONGEST_EXPRESSION:
        return False
    try:
        re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return False
    if re.search(r"\)[*+{]|\\[1-9]|\(\?(?!:)", expression):
        return False
    return _ways(expression) <= _MOST_WAYS


def _ways(expression: str) -> int:
    """Return a number that the ways to try an expression on a name are not beyond.

    Each part multiplies them: what repeats by the name's letters, what may be left out by two, a
    group by its alternatives.
    """
    single = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"(?s)\\.", "x", expression))
    # Of each open group: ways of the alternatives before this one, and of this one.
    open_groups = [(0, 1)]
    for mark in re.findall(r"\(\?:|[(|)?*+{]", single):
        before, ways = open_groups.pop()
        if mark.startswith("("):
            open_groups += [(before, ways), (0, 1)]
        elif mark == "|":
            open_groups.append((before + ways, 1))
        elif mark == ")":
            outer, others = open_groups.pop()
            open_groups.append((outer, others * (before + ways)))
        else:
            open_groups.append((before, ways * (2 if mark == "?" else _LONGEST + 1)))
    return sum(open_groups[0])


def _left_out(data: Mapping[str, Any], name: str) -> Iterator[str]:
    """Say which key leaves a matrix out that has a pair; PEFT gives it none then.

    Source: ``check_target_module_exists`` of PEFT.
    """
    targets, layers = data["target_modules"], data.get("layers_to_transform")
    if not _is_chosen(targets, name):
        yield f"{name!r}: {_CONFIG}: target_modules {str(targets)[:60]} leaves it out"
    if (excluded := data.get("exclude_modules")) and _is_chosen(excluded, name):
        yield f"{name!r}: {_CONFIG}: exclude_modules {str(excluded)[:60]} leaves it out"
    if layers not in (None, []):
        patterns = _listed(data.get("layers_pattern") or []) or ["[^.]*"]
        found = next(filter(None, (re.match(rf".*\.{p}\.(\d+)\.", name) for p in patterns)), None)
        if found is None or int(found[1]) not in (layers if isinstance(layers, list) else [layers]):
            yield f"{name!r}: {_CONFIG}: layers_to_transform {str(layers)[:60]} leaves it out"


def _is_chosen(names: str | list[str], name: str) -> bool:
    """Whether a module is one of those that are named by an expression, or by ends of names."""
    if isinstance(names, str):
        return names == _ALL or re.fullmatch(names, name) is not None
    return any(f".{name}".endswith(f".{each}") for each in names)


def _is_rank(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MOST_RANK


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) <= _MOST


def _of(data: Mapping[str, Any], pattern: str, usual: str, name: str) -> float:
    """Return what a configuration says of a matrix: keys are expressions, the first one counts.

    Source: ``get_pattern_key`` of PEFT.
    """
    matching = (
        value
        for key, value in (data.get(pattern) or {}).items()
        if re.fullmatch(rf"(.*\.)?({key})", name)
    )
    return float(next(matching, data[usual]))


def _scale(data: Mapping[str, Any], name: str, rank: int, problems: list[str]) -> float:
    """Return the factor of a pair; a rank other than the configuration says is a problem."""
    if (said := _of(data, "rank_pattern", "r", name)) != rank:
        problems.append(f"{name!r}: the rank is {rank}, and {_CONFIG} says {said:g}")
    alpha = _of(data, "alpha_pattern", "lora_alpha", name)
    return alpha / (math.sqrt(rank) if data.get("use_rslora") else rank)
