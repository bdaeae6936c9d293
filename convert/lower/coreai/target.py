"""Write a model as a Core AI asset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.backends.engines import import_coreai
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower.coreai.fp16 import halve
from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.loops import settle_loops
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.errors import NotAvailableError, Notes, Problem, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile

_LEVELS = 5
"""Definitions inside definitions."""

_PRECISIONS = frozenset({"fp32", "fp16"})

ENGINES = (EngineRequirement("coreai"),)

BETA = (
    "Core AI is a beta of Apple's: the asset needs iOS or macOS 27, and was run by Apple's "
    "coreai-core on a CPU, not on Apple hardware"
)


class CoreAITarget:
    """Format ``aimodel``."""

    format: ClassVar[str] = "aimodel"

    def check(self, model: ir.Model, profile: Profile, options: LowerOptions) -> list[Problem]:
        """List every node without a lowering."""
        _check_precision(profile, options)
        _engine()
        from edgeinfer.convert.lower.coreai.package import building
        from edgeinfer.convert.lower.coreai.scope import Scope

        try:
            with building() as module:
                Scope(prepared(model, options, Notes()), module).lower()
        except UnsupportedError as e:
            return list(e.problems)
        return []

    def lower(
        self, model: ir.Model, profile: Profile, options: LowerOptions, folder: Path
    ) -> Lowered:
        """Write ``model.aimodel``.

        Raises:
            UnsupportedError: with the list of ``check``.
            NotAvailableError: coreai-core is not installed.
        """
        _check_precision(profile, options)
        _engine()
        from edgeinfer.convert.lower.coreai.package import building, files_of, read_back, save
        from edgeinfer.convert.lower.coreai.scope import Scope

        notes = Notes()
        notes.add(BETA)
        path = folder / "model.aimodel"
        with building() as module:
            Scope(prepared(model, options, notes), module).lower()
            save(module, path)
        precision, ops = read_back(path)
        return Lowered(
            format=self.format,
            files=files_of(path),
            precision=precision,
            engines=ENGINES,
            notes=tuple(notes.lines),
            ops=ops,
        )


def prepared(source: ir.Model, asked: LowerOptions, notes: Notes) -> ir.Model:
    """Return a copy in which every operator that can have one has a lowering."""
    model = source.clone()
    SplitQuantized()(model)
    model = _defined(model, notes)
    if asked.precision == "fp16":
        halve(model, asked.fp32_nodes, notes)
    settle_loops(model)
    return model


def _defined(model: ir.Model, notes: Notes) -> ir.Model:
    """Put ONNX's definitions in the place of operators without a lowering."""
    from edgeinfer.convert.lower.coreai import ops as _families  # noqa: F401  (fills the table)

    for _ in range(_LEVELS):
        lacking = [n for _, n in walk(model) if not _is_known(n, model.opset_imports)]
        names = {id(n): n.op_type for n in lacking}
        done = expand(model, lacking) if lacking else []
        if not done:
            break
        for op in sorted({names[id(n)] for n in done}):
            notes.add(f"{op}: no lowering: replaced by its definition")
        # Definitions have constants and shapes to be worked out again.
        model = normalise(model).model
    return model


def _is_known(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    from edgeinfer.convert.lower.coreai.registry import OPS

    return OPS.find(node.op_type, opsets.get(node.domain, 0), node.domain) is not None


def _engine() -> None:
    try:
        import_coreai()
    except ImportError as e:
        raise NotAvailableError(
            "Core AI assets are written with Apple's coreai-core, which is not installed or has no "
            "wheel here; pip install 'edgeinfer[coreai]'"
        ) from e


def _check_precision(profile: Profile, options: LowerOptions) -> None:
    known = _PRECISIONS & set(profile.precisions)
    if options.precision not in known:
        raise UsageError(
            f"target {profile.name!r}, format 'aimodel': precision {options.precision!r} cannot "
            f"be written; known: {', '.join(sorted(known))}"
        )
