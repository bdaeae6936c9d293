"""The file that a model was read from, for formats whose own engine says what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from edgeinfer.records import dataclass

Ports = tuple[tuple[str, int], ...]

LITERT = frozenset({"TFLite_Detection_PostProcess"})
"""Custom operators that LiteRT has a kernel for."""


@dataclass(frozen=True, slots=True)
class Original:
    """A model file that LiteRT runs.

    Attributes:
        path: the file.
        graph: index of the graph that was read.
        signature: key of its signature; None where it has none, and for graph 0 only.
        inputs: names as they were read, and the numbers of their tensors in the file.
        outputs: likewise.
        moved: Moved of inputs and outputs whose layout was changed after reading, the order of axes
            that turns the new one into the file's.
        hybrid: float operators with integer weights are in it, whose kernels round their data.
        custom: operators in it that LiteRT cannot judge, by name; sorted.
    """

    path: Path
    graph: int
    signature: str | None
    inputs: Ports
    outputs: Ports
    moved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hybrid: bool = False
    custom: tuple[str, ...] = ()
