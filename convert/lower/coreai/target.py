"""Write a model as a Core AI asset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.backends.engines import import_coreai
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower.coreai.fp16 import halve
from edgeinfer.convert.lower.expand import with_definitions, with_known
from edgeinfer.convert.lower.loops import as_loop, settle_loops
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.passes.infra import constant, is_op
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.errors import NotAvailableError, Remarks, UnsupportedError
from edgeinfer.profiles.schema import Profile

_PRECISIONS = frozenset({"fp32", "fp16"})

ENGINES = (EngineRequirement("coreai"),)

BETA = (
    "Core AI is a beta of Apple's: the asset needs iOS or macOS 27, and was run by Apple's "
    "coreai-core on a CPU, not on Apple hardware"
)


def _runtime_fails(node: ir.Node) -> bool:
    """Whether a definition computes sizes in a way that coreai-core's runtime refuses at a run.

    1.0.0b3: invalid parameters of add, divide, mul and broadcast_to.
    """
    if node.op_type != "AffineGrid":
        return node.op_type == "Resize"
    return constant(node.inputs[1]) is None


class CoreAITarget(Target):
    """Format ``aimodel``."""

    format: ClassVar[str] = "aimodel"

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Build the module of ``model.aimodel``, and once more to write it.

        A module lives in a context, and a context that stays open is everybody's.
        """
        self.check_precision(profile, options, _PRECISIONS)
        _engine()
        from edgeinfer.convert.lower.coreai.package import building
        from edgeinfer.convert.lower.coreai.scope import Scope

        notes = Remarks()
        notes.add(BETA)

        def lowered(given: ir.Model) -> ir.Model:
            own = prepared(given, options, notes)
            with building() as module:
                Scope(own, module).lower()
            return own

        try:
            own = with_definitions(model, lowered, notes, _runtime_fails)
        except UnsupportedError as e:
            return Prepared.refused(e)
        return Prepared([], profile.name, partial(self._write, own, notes))

    def _write(self, own: ir.Model, notes: Remarks, folder: Path) -> Lowered:
        from edgeinfer.convert.lower.coreai.package import building, files_of, read_back, save
        from edgeinfer.convert.lower.coreai.scope import Scope

        path = folder / "model.aimodel"
        with building() as module:
            Scope(own, module).lower()
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


def prepared(source: ir.Model, asked: LowerOptions, notes: Remarks) -> ir.Model:
    """Return a copy in which every operator that can have one has a lowering."""
    model = source.clone()
    SplitQuantized()(model)
    from edgeinfer.convert.lower.coreai import ops as _families  # noqa: F401  (fills the table)

    model = with_known(model, _is_known, notes)
    for _, node in list(walk(model)):
        if is_op(node, "Scan"):
            as_loop(model, node)
    if asked.precision == "fp16":
        halve(model, asked.fp32_nodes, notes)
    settle_loops(model)
    return model


def _is_known(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    from edgeinfer.convert.lower.coreai.registry import OPS

    return _runtime_fails(node) or OPS.find(node.op_type, node.domain) is not None


def _engine() -> None:
    try:
        import_coreai()
    except ImportError as e:
        raise NotAvailableError(
            "Core AI assets are written with Apple's coreai-core, which is not installed or has no "
            "wheel here; pip install 'edgeinfer[coreai]'"
        ) from e
