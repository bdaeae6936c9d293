"""What a lowering target is: a format that a normalised model can be written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.options import ArtifactOptions
from edgeinfer.errors import Problem, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, Stored

if TYPE_CHECKING:
    import onnx_ir as ir


PRECISION_KEY = "edgeinfer.precision"
"""Where a graph whose weights are integers keeps its recipe's name, among the model's metadata."""

ARITHMETIC_KEY = "edgeinfer.arithmetic"
"""Metadata of the ``DequantizeLinear`` of weights, where it is not what stands around it that says
how they are multiplied: ``float``, or ``dynamic`` for kernels that give activations 8 bits and a
scale of their own in each run."""


@dataclass(frozen=True)
class LowerOptions(ArtifactOptions):
    """What is asked of a lowering, beyond what the user asked of artifacts.

    Attributes:
        precision: Recipe name, e.g. ``fp32``, ``fp16``.
        fp32_nodes: Names of nodes that stay fp32 in an fp16 artifact, beyond the built-in rules.
        shape_sets: Several fixed shapes of all inputs with dynamic sizes: formats with several
            entry points in a file write one for each.
        ranges: Least and greatest size by input name and axis, for formats that hold bounds.
        recipe: The recipe as requested, of which ``precision`` is what is left to do where
            integers are in the graph already.
        samples: Inputs of the model, for formats that are timed or whose own tools quantize.
        io_dtypes: Element types of inputs and outputs by name, of all others under the empty name.
        one_file: Whether the artifact is to be one file, where the format can hold the weights.
        tell: Called with what is being done, by formats that take long.
    """

    precision: str = "fp32"
    fp32_nodes: frozenset[str] = frozenset()
    shape_sets: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    ranges: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    recipe: str = ""
    samples: tuple[Feeds, ...] = ()
    io_dtypes: Mapping[str, str] = field(default_factory=dict)
    one_file: bool = False
    tell: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """An artifact on disk.

    Attributes:
        format: the format written.
        files: paths below the folder that was given; the first one is what the engine opens.
        precision: read back from what was written: every float weight and activation type found.
        engines: backends that can run it, best first.
        notes: what the lowering changed, for the report.
        ops: operator type to count, as written.
        constraints: what must hold for it to be right, as in a manifest's variant.
        stored: inputs and outputs that are integers in it, likewise.
    """

    format: str
    files: tuple[Path, ...]
    precision: str
    engines: tuple[EngineRequirement, ...]
    notes: tuple[str, ...] = ()
    ops: dict[str, int] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is ready to be written, or what is in the way.

    Attributes:
        problems: every node that cannot be expressed; an empty list promises that ``write`` works.
        target: who says so.
        writer: writes it into a folder.
    """

    problems: list[Problem]
    target: str
    writer: Callable[[Path], Lowered]

    @classmethod
    def refused(cls, error: UnsupportedError) -> Prepared:
        """Return what cannot be written."""

        def write(folder: Path) -> Lowered:
            raise error

        return cls(list(error.problems), error.target, write)

    def write(self, folder: Path) -> Lowered:
        """Write the artifact into an empty folder; once.

        Raises:
            UnsupportedError: there are problems.
            NotAvailableError: what writes the format is missing; has the install line.
        """
        if self.problems:
            raise UnsupportedError(self.target, self.problems)
        return self.writer(folder)


class Target(ABC):
    """A format writer. ``model`` is normalised and must not be modified."""

    format: ClassVar[str]

    @abstractmethod
    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Do all but write.

        Raises:
            UsageError: the format cannot hold what is requested.
            NotAvailableError: a library that writes the format is missing; has the install line.
        """

    def check(self, model: ir.Model, profile: Profile, options: LowerOptions) -> list[Problem]:
        """List every node that cannot be expressed."""
        return self.prepare(model, profile, options).problems

    def lower(
        self, model: ir.Model, profile: Profile, options: LowerOptions, folder: Path
    ) -> Lowered:
        """Write the artifact into an empty folder.

        Raises:
            UnsupportedError: with the list of ``check``.
        """
        return self.prepare(model, profile, options).write(folder)

    def check_precision(
        self, profile: Profile, options: LowerOptions, known: AbstractSet[str]
    ) -> None:
        """Refuse a precision that the format or the profile lacks.

        Raises:
            UsageError: it is one.
        """
        able = known & set(profile.precisions)
        if options.precision not in able:
            raise UsageError(
                f"target {profile.name!r}, format {self.format!r}: precision "
                f"{options.precision!r} cannot be written; known: {', '.join(sorted(able))}"
            )
