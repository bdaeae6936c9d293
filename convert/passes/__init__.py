"""Normalisation: what every target wants of a graph is decided once, here.

After ``normalise`` a model is at opset ``OPSET`` (or the newer one it came with), its weights are
initializers, its functions are inlined, its shapes are inferred, what can be folded is folded and
what an exporter took apart is whole again (``Gelu``, ``LayerNormalization``, ...). Nothing later
needs to know which exporter made it.

A pass leaves alone what it does not understand; none raises for a model that an engine can run.
Names, order and element types of the graph's inputs and outputs survive all passes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import cache

import onnx_ir as ir

from edgeinfer.convert.passes.clean_cast import CleanCast
from edgeinfer.convert.passes.clean_identity import RemoveIdentity
from edgeinfer.convert.passes.clean_reshape import CleanReshape
from edgeinfer.convert.passes.clean_transpose import CleanTranspose
from edgeinfer.convert.passes.collect_sequences import CollectSequences
from edgeinfer.convert.passes.constants import FoldConstants
from edgeinfer.convert.passes.control_flow import InlineControlFlow
from edgeinfer.convert.passes.dead_code import RemoveDeadCode, drop_unused_imports
from edgeinfer.convert.passes.drop_zero_states import DropZeroStates
from edgeinfer.convert.passes.fold_shapes import FoldShapes
from edgeinfer.convert.passes.fold_zero_products import FoldZeroProducts
from edgeinfer.convert.passes.fusions import FUSIONS
from edgeinfer.convert.passes.infra import PassOutcome, all_nodes
from edgeinfer.convert.passes.inline import InlineFunctions
from edgeinfer.convert.passes.interface import (
    DropDefaultInputs,
    NameEverything,
    input_specs,
    output_specs,
)
from edgeinfer.convert.passes.lift_constants import LiftConstants
from edgeinfer.convert.passes.nan_guards import RemoveNanGuards
from edgeinfer.convert.passes.opset import RaiseOpset, default_opset
from edgeinfer.convert.passes.scale_scores import ScaleScores
from edgeinfer.convert.passes.settle_padding import SettlePadding
from edgeinfer.convert.passes.settle_sequences import SettleSequences
from edgeinfer.convert.passes.settle_squeeze import SettleSqueeze
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.share_duplicates import ShareInitializers, ShareNodes
from edgeinfer.convert.passes.state_defaults import StateDefaults
from edgeinfer.convert.passes.static_shapes import BindShapes, Shapes
from edgeinfer.convert.passes.widen_halves import WidenHalves
from edgeinfer.records import dataclass

__all__ = [
    "FUSIONS",
    "NORMALISE",
    "OPSET",
    "PREPARE",
    "SIMPLIFY",
    "NormaliseReport",
    "PassRecord",
    "Stage",
    "input_specs",
    "normalise",
    "output_specs",
]

OPSET = 24
"""Every model is raised to this version of the default domain, so a lowering knows one version of
each operator. 24 is the first that has all fused operators the passes recover (Gelu 20,
RMSNormalization 23, Attention 23, Swish 24)."""

Passes = tuple[ir.passes.PassBase, ...]

PREPARE: Passes = (
    DropDefaultInputs(),
    NameEverything(),
    InlineFunctions(),
    NameEverything(),
    LiftConstants(),
    StateDefaults(),
    InferShapes(),
    FoldShapes(),
    FoldConstants(),
    InlineControlFlow(),
    InferShapes(),
    RaiseOpset(OPSET),
)
"""To one form. Folding comes before raising, because some steps need constants and ranks."""

SIMPLIFY: Passes = (
    LiftConstants(),
    InferShapes(),
    FoldShapes(),
    FoldConstants(),
    FoldZeroProducts(),
    InlineControlFlow(),
    SettlePadding(),
    SettleSqueeze(),
    SettleSequences(),
    CollectSequences(),
    DropZeroStates(),
    RemoveIdentity(),
    CleanCast(),
    CleanTranspose(),
    CleanReshape(),
    ShareNodes(),
    RemoveDeadCode(),
)
"""Repeated, because each of them gives the others work."""

FINISH: Passes = (
    ScaleScores(),
    WidenHalves(),
    ShareInitializers(),
    RemoveDeadCode(),
    InferShapes(),
    NameEverything(),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Some passes in order.

    Attributes:
        passes: run one after the other.
        rounds: how often at most; a round without a change is the last one.
        needs: opset below which the stage is skipped.
        after_change: skipped when the stage before changed nothing.
    """

    passes: Passes
    rounds: int = 1
    needs: int = 0
    after_change: bool = False


NORMALISE: tuple[Stage, ...] = (
    Stage(PREPARE),
    Stage(SIMPLIFY, rounds=6),
    Stage((RemoveNanGuards(), *FUSIONS), rounds=2, needs=OPSET),
    Stage(SIMPLIFY, rounds=6, after_change=True),
    Stage(FINISH),
)
"""All passes in their order."""


@dataclass(slots=True)
class PassRecord:
    """What one pass did in all its runs.

    Attributes:
        name: the pass, e.g. ``fold_constants``.
        count: changes, in the pass's own unit.
        ops: operators it added or removed.
        notes: lines for the report.
    """

    name: str
    count: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report's lines; none where nothing happened."""
        moved = ", ".join(f"{op} {n:+d}" for op, n in sorted(self.ops.items()) if n)
        head = [f"{self.count} changes" + (f": {moved}" if moved else "")] if self.count else []
        return head + self.notes


@dataclass(frozen=True, slots=True)
class NormaliseReport:
    """A normalised model and how it came about.

    Attributes:
        model: the result; shares its tensors with the source.
        records: one per pass, in order of first run.
    """

    model: ir.Model
    records: tuple[PassRecord, ...]

    @property
    def changes(self) -> dict[str, list[str]]:
        """Lines per pass that changed or noticed something."""
        return {r.name: r.lines() for r in self.records if r.lines()}


def normalise(
    model: ir.Model,
    *,
    input_shapes: Shapes | None = None,
    progress: Callable[[str], None] | None = None,
) -> NormaliseReport:
    """Bring a model into the form that every lowering takes.

    Args:
        model: stays as it is; the result is a copy that shares the weights.
        input_shapes: fixed shapes by input; None keeps a size as declared.
        progress: called with the name of each pass before it runs.

    Raises:
        UsageError: ``input_shapes`` contradicts the model.
    """
    runner = Runner(model.clone(), progress)
    if input_shapes:
        runner.run(Stage((DropDefaultInputs(), BindShapes(input_shapes))))
    changed = True
    for stage in NORMALISE:
        if changed or not stage.after_change:
            changed = runner.run(stage)
    drop_unused_imports(runner.model, OPSET)
    return NormaliseReport(runner.model, tuple(runner.records.values()))


class Runner:
    """Runs stages on one model, in place, and keeps the records."""

    def __init__(self, model: ir.Model, progress: Callable[[str], None] | None = None) -> None:
        self.model = model
        self.records: dict[str, PassRecord] = {}
        self._progress = progress
        self._ops = _count_ops(model)
        self._shapes_are_new = False

    def run(self, stage: Stage) -> bool:
        """Run a stage; returns whether anything but shapes and names changed."""
        changed = False
        if (default_opset(self.model.opset_imports) or 0) < stage.needs:
            # A model that could not be raised has no fused operators to be written in.
            return changed
        for _ in range(stage.rounds):
            results = [self._one(p) for p in stage.passes]
            if not any(results):
                break
            changed = True
        return changed

    def _one(self, one: ir.passes.PassBase) -> bool:
        infers = isinstance(one, InferShapes)
        if infers and self._shapes_are_new:
            return False
        name = pass_name(one)
        if self._progress is not None:
            self._progress(name)
        result = one(self.model)
        self._shapes_are_new = infers or (self._shapes_are_new and not result.modified)
        if result.modified or (isinstance(result, PassOutcome) and result.notes):
            self._note(self.records.setdefault(name, PassRecord(name)), result)
        # Better shapes or names are no reason for another round: nothing would use them.
        return result.modified and not isinstance(one, (InferShapes, NameEverything))

    def _note(self, record: PassRecord, result: ir.passes.PassResult) -> None:
        before, self._ops = self._ops, _count_ops(self.model)
        moved = Counter(self._ops)
        moved.subtract(before)
        record.ops.update(moved)
        record.count += result.count if isinstance(result, PassOutcome) else 1
        notes: Iterable[str] = result.notes if isinstance(result, PassOutcome) else ()
        record.notes.extend(n for n in notes if n not in record.notes)


def pass_name(one: ir.passes.PassBase) -> str:
    """``FoldConstants`` as ``fold_constants``."""
    return _snake_case(type(one).__name__)


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _count_ops(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in all_nodes(model))
