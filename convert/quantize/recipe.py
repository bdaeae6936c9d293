"""What a precision asks for, as data.

A name reads ``<kind>_w<weights>_a<activations>``: ``static_wi8_ai8`` has 8-bit integer weights and
activations with scales fixed by calibration; ``b32`` are blocks of 32 weights with a scale each;
``afp32`` leaves activations in float; ``dynamic`` measures them in each run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeinfer.errors import UsageError

Method = Literal["minmax", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = ("minmax", "percentile", "entropy", "mse")

AUTO = "auto"
"""The precision that is searched for: 8-bit integers wherever the accuracy budget allows."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One precision.

    Attributes:
        name: as given to ``--precision``.
        weights: bits of a weight; 32 and 16 are floats.
        activations: bits of an activation with a fixed scale; 0 where it stays float.
        block: weights that share a scale along the summed axis; 0 for one scale a channel.
        dynamic: activations get 8 bits and a scale of their own in each run.
    """

    name: str
    weights: int = 32
    activations: int = 0
    block: int = 0
    dynamic: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it needs calibration data."""
        return self.activations > 0

    @property
    def is_integer(self) -> bool:
        """Whether weights become integers, which the quantizer does; floats are the lowering's."""
        return self.weights < 16


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("fp32"),
        Recipe("fp16", weights=16),
        Recipe("bf16", weights=16),
        Recipe("static_wi8_ai8", weights=8, activations=8),
        Recipe("static_wi8_ai16", weights=8, activations=16),
        Recipe("dynamic_wi8_afp32", weights=8, dynamic=True),
        Recipe("weight_only_wi8_afp32", weights=8),
        Recipe("weight_only_wi4b32_afp32", weights=4, block=32),
    )
}


def recipe(name: str) -> Recipe:
    """Return a recipe by name; ``auto`` starts from 8-bit integers.

    Raises:
        UsageError: no recipe has this name.
    """
    found = RECIPES.get("static_wi8_ai8" if name == AUTO else name)
    if found is None:
        raise UsageError(f"precision {name!r} is unknown; known: {', '.join((*RECIPES, AUTO))}")
    return found


def lowered_as(name: str) -> str:
    """Return the precision that a lowering is asked for: integers are in the graph already.

    Raises:
        UsageError: no recipe has this name.
    """
    return "fp32" if recipe(name).is_integer else name
