"""What a precision asks for, as data.

A name reads ``<kind>_w<weights>_a<activations>``: ``static_wi8_ai8`` has 8-bit integer weights and
activations with scales fixed by calibration; ``b32`` are blocks of 32 weights with a scale each;
``afp32`` leaves activations in float, ``afp16`` in half precision, as ``+fp16`` does with what no
integers are for; ``dynamic`` measures them in each run. Core ML also packs weights in other ways:
``wp4`` are indices of 4 bits into a palette, ``wp4g16`` one palette for 16 channels, ``wp4i8`` a
palette of 8-bit integers; ``ws50`` makes half of the weights zero, and ``ws50p4`` or ``ws50i8``
packs the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

Method = Literal["minmax", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = ("minmax", "percentile", "entropy", "mse")

COREMLTOOLS = "coremltools"
"""The calibrator that is coremltools' own: it runs each package that was written."""

AUTO = "auto"
"""The precision that is searched for: 8-bit integers wherever the accuracy budget allows."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How floats are stored in fewer bits, beyond integers with a scale.

    Attributes:
        sparsity: percent of the weights that become zero and are not stored.
        palette: bits of an index into a palette; 0 for none.
        group: output channels that share a palette; 0 for one palette a tensor.
        integers: bits of the palette's entries, or of what is not zero; 0 leaves floats.
    """

    sparsity: int = 0
    palette: int = 0
    group: int = 0
    integers: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """One precision.

    Attributes:
        name: as given to ``--precision``.
        weights: bits of a weight; 32 and 16 are floats.
        activations: bits of an activation with a fixed scale; 0 where it stays float.
        block: weights that share a scale along the summed axis; 0 for one scale a channel.
        dynamic: activations get 8 bits and a scale of their own in each run.
        half: what stays float is computed in half precision.
        packing: how weights are packed by the lowering.
        is_float: weights are floats of so many bits, not integers.
    """

    name: str
    weights: int = 32
    activations: int = 0
    block: int = 0
    dynamic: bool = False
    half: bool = False
    packing: Packing | None = None
    is_float: bool = False

    @property
    def consent(self) -> str:
        """The kind of ``bundle.consent`` that it is; empty where there is none."""
        if self.packing is not None or self.name == "fp32":
            return ""
        if self.is_float or not self.is_quantized:
            return self.name
        return "int4" if self.weights == 4 else "int8"

    @property
    def is_static(self) -> bool:
        """Whether it needs calibration data."""
        return self.activations > 0

    @property
    def is_integer(self) -> bool:
        """Whether weights become integers."""
        return self.weights < 16 and not self.is_float

    @property
    def is_quantized(self) -> bool:
        """Whether weights get scales, by the quantizer; other floats are the lowering's."""
        return self.weights < 16


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("fp32"),
        Recipe("fp16", weights=16, half=True),
        Recipe("bf16", weights=16, is_float=True),
        Recipe("tf32"),
        Recipe("fp8", weights=8, activations=8, half=True, is_float=True),
        Recipe("static_wi8_ai8", weights=8, activations=8),
        Recipe("static_wi8_ai8+fp16", weights=8, activations=8, half=True),
        Recipe("static_wi8_ai16", weights=8, activations=16),
        Recipe("dynamic_wi8_afp32", weights=8, dynamic=True),
        Recipe("weight_only_wi8_afp32", weights=8),
        Recipe("weight_only_wi8_afp16", weights=8, half=True),
        Recipe("weight_only_wi4b32_afp32", weights=4, block=32),
        Recipe("weight_only_wi4b32_afp16", weights=4, block=32, half=True),
    )
}

ALIASES: dict[str, tuple[str, ...]] = {
    "float32": ("fp32",),
    "float16": ("fp16",),
    "half": ("fp16",),
    "bfloat16": ("bf16",),
    "int8": ("static_wi8_ai8", "static_wi8_ai8+fp16"),
    "w8a8": ("static_wi8_ai8", "static_wi8_ai8+fp16"),
    "static": ("static_wi8_ai8", "static_wi8_ai8+fp16"),
    "w8a16": ("static_wi8_ai16",),
    "dynamic": ("dynamic_wi8_afp32",),
    "w8": ("weight_only_wi8_afp32", "weight_only_wi8_afp16"),
    "w4": ("weight_only_wi4b32_afp32", "weight_only_wi4b32_afp16"),
    "int4": ("weight_only_wi4b32_afp32", "weight_only_wi4b32_afp16"),
}
"""What people type, and what it stands for: the first that all targets can do."""

STORED = "stored"
"""The precision of language models that keeps weights as they came."""

INSTEAD = {"bf16": "fp16", "fp8": "static_wi8_ai8"}
"""What is as small, and which more devices have."""

_PACKED = re.compile(
    r"weight_only_w(?:s(?P<sparsity>[1-9][0-9]?))?(?:p(?P<palette>[123468])(?:g(?P<group>[1-9][0-9]*))?)?"
    r"(?:i(?P<integers>8))?_a(?P<rest>fp32|fp16)"
)


def recipe(name: str) -> Recipe:
    """Return a recipe by its name or an alias; ``auto`` starts from 8-bit integers.

    Raises:
        UsageError: no recipe has this name.
    """
    plain = "static_wi8_ai8" if name == AUTO else ALIASES.get(name, (name,))[0]
    found = RECIPES.get(plain) or _packed(plain)
    if found is None:
        raise UsageError(
            f"precision {name!r} is unknown; known: {', '.join((*RECIPES, AUTO))}, and short "
            f"{', '.join(ALIASES)}; for Core ML also packed weights such as weight_only_wp4_afp16 "
            "or weight_only_ws50_afp16"
        )
    return found


def spelled_out(name: str, able: Callable[[Recipe], bool] = lambda _: True) -> str:
    """Return the full name of a precision.

    Args:
        name: Name of a recipe, or an alias.
        able: whether every target can do a recipe; where none of an alias's is possible, the first
            one's name is returned, for the error to name.

    Raises:
        UsageError: no recipe has this name.
    """
    names = ALIASES.get(name)
    if names is None:
        return name if name == AUTO else recipe(name).name
    return next((n for n in names if able(RECIPES[n])), names[0])


def _packed(name: str) -> Recipe | None:
    match = _PACKED.fullmatch(name)
    if match is None:
        return None
    numbers = ("sparsity", "palette", "group", "integers")
    packing = Packing(*(int(match[n] or 0) for n in numbers))
    used = [bool(n) for n in (packing.sparsity, packing.palette, packing.integers)]
    if not any(used[:2]) or all(used):
        return None
    half = match["rest"] == "fp16"
    return Recipe(name, weights=16 if half else 32, half=half, packing=packing)


def lowered_as(name: str) -> str:
    """Return the precision that a lowering is requested: what has scales is in the graph already.

    Raises:
        UsageError: no recipe has this name.
    """
    found = recipe(name)
    if not found.is_quantized and found.packing is None:
        return name
    return "fp16" if found.half else "fp32"
