"""Write a model as a Core ML package (ML Program)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from edgeinfer.backends.engines import import_coremltools
from edgeinfer.bundle import values
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower import zeros
from edgeinfer.convert.lower.coreml.deployment import DEFAULT, deployment
from edgeinfer.convert.lower.coreml.flags import read_flags
from edgeinfer.convert.lower.coreml.fp16 import halve
from edgeinfer.convert.lower.coreml.held import hold
from edgeinfer.convert.lower.coreml.integers import BOUNDS, as_text
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.convert.lower.coreml.quirks import kept_single, rewrite, warn
from edgeinfer.convert.lower.coreml.weights import refused, refused_halves
from edgeinfer.convert.lower.expand import with_definitions, with_known
from edgeinfer.convert.lower.resizes import near_by_rounding
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.transposed_weights import share_transposed
from edgeinfer.convert.passes.join_concat import JoinConcat
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.errors import NotAvailableError, Remarks, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import ImageInput

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreml.scope import Scope

_PRECISIONS = frozenset({"fp32", "fp16"})

ENGINES = (EngineRequirement("coreml"), EngineRequirement("coreml-reference"))


class CoreMLTarget(Target):
    """Format ``mlprogram``."""

    format: ClassVar[str] = "mlprogram"

    def __init__(self, options: CoreMLOptions | None = None) -> None:
        self._options = options

    def options(self, profile: Profile, asked: LowerOptions) -> CoreMLOptions:
        """Return what was requested, else what the profile says.

        Raises:
            UsageError: no system has that name, or an image has no record of its preparation.
        """
        if self._options is not None:
            return self._options
        oldest = asked.deployment or profile.deployment
        return CoreMLOptions(
            deployment(oldest) if oldest else DEFAULT,
            images={name: _picture(name, asked) for name in sorted(asked.image_inputs)},
            labels=tuple(asked.labels) if asked.classifier else (),
            ranges={f"{name}:{axis}": ends for (name, axis), ends in asked.ranges.items()},
            shapes=_shapes(asked),
            states=asked.states,
            packing=recipe(asked.recipe).packing if asked.recipe else None,
            integers=asked.integers,
            halves=asked.compress_weights,
        )

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Build the program of ``model.mlpackage``."""
        self.check_precision(profile, options, _PRECISIONS)
        _engine()
        from edgeinfer.convert.lower.coreml.package import quiet

        notes, own = Remarks(), self.options(profile, options)
        try:
            with quiet():
                scope = build(model, own, options, notes)
        except UnsupportedError as e:
            return Prepared.refused(e)
        return Prepared([], profile.name, partial(self._write, scope, own, options, notes))

    def _write(
        self, scope: Scope, own: CoreMLOptions, options: LowerOptions, notes: Remarks, folder: Path
    ) -> Lowered:
        from edgeinfer.convert.lower.coreml.package import files_of, quiet, write
        from edgeinfer.convert.lower.coreml.readback import read_back

        path = folder / "model.mlpackage"
        with quiet():
            write(scope, path, own, {BOUNDS: as_text(scope.integers)} if scope.integers else {})
            if options.samples:
                from edgeinfer.convert.lower.coreml.activations import quantize_activations

                quantize_activations(path, scope.inputs, options.samples)
                notes.add(f"quantized by coremltools, by {len(options.samples)} samples")
        precision, ops = read_back(path)
        return Lowered(
            format=self.format,
            files=files_of(path),
            precision=precision,
            engines=ENGINES,
            notes=tuple(notes.lines),
            ops=ops,
            constraints={values.INTEGERS: as_text(scope.integers)} if scope.integers else {},
        )


def _picture(name: str, asked: LowerOptions) -> ImageInput:
    record = asked.preprocessing.get(name)
    if not isinstance(record, ImageInput):
        raise UsageError(f"input {name!r} is to be an image: --preprocessing does not say of what")
    return record


def _shapes(asked: LowerOptions) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The shapes of each input that has several, one for each set."""
    names = dict.fromkeys(name for one in asked.shape_sets for name in one)
    found = {name: tuple(one[name] for one in asked.shape_sets) for name in names}
    return {name: shapes for name, shapes in found.items() if len(set(shapes)) > 1}


def build(source: ir.Model, options: CoreMLOptions, asked: LowerOptions, notes: Remarks) -> Scope:
    """Lower a normalised model to a program that is ready to be written.

    Raises:
        UnsupportedError: with every node that has no lowering.
    """
    if asked.recipe and (problems := refused(recipe(asked.recipe), options.deployment)):
        raise UnsupportedError("mlprogram", problems)
    if options.halves and (problems := refused_halves(options.deployment)):
        raise UnsupportedError("mlprogram", problems)
    return with_definitions(
        source, lambda model: _build(model, options, asked, notes), notes, _hangs_on_rounding
    )


def _hangs_on_rounding(node: ir.Node) -> bool:
    """Whether the definition is right only where the engine rounds quotients exactly."""
    return node.op_type == "Resize" and bool(near_by_rounding(node, fused=False))


def _zero_form(node: ir.Node) -> zeros.Form:
    """How zeros get back a sign that a sum or a choice has lost."""
    if node.op_type in ("Add", "Sub"):
        return zeros.of_sum(node)
    return "operand" if node.op_type in ("Asinh", "Celu", "PRelu", "Selu") else ""


def _build(source: ir.Model, options: CoreMLOptions, asked: LowerOptions, notes: Remarks) -> Scope:
    from edgeinfer.convert.lower.coreml.scope import proven

    model = source.clone()
    SplitQuantized()(model)
    zeros.keep(model, _zero_form, notes)
    JoinConcat()(model)
    read_flags(model)
    from edgeinfer.convert.lower.coreml import ops as _families  # noqa: F401  (fills the table)

    model = with_known(model, _is_known, notes)
    hold(model)
    share_transposed(model, floats=True)
    warn(model, options.deployment, notes)
    if asked.precision == "fp16":
        rewrite(model, options.deployment, notes)
        halve(model, asked.fp32_nodes | kept_single(model, options.deployment), notes)
    scope = proven(model, options)
    for name, (low, high) in scope.integers.items():
        notes.add(f"input {name!r}: integers from {low} to {high}; others are refused at a run")
    return scope


def _is_known(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    from edgeinfer.convert.lower.coreml.registry import OPS

    return OPS.find(node.op_type, node.domain) is not None


def _engine() -> None:
    try:
        import_coremltools()
    except ImportError as e:
        raise NotAvailableError(
            "Core ML packages are written with coremltools, which is not installed; "
            "pip install 'edgeinfer[coreml]'"
        ) from e
