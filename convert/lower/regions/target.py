"""Write a model as ONNX in which parts are machine code, where that makes all of it faster here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from edgeinfer.backends.onnxruntime.regions import FORMAT, LIBRARY, TOLD
from edgeinfer.backends.process import child
from edgeinfer.backends.process.answers import Listed
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower.onnxruntime.target import OnnxTarget
from edgeinfer.convert.lower.precision import read_back
from edgeinfer.convert.lower.regions.outcome import (
    MODULE,
    WORTH,
    RegionOutcome,
    RegionRequest,
    Trial,
    to_json,
)
from edgeinfer.convert.lower.regions.setting import machine_here
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import CrashedError, NotAvailableError, UsageError
from edgeinfer.profiles.schema import Profile

if TYPE_CHECKING:
    import onnx_ir as ir

_PATIENCE_S = 120.0
"""For what is under way when the seconds are over: one part is compiled and raced."""

_OLDEST = ">=1.17"


class RegionsTarget(Target):
    """Format ``onnx_tvm``."""

    format: ClassVar[str] = FORMAT

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Make the graph that ONNX Runtime runs, in which parts are then tried as code."""
        plain = OnnxTarget().prepare(model, profile, options)
        writer = partial(self._write, plain, profile, options)
        return Prepared(plain.problems, profile.name, writer)

    def _write(
        self, prepared: Prepared, profile: Profile, options: LowerOptions, folder: Path
    ) -> Lowered:
        """Write ``model.onnx``, ``regions.so``, and in ``regions.json`` what was measured.

        Raises:
            NotAvailableError: no part of the model is faster as code, or none could be tried.
        """
        where = profile.machine or machine_here()
        if not where:
            raise NotAvailableError("no code for this CPU can be made")
        if not options.samples:
            raise UsageError(f"format {FORMAT!r}: no inputs to time the model with")
        with tempfile.TemporaryDirectory(prefix="edgeinfer-") as name:
            plain, work = Path(name, "plain"), Path(name, "work")
            plain.mkdir()
            work.mkdir()
            lowered = prepared.write(plain)
            # Bound buffers have to be contiguous, also those without axes.
            feeds = {
                k: np.ascontiguousarray(v).reshape(v.shape) for k, v in options.samples[0].items()
            }
            order = RegionRequest(
                lowered.files[0], work, where, tuple(options.records), feeds, options.regions_time_s
            )
            outcome = _raced(order, options.tell)
            if not outcome.kept:
                raise NotAvailableError(_why_none(outcome))
            files = []
            for file in ("model.onnx", LIBRARY):
                files.append(folder / file)
                shutil.move(work / file, files[-1])
        record = folder / TOLD
        record.write_bytes(to_json(outcome))
        precision, ops = read_back(files[0])
        return replace(
            lowered,
            format=self.format,
            files=(*files, record),
            precision=precision,
            ops=ops,
            engines=tuple(_at_least(e) for e in lowered.engines),
            notes=(*lowered.notes, *lines(outcome)),
            # Features of the CPU are in the library, and the backend compares them.
            constraints={
                **lowered.constraints,
                "os": "linux",
                "arch": machine(where).arch,
                "device": "cpu",
            },
        )


def _at_least(engine: EngineRequirement) -> EngineRequirement:
    """Ask for an engine that has what regions call, on top of what the graph asks for."""
    version = ",".join(v for v in (engine.version, _OLDEST) if v)
    return replace(engine, version=version)


_ANSWER = (
    tuple[Literal["stage"], str]
    | tuple[Literal["failed"], Exception, str]
    | tuple[Literal["done"], RegionOutcome]
)


def _raced(order: RegionRequest, tell: Callable[[str], None] | None) -> RegionOutcome:
    """Race in a process of its own, which may be ended.

    Raises:
        NotAvailableError: it took too long.
        CrashedError: it ended.
    """
    process = child.Child(MODULE)
    stage = "look for regions"
    try:
        process.send(order)
        while True:
            kind, *content = process.receive(
                order.seconds + _PATIENCE_S, Listed(RegionOutcome), _ANSWER
            )
            if kind == "stage":
                stage = content[0]
                if tell is not None:
                    tell(stage)
            elif kind == "failed":
                child.raise_answered(*content)
            else:
                outcome: RegionOutcome = content[0]
                return outcome
    except TimeoutError:
        raise NotAvailableError(f"{stage}: no end after {_PATIENCE_S:g} s") from None
    except child.ChildEndedError as error:
        raise CrashedError("race of regions", stage, error.how, "nothing was written") from error
    finally:
        process.kill()


def lines(outcome: RegionOutcome) -> list[str]:
    """Say which parts are code and by how much that pays, and what was tried in vain."""
    found = [
        f"{t.name} is code in the place of {_listed(t.nodes)}: "
        + "; ".join(
            f"{what} {figures}"
            for what, figures in (("the part alone", t.alone), ("the whole model", t.whole))
            if figures is not None
        )
        for t in outcome.kept
    ]
    if outcome.final is not None:
        found.append(f"the whole model with these, against ONNX Runtime alone: {outcome.final}")
    found += [_lost(t) for t in outcome.trials if not t.kept]
    if outcome.left:
        found.append(f"{outcome.left} parts were not tried, for want of time (--regions-time)")
    return [*found, *outcome.notes]


def _why_none(outcome: RegionOutcome) -> str:
    if not outcome.trials:
        return "no part of the model promised to be faster as machine code"
    tried = "; ".join(_lost(t) for t in outcome.trials)
    if outcome.final is not None:
        return f"the whole model is not {WORTH:g} times as fast with regions: {outcome.final}"
    return f"no part of the model is faster as machine code: {tried}"


def _lost(trial: Trial) -> str:
    if trial.reason:
        return f"{_listed(trial.nodes)}: {trial.reason}"
    if trial.whole is not None:
        return f"{_listed(trial.nodes)} does not pay: the whole model {trial.whole}"
    return f"{_listed(trial.nodes)} does not pay: alone {trial.alone}"


def _listed(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= 3:
        return ", ".join(nodes) or "the whole"
    return f"{nodes[0]} to {nodes[-1]} ({len(nodes)} operators)"
