"""Write a model as ONNX, in the form that ONNX Runtime's CPU provider computes right and fast.

For targets with strong types it is the form that TensorRT compiles, which this provider runs too.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert import onnx_file
from edgeinfer.convert.lower import zeros
from edgeinfer.convert.lower.bfloat import as_single
from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.faults import PACKED, refused_borders
from edgeinfer.convert.lower.loops import settle_loops
from edgeinfer.convert.lower.nan import input_constraint, keep
from edgeinfer.convert.lower.onnxruntime import bf16, opset, probe
from edgeinfer.convert.lower.onnxruntime.early_roundings import round_early
from edgeinfer.convert.lower.onnxruntime.faster import attention_by_products
from edgeinfer.convert.lower.onnxruntime.fp16 import halve
from edgeinfer.convert.lower.onnxruntime.half_faults import HALF_RULES
from edgeinfer.convert.lower.onnxruntime.product_biases import round_product_biases
from edgeinfer.convert.lower.onnxruntime.quirks import (
    DIGITS,
    FASTER,
    MEANS,
    PROBABILITIES,
    RULES,
    SWISH,
)
from edgeinfer.convert.lower.onnxruntime.recurrent import multiply_stored
from edgeinfer.convert.lower.onnxruntime.roundings import shorten
from edgeinfer.convert.lower.onnxruntime.special import loses_nan, zero_form
from edgeinfer.convert.lower.onnxruntime.typed import (
    TYPED_KEY,
    expand_newer,
    join_pairs,
    parts_of,
)
from edgeinfer.convert.lower.onnxruntime.unsigned import store_unsigned
from edgeinfer.convert.lower.onnxruntime.zero_points import (
    unshare_weights,
    unshare_zero_points,
)
from edgeinfer.convert.lower.precision import read_back
from edgeinfer.convert.lower.rules import apply
from edgeinfer.convert.lower.single import forget_origins, walk
from edgeinfer.convert.lower.tabular import DOMAIN, misread
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.transposed_weights import share_transposed
from edgeinfer.convert.lower.unscanned import keep_first_states, scan_one_row
from edgeinfer.convert.lower.whole_spans import Spans
from edgeinfer.convert.passes.constants import takes
from edgeinfer.errors import Problem, Remarks, UsageError
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass

EXTERNAL_ABOVE = 16 << 20
"""Bytes of weights above which they go into a file of their own. ONNX Runtime maps that file, where
it holds a single one twice while loading: 210 MB instead of 302 MB for ResNet-50, and faster."""

LARGEST = 2_000_000_000
"""Bytes of weights that one file may hold: Protocol Buffers end at 2 GiB, graph and all."""

TENSORRT = ("tensorrt", "onnxruntime-tensorrt")
"""Backends of profiles with strong types."""

_PRECISIONS = frozenset({"fp32", "fp16", "bf16"})


@dataclass(slots=True)
class _Prepared:
    model: ir.Model
    problems: list[Problem]
    requirement: str
    notes: Remarks = field(default_factory=Remarks)
    constraints: dict[str, str] = field(default_factory=dict)


class OnnxTarget(Target):
    """Format ``onnx``."""

    format: ClassVar[str] = "onnx"

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Make the graph of ``model.onnx``; very large models have ``model.onnx.data`` too."""
        self.check_precision(profile, options, _PRECISIONS)
        made = _prepare(model, options, profile)
        writer = partial(self._write, made, profile, options)
        return Prepared(made.problems, profile.name, writer)

    def _write(
        self, prepared: _Prepared, profile: Profile, options: LowerOptions, folder: Path
    ) -> Lowered:
        path = folder / "model.onnx"
        if not profile.strongly_typed:
            # TensorRT wants constants where integers are made floats.
            share_transposed(prepared.model, floats=False)
        forget_origins(prepared.model)
        files = save(prepared.model, path, LARGEST if options.one_file else EXTERNAL_ABOVE)
        precision, ops = read_back(path)
        return Lowered(
            format=self.format,
            files=files,
            precision=precision,
            engines=_engines(profile, prepared.requirement),
            notes=tuple(prepared.notes.lines),
            ops=ops,
            constraints=prepared.constraints,
        )


def _engines(profile: Profile, requirement: str) -> tuple[EngineRequirement, ...]:
    """Name what runs the file: the compilers first, and the engine without one for the gate."""
    found = EngineRequirement("onnxruntime", requirement)
    compilers = TENSORRT if profile.strongly_typed else ()
    return (*map(EngineRequirement, compilers), found)


def save(model: ir.Model, path: Path, largest: int) -> tuple[Path, ...]:
    """Write a model, its weights next to it when they have more bytes than ``largest``."""
    size = sum(
        v.const_value.nbytes
        for graph in model.graphs()
        for v in graph.initializers.values()
        if v.const_value is not None
    )
    if size <= largest:
        onnx_file.save(model, path)
        return (path,)
    data = path.with_name(path.name + ".data")
    ir.save(model, path, external_data=data.name)
    return (path, data)


def _prepare(source: ir.Model, options: LowerOptions, profile: Profile) -> _Prepared:
    model = source.clone()
    notes = Remarks()
    if not profile.strongly_typed:
        scan_one_row(model, notes)
        keep_first_states(model, notes, lambda node: node.op_type in ("GRU", "RNN"))
    settle_loops(model)
    held = {}
    if profile.unit == "cpu":
        keep(model, loses_nan, notes)
        zeros.keep(model, zero_form, notes)
        held = input_constraint(model, loses_nan)
    if profile.strongly_typed:
        model = expand_newer(model, notes)
    if options.precision in profile.split_attention:
        attention_by_products(model, notes)
    if options.precision != "bf16" and probe.lacks_brain(model, probe.OnnxRuntimeProbe()):
        notes.add(
            f"bfloat16: {as_single(model)} operators computed in float32, each result rounded"
        )
    problems = [*refused_borders(model, PACKED), *apply(model, RULES, notes)]
    if wrong := [n for _, n in walk(model) if misread(n)]:
        notes.add(f"{wrong[0].op_type}: {misread(wrong[0])} by ONNX Runtime: rewritten")
        expand(model, wrong)
    if from_end := [n for _, n in walk(model) if _picks_from_end(n)]:
        expand(model, from_end)
    asked = _narrow(model, options, profile, notes)
    if profile.strongly_typed:
        join_pairs(model, notes)
        model.metadata_props[TYPED_KEY] = "1"
    apply(model, HALF_RULES, notes)
    if profile.strongly_typed:
        # TensorRT has all digits; a CPU that checks the file or takes its place has not.
        apply(model, (PROBABILITIES,), notes)
    else:
        round_early(model, notes)
        by_blocks = (MEANS,) if not profile.arch or "x86_64" in profile.arch else ()
        apply(model, (*DIGITS, *FASTER, *by_blocks), notes)
        multiply_stored(model)
    own = model.opset_imports.get("", opset.OLDEST)
    if not takes(own):
        # An engine that is older than the model has kernels all the same.
        opset.write_as(model, opset.choose(model))
    _expand_lacking(model, asked, notes)
    if not profile.strongly_typed:
        store_unsigned(model)
        round_product_biases(model)
    unshare_weights(model, unsigned=not profile.strongly_typed)
    unshare_zero_points(model)
    if not profile.strongly_typed:
        shorten(model)
    RemoveUnusedNodesPass()(model)
    RemoveUnusedOpsetsPass()(model)
    version = opset.choose(model)
    opset.write_as(model, version)
    if version != own:
        notes.add(f"written at opset {version}: every node means the same as at {own}")
    refused = {p.node for p in problems}
    problems += [p for p in probe.problems(model, asked) if p.node not in refused]
    needed = opset.runtime_for(model, version, asked.version)
    return _Prepared(model, problems, needed, notes, held)


def _picks_from_end(node: ir.Node) -> bool:
    """Whether positions may count from the end, which ends a run of ONNX Runtime's kernel.

    scikit-learn's neighbours within a radius have -1 where there is none.
    """
    if node.domain != DOMAIN or node.op_type != "ArrayFeatureExtractor" or len(node.inputs) < 2:
        return False
    span = Spans().of(node.inputs[1])
    return span is None or span[0] < 0


def _narrow(
    model: ir.Model, options: LowerOptions, profile: Profile, notes: Remarks
) -> probe.OnnxRuntimeProbe:
    """Convert to floats of two bytes, in place; return what is to be asked about the result.

    Raises:
        UsageError: no operator of the model is computed in bfloat16.
    """
    kept = parts_of(model, options.fp32_nodes)
    if options.precision == "fp16":
        ops = frozenset(profile.fp16_ops)
        halve(model, kept, notes, joined=profile.strongly_typed, ops=ops)
    if options.precision != "bf16":
        return probe.OnnxRuntimeProbe()
    if not profile.strongly_typed:
        apply(model, (SWISH,), notes)
    # Afterwards the engine at hand cannot be asked what it lacks.
    _expand_lacking(model, probe.OnnxRuntimeProbe(), notes)
    ops = frozenset(profile.bf16_ops)
    bf16.halve(model, kept, notes, ops)
    if not bf16.is_computed(model):
        raise UsageError(
            f"target {profile.name!r}: precision 'bf16': the engine computes no operator of this "
            "model in bf16; take fp32"
        )
    return probe.OnnxRuntimeProbe(ops)


def _expand_lacking(model: ir.Model, asked: probe.OnnxRuntimeProbe, notes: Remarks) -> None:
    """Replace what has no kernel by its definition, level by level."""
    for _ in range(5):
        lacking = probe.lacking(model, asked)
        names = {id(n): n.op_type for n in lacking}
        done = expand(model, lacking) if lacking else []
        for op in sorted({names[id(n)] for n in done}):
            notes.add(
                f"{op}: no kernel in ONNX Runtime {asked.version}: replaced by its definition"
            )
        if not done:
            return
