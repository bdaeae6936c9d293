"""Write a model as TFLite, with builtin operators only."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.lower.tflite.fuse import fuse
from edgeinfer.convert.lower.tflite.graph import Graph
from edgeinfer.convert.lower.tflite.halve import halve
from edgeinfer.convert.lower.tflite.readback import read_back
from edgeinfer.convert.lower.tflite.scope import Scope
from edgeinfer.convert.lower.tflite.writer import write
from edgeinfer.convert.passes.infra import Outcome
from edgeinfer.convert.passes.layout import PlanLayout
from edgeinfer.errors import Notes, Problem, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile

_PRECISIONS = frozenset({"fp32", "fp16"})


class TfliteTarget:
    """Format ``tflite``."""

    format: ClassVar[str] = "tflite"

    def check(self, model: ir.Model, profile: Profile, options: LowerOptions) -> list[Problem]:
        """List every node without a lowering."""
        _check_precision(profile, options)
        try:
            build(model, Notes())
        except UnsupportedError as e:
            return list(e.problems)
        return []

    def lower(
        self, model: ir.Model, profile: Profile, options: LowerOptions, folder: Path
    ) -> Lowered:
        """Write ``model.tflite``.

        Raises:
            UnsupportedError: with the list of ``check``.
            NotAvailableError: LiteRT's schema is not installed.
        """
        _check_precision(profile, options)
        notes = Notes()
        graph = build(model, notes)
        if options.precision == "fp16":
            halve(graph)
        path = folder / "model.tflite"
        write(
            graph,
            path,
            input_names=[t.name for t in graph.inputs],
            output_names=[v.name or "" for v in model.graph.outputs],
        )
        precision, ops = read_back(path)
        return Lowered(
            format=self.format,
            files=(path,),
            precision=precision,
            engines=(EngineRequirement("litert"),),
            notes=tuple(notes.lines),
            ops=ops,
        )


def build(source: ir.Model, notes: Notes) -> Graph:
    """Lower a normalised model to a graph that is ready to be written.

    Raises:
        UnsupportedError: with every node that has no lowering.
    """
    model = source.clone()
    planned = PlanLayout()(model)
    if isinstance(planned, Outcome):
        for line in planned.notes:
            notes.add(line)
    scope = Scope(model.opset_imports)
    scope.lower(model)
    fuse(scope)
    return scope


def _check_precision(profile: Profile, options: LowerOptions) -> None:
    known = _PRECISIONS & set(profile.precisions)
    if options.precision not in known:
        raise UsageError(
            f"target {profile.name!r}, format 'tflite': precision {options.precision!r} cannot be "
            f"written; known: {', '.join(sorted(known))}"
        )
