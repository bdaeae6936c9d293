"""Pictures of vision-language models: what their folder says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from edgeinfer.convert.llm.families.base import Tensors
from edgeinfer.convert.llm.families.keys import MOST_LAYERS, ConfigValues
from edgeinfer.errors import SourceError
from edgeinfer.llm.vision import FILTERS, MOST_SIDE, Resize, VisionInput
from edgeinfer.records import dataclass

_TOWER = re.compile(
    r"(model\.)?(vision_tower|vision_model|multi_modal_projector|connector)\..*", re.S
)
"""Names of weights of vision towers and projectors."""

_TEXT = re.compile(r"(model\.)?(language_model|text_model)\.(model\.)?")
_OF_MODEL = ("layers.", "embed_tokens.", "norm.")

_TILED = ("idefics3", "smolvlm")
KINDS = ("llava", *_TILED)

_BOTH_WAYS = "tokens of an image see each other in both directions, which the tape does not"
_THREE = "tokens of an image have three positions each (M-RoPE), which the tape does not know"
_REASONS = {
    **dict.fromkeys(("gemma3", "paligemma", "shieldgemma2"), _BOTH_WAYS),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"), _THREE),
}

_ALONE = "--text-only converts the language part, where that is supported"

_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_HALF = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
_TILES = {
    **{"resample": 1, "image_mean": _HALF[0], "image_std": _HALF[1]},
    **{"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}},
}
_CLIPS: dict[str, Any] = {
    **{"resample": 3, "image_mean": _CLIP[0], "image_std": _CLIP[1]},
    **{"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}},
}
_SIGLIPS: dict[str, Any] = {
    **{"resample": 3, "image_mean": _HALF[0], "image_std": _HALF[1]},
    **{"size": {"height": 224, "width": 224}, "do_center_crop": False},
}
_PROCESSORS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "llava": {"CLIP": _CLIPS, "Siglip": _SIGLIPS},
    **{kind: {"Idefics3": _TILES, "SmolVLM": _TILES} for kind in _TILED},
}
"""What each processor does where its file does not say, in transformers' ``image_processing_*``."""

_PROCESSOR = re.compile(r"(\w+?)(?:ImageProcessor|FeatureExtractor)(?:Fast|Pil)?")
_SAID = ("resample", "image_mean", "image_std", "size")
"""What a processor file must state where it does not name its processor."""

_MOST_SEEN, _MOST_WORK, _MOST_WIDE = 1 << 29, 1 << 34, 1 << 28
"""Pairs of patches that the heads of a layer look at together, those of all layers, and numbers
between the two products of a layer. 4,900 patches and 16 heads are 1.5 GB in float32."""

_LLAMA = {
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048},
    "rms_norm_eps": 1e-6,
}
TEXT_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        **{"intermediate_size": 14336, "num_key_value_heads": 8},
        **{"max_position_embeddings": 131072, "sliding_window": 4096},
    },
    "qwen2": {**_LLAMA, "intermediate_size": 22016, "vocab_size": 151936}
    | {"num_key_value_heads": 32, "max_position_embeddings": 32768},
}
"""Sizes that files leave out of ``text_config`` where they are transformers' own."""

_MOST_SIZE = 1 << 16
"""The largest size in a tower's configuration that is accepted."""

_CODE = "auto_map"
"""Names classes of the folder's own Python."""

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("image_size", "patch_size", "num_channels"),
)
_TOWERS: Mapping[str, tuple[str | None, ...]] = {
    "llava": ("clip_vision_model", "siglip_vision_model"),
    "idefics3": ("idefics3_vision", "idefics3", None),
    "smolvlm": ("smolvlm_vision", "smolvlm", None),
}
"""``vision_config.model_type`` of each kind."""

_LAYERS = 12
"""Layers of a tower whose configuration does not say how many it has."""

_BESIDE_TOWERS = (
    *("initializer_factor", "projection_dim", "tie_word_embeddings", "use_base_siglip"),
    *("max_image_size", "size", "vocab_size"),
)
"""What a ``vision_config`` says besides what its tower computes. Projections to ``projection_dim``
are behind it; Idefics 3's files repeat their processor's sizes, and LLaVA's have a vocabulary."""

_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")

_ABSENT: Mapping[str, Any] = {
    **{"model_type": "llama", "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8},
    **{"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8},
    **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
}
"""Description of the language part that is made next to the tower and not used."""

Files = Mapping[str, Mapping[str, Any]]
FILES = ("preprocessor_config.json", "processor_config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class VisionSource:
    """The vision part of a folder.

    Attributes:
        kind: ``model_type`` of the whole.
        pictures: what becomes of images; ``rows`` is what the tower should give.
        config: what transformers makes it of; keys that are known here alone.
        weights: the tower's and projector's.
    """

    kind: str
    pictures: VisionInput
    config: Mapping[str, Any] = field(repr=False)
    weights: Tensors = field(repr=False, compare=False)


def text_name(name: str) -> str:
    """Return the name that a weight of the language part has in a model without vision."""
    rest = _TEXT.sub("", name, count=1) if _TEXT.match(name) else name
    return f"model.{rest}" if rest.startswith(_OF_MODEL) else rest


def parted(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return the weights of the language part, and those of the vision part."""
    seen = {name: t for name, t in tensors.items() if _TOWER.fullmatch(name)}
    return {name: t for name, t in tensors.items() if name not in seen}, seen


def described(config: Mapping[str, Any], files: Files, seen: Tensors) -> VisionSource:
    """Read what a folder says of images.

    Args:
        config: Contents of its config.json.
        files: Contents of those of ``FILES`` that there are.
        seen: weights of the vision part.

    Raises:
        SourceError: images of such a model are not supported; lists every reason.
    """
    kind = config.get("model_type")
    if kind not in KINDS:
        reason = _REASONS.get(f"{kind}", f"read are images of {', '.join(KINDS)}")
        raise SourceError(f"images of {str(kind)[:40]!r}: {reason}; {_ALONE}")
    problems = list(_code(config, files))
    if not seen:
        problems.append("config.json has a vision_config, but there are no weights of it")
    vision = config.get("vision_config")
    vision = vision if isinstance(vision, Mapping) else {}
    _check_sizes(vision, len(seen), problems)
    passed = _passed(kind, config, vision, problems)
    made = _pictures(kind, config, vision, files, problems)
    if made is None or problems:
        raise SourceError("images: " + "; ".join(problems))
    return VisionSource(kind, made, passed, seen)


def _code(config: Mapping[str, Any], files: Files) -> Iterator[str]:
    """Say where a folder names Python of its own, which may compute something else."""
    processor = files.get("processor_config.json", {})
    for where, found in (
        ("config.json", config),
        *((f"config.json: {name}", config.get(name)) for name in ("vision_config", "text_config")),
        *files.items(),
        ("processor_config.json: image_processor", processor.get("image_processor")),
    ):
        if isinstance(found, Mapping) and found.get(_CODE):
            yield f"{where}: {_CODE}: Python of the folder is never run, with --trust-source either"


def _passed(
    kind: str, config: Mapping[str, Any], vision: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Return what transformers makes a model of: known keys and names, and no other."""
    prefix = "vision_config."
    tower = ConfigValues({prefix + name: value for name, value in vision.items()}, prefix)
    whole = ConfigValues(config)
    made: dict[str, Any] = {n: tower.size(n) for n in _SIZES if tower.get(n) is not None}
    if tower.get("layer_norm_eps") is not None:
        made["layer_norm_eps"] = tower.number("layer_norm_eps")
    tower.refuse("num_channels", unless=(None, 3))
    if tower.size("hidden_size", 1) % (heads := tower.size("num_attention_heads", 1)):
        tower.problems.append(f"{prefix}num_attention_heads: {heads} do not divide the hidden_size")
    _choose(tower, made, "model_type", _TOWERS[kind])
    _choose(tower, made, "hidden_act", (None, *_ACTIVATIONS))
    if made.get("model_type") == "siglip_vision_model":
        _choose(tower, made, "vision_use_head", (None, True, False))
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else {}
    defaults = TEXT_DEFAULTS.get(f"{text.get('model_type')}", {})
    hidden = ConfigValues({**defaults, **text}).size("hidden_size")
    passed: dict[str, Any] = {
        "vision_config": made,
        "text_config": {**_ABSENT, "hidden_size": hidden},
    }
    if kind in _TILED:
        if whole.get("scale_factor") is not None:
            passed["scale_factor"] = whole.size("scale_factor")
    else:
        _choose(whole, passed, "projector_hidden_act", (None, *_ACTIVATIONS))
        _choose(whole, passed, "multimodal_projector_bias", (None, True, False))
        _choose(whole, passed, "vision_feature_select_strategy", (None, "default", "full"))
        _choose_layers(whole, passed, tower.size("num_hidden_layers", _LAYERS))
    tower.ignore(*_BESIDE_TOWERS)
    tower.refuse_unknown(vision)
    problems += [*whole.problems, *tower.problems]
    return passed


def _choose(keys: ConfigValues, made: dict[str, Any], name: str, known: Sequence[Any]) -> None:
    """Take one of the values that are known; what is absent stays so where None is one of them."""
    value = keys.get(name)
    if not any(type(value) is type(each) and value == each for each in known):
        listed = ", ".join(str(each) for each in known if each is not None)
        expected = f"expected one of {listed}, received {value!r:.60}"
        keys.problems.append(f"{keys.prefix}{name}: {expected}")
    elif value is not None:
        made[name] = value


def _choose_layers(keys: ConfigValues, made: dict[str, Any], count: int) -> None:
    """Take the number of the layer, or of some, whose result the projector gets."""
    value = keys.get("vision_feature_layer")
    if value is None:
        return
    layers = value if isinstance(value, list) else [value]
    if not layers or any(type(n) is not int or not -count - 1 <= n <= count for n in layers):
        expected = f"numbers of its {count} layers, or of what they are given, 0"
        keys.problems.append(f"vision_feature_layer: expected {expected}, received {value!r:.60}")
    else:
        made["vision_feature_layer"] = value


def _check_sizes(vision: Mapping[str, Any], weights: int, problems: list[str]) -> None:
    """Refuse sizes that no tower has: a model of them is made before its weights are looked at."""
    for name, value in vision.items():
        if isinstance(value, int) and not -1 <= value <= _MOST_SIZE:
            problems.append(f"vision_config.{name}: {value} is beyond {_MOST_SIZE}")
    layers = vision.get("num_hidden_layers", _LAYERS)
    if not isinstance(layers, int) or not 1 <= layers <= min(weights or 1, MOST_LAYERS):
        problems.append(f"vision_config.num_hidden_layers: {str(layers)[:20]} of {weights} weights")


def _pictures(
    kind: str,
    config: Mapping[str, Any],
    vision: Mapping[str, Any],
    files: Files,
    problems: list[str],
) -> VisionInput | None:
    processor = _processor(files)
    keys = ConfigValues({**_unsaid(kind, processor, problems), **processor})
    for name in ("do_resize", "do_rescale", "do_normalize"):
        keys.refuse(name, unless=(None, True))
    number = keys.get("resample")
    if number not in range(len(FILTERS)):
        problems.append(f"resample: expected 0 to {len(FILTERS) - 1}, received {number!r:.20}")
    token = config.get("image_token_id", config.get("image_token_index"))
    if type(token) is not int or token < 0:
        problems.append(f"config.json: image_token_id: expected a token, received {token!r:.20}")
    tower = ConfigValues(vision)
    side, patch = tower.size("image_size"), tower.size("patch_size")
    _check_patches(tower, (side // patch) ** 2, problems)
    method: Resize
    if kind in _TILED:
        method, pixels = _tiles(keys, side, problems)
        factor = ConfigValues(config).size("scale_factor", 2)
        rows = (side // patch // factor) ** 2
        if side // patch % factor:
            problems.append(f"scale_factor: {factor} does not divide {side // patch} patches")
    else:
        method, pixels = _one_tile(keys, side, problems)
        is_first_left = config.get("vision_feature_select_strategy", "default") == "default"
        has_class = vision.get("model_type") == "clip_vision_model"
        rows = (side // patch) ** 2 + has_class - is_first_left
    mean, std = _three(keys, "image_mean"), _three(keys, "image_std")
    scale = keys.number("rescale_factor", 1 / 255)
    problems += [*keys.problems, *(f"vision_config.{p}" for p in tower.problems)]
    if problems:
        return None
    place = _text_of(files, token)
    if not place:
        problems.append(f"tokenizer.json: its added tokens have no {token}, which is an image's")
        return None
    made = VisionInput(
        *(token, place, rows, side, method, pixels, FILTERS[number], scale, mean, std)
    )
    problems += made.problems()
    return made


def _check_patches(tower: ConfigValues, patches: int, problems: list[str]) -> None:
    """Refuse more patches than a tower has: it is run before anything else is known of it.

    Args:
        tower: its configuration.
        patches: Number of those of an image.
        problems: what is wrong is added.
    """
    heads, layers = tower.size("num_attention_heads", 16), tower.size("num_hidden_layers", _LAYERS)
    wide, seen = tower.size("intermediate_size", 1), heads * patches**2
    if seen > _MOST_SEEN or seen * layers > _MOST_WORK or patches * wide > _MOST_WIDE:
        problems.append(
            f"vision_config: {patches} patches, {heads} heads and {layers} layers of {wide} are "
            "more than a tower has"
        )


def _unsaid(kind: str, processor: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
    """Return what a processor does where its file does not say.

    Args:
        kind: ``model_type`` of the whole.
        processor: Contents of its file.
        problems: what is wrong is added.
    """
    name = processor.get("image_processor_type", processor.get("feature_extractor_type"))
    if name is None:
        if missing := [key for key in _SAID if key not in processor]:
            problems.append(f"image_processor_type and {', '.join(missing)}: one is to be there")
        return {}
    found = _PROCESSOR.fullmatch(name) if isinstance(name, str) else None
    known = _PROCESSORS[kind]
    if found is None or found[1] not in known:
        listed = ", ".join(f"{each}ImageProcessor" for each in known)
        problems.append(f"image_processor_type: expected {listed}, received {name!r:.60}")
        return {}
    return known[found[1]]


def _processor(files: Files) -> dict[str, Any]:
    """Return the parameters of the folder's image processor."""
    found = files.get("preprocessor_config.json")
    if found is None:
        found = files.get("processor_config.json", {}).get("image_processor")
    if not isinstance(found, Mapping):
        raise SourceError(
            "there is no preprocessor_config.json, nor an image_processor in a "
            "processor_config.json; save the model's processor with transformers"
        )
    return {key: value for key, value in found.items() if value is not None}


def _tiles(keys: ConfigValues, side: int, problems: list[str]) -> tuple[Resize, int]:
    """Return how a processor of Idefics 3 brings an image to tiles, and its longer side."""
    longest = _edge(keys, "size", "longest_edge")
    tile = _edge(keys, "max_image_size", "longest_edge")
    if tile != side:
        problems.append(f"max_image_size: tiles of {tile} pixels, and the tower takes {side}")
    return ("tiles" if keys.get("do_image_splitting", True) else "whole"), longest


def _one_tile(keys: ConfigValues, side: int, problems: list[str]) -> tuple[Resize, int]:
    """Return how a processor of LLaVA brings an image to one tile, and its shorter side."""
    keys.refuse("do_pad")
    size = keys.get("size")
    if isinstance(size, int):
        size = {"shortest_edge": size}
    crop = keys.get("crop_size")
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    square = {"height": side, "width": side}
    if size == square and (crop == square or not keys.get("do_center_crop", crop is not None)):
        return "stretch", side
    shorter = size.get("shortest_edge") if isinstance(size, dict) and len(size) == 1 else None
    if type(shorter) is int and crop == square and keys.get("do_center_crop", True):
        return "crop", shorter
    problems.append(
        f"size {size!r:.60} and crop_size {crop!r:.60}: expected both sides {side} as the tower "
        "takes, or a shortest_edge and that as crop_size"
    )
    return "stretch", side


def _edge(keys: ConfigValues, name: str, edge: str) -> int:
    value = keys.get(name)
    found = value.get(edge) if isinstance(value, dict) else None
    if type(found) is not int or not 1 <= found <= MOST_SIDE:
        keys.problems.append(f"{name}: expected {edge} of 1 to {MOST_SIDE}, received {value!r:.60}")
        return 1
    return found


def _three(keys: ConfigValues, name: str) -> tuple[float, float, float]:
    value = keys.get(name)
    if isinstance(value, list) and len(value) == 3:
        numbers = ConfigValues({f"{name}[{i}]": each for i, each in enumerate(value)})
        one, two, three = map(numbers.number, numbers.data)
        keys.problems += numbers.problems
        return one, two, three
    keys.problems.append(f"{name}: expected three numbers, received {value!r:.60}")
    return 0.0, 0.0, 0.0


def _text_of(files: Files, token: int) -> str:
    """Return the text of the token that stands for images; empty where there is none."""
    added = files.get("tokenizer.json", {}).get("added_tokens")
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict) and each.get("id") == token:
            return str(each.get("content"))
    return ""
