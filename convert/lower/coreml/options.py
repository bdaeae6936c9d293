"""What can be asked of a Core ML package beyond its precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from edgeinfer.convert.lower.coreml.deployment import DEFAULT, Deployment
from edgeinfer.convert.quantize.recipe import Packing
from edgeinfer.records import dataclass
from edgeinfer.types import ImageInput

Sizes = tuple[int, ...]

LARGEST = 1 << 20
"""Upper bound of a size that the model leaves open: Core ML wants one for ML Programs."""


@dataclass(frozen=True, slots=True)
class CoreMLOptions:
    """How a package is written.

    Attributes:
        deployment: oldest system that is to open it.
        images: inputs that take images, with how pixels become numbers.
        labels: class names; the first output of their number becomes a classifier's.
        ranges: lowest and highest size by the name of a symbolic size, or by ``input:axis``.
        shapes: the only shapes that an input takes, by its name; faster than ranges.
        states: outputs by the inputs that they feed in the next run; iOS18 keeps them inside.
        halves: weights in single precision are stored in half precision.
        packing: how weights are packed, beyond what the graph's own integers say.
        integers: what integer inputs lie between, by name; a run is held to it.
    """

    deployment: Deployment = DEFAULT
    images: Mapping[str, ImageInput] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[Sizes, ...]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    packing: Packing | None = None
    halves: bool = False
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
