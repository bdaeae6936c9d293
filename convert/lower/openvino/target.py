"""Write a model as OpenVINO IR."""

from __future__ import annotations

import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from edgeinfer.backends.engines import import_openvino
from edgeinfer.backends.openvino.backend import SQUEEZED
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower import zeros
from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.faults import PACKED, refused_borders
from edgeinfer.convert.lower.loops import as_loop, settle_loops
from edgeinfer.convert.lower.nan import keep
from edgeinfer.convert.lower.openvino import bfloat, narrow_inputs
from edgeinfer.convert.lower.openvino.integers import tidy
from edgeinfer.convert.lower.openvino.names import restore_names, settle_names
from edgeinfer.convert.lower.openvino.precision import read_back
from edgeinfer.convert.lower.openvino.probe import OpenVinoProbe
from edgeinfer.convert.lower.openvino.products import give_biases
from edgeinfer.convert.lower.openvino.quirks import RULES
from edgeinfer.convert.lower.openvino.shifts import keep_exact, round_before_shift
from edgeinfer.convert.lower.openvino.special import input_constraint, loses_nan, zero_form
from edgeinfer.convert.lower.openvino.square_weights import part_transposed
from edgeinfer.convert.lower.openvino.surgery import repair
from edgeinfer.convert.lower.openvino.turns import cut_unturned
from edgeinfer.convert.lower.rules import apply
from edgeinfer.convert.lower.single import forget_origins, walk
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.transposed_weights import share_transposed
from edgeinfer.convert.lower.unscanned import keep_first_states
from edgeinfer.convert.memory import release_memory
from edgeinfer.convert.passes.infra import is_op
from edgeinfer.convert.passes.lift_constants import LiftConstants
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.convert.passes.strip_squeeze import strip_squeezes
from edgeinfer.errors import Problem, Remarks, UnsupportedError
from edgeinfer.profiles.schema import Profile

# The plugin has no 8-bit floats of its own, and string tensors corrupt the process's memory.
_REFUSED = frozenset(
    d for d in ir.DataType if d.name.startswith("FLOAT8") or d == ir.DataType.STRING
)
_PRECISIONS = frozenset({"fp32", "fp16", "bf16"})


OLDEST = ">=2025.3"
"""What is known to read the files; whether the numbers are right the test vectors say there."""


class OpenVinoTarget(Target):
    """Format ``openvino_ir``."""

    format: ClassVar[str] = "openvino_ir"

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Make the graph that OpenVINO reads, for ``model.xml`` and ``model.bin``."""
        self.check_precision(profile, options, _PRECISIONS)
        probe, notes = OpenVinoProbe(), Remarks()
        made = _prepare(model, probe, notes)
        writer = partial(self._write, model, made[:2], probe, notes, (profile, options))
        return Prepared(made[2], profile.name, writer)

    def _write(
        self,
        model: ir.Model,
        made: tuple[ir.Model, tuple[str, ...]],
        probe: OpenVinoProbe,
        notes: Remarks,
        asked: tuple[Profile, LowerOptions],
        folder: Path,
    ) -> Lowered:
        (prepared, squeezed), (profile, options) = made, asked
        openvino = import_openvino()
        if options.precision == "bf16":
            bfloat.clamp_masks(prepared, notes)

        share_transposed(prepared, floats=True)
        part_transposed(prepared)
        path = folder / "model.xml"
        compress = options.compress_weights or options.precision == "fp16"
        # The reader maps weights from a file; a serialized model would hold them twice more.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            source = Path(scratch) / "model.onnx"
            forget_origins(prepared)
            ir.save(prepared, source, external_data="weights", size_threshold_bytes=1024)
            # Else the source's weights stay mapped next to those that are read now.
            release_memory(prepared)
            try:
                written = probe.core.read_model(source)
            except RuntimeError as e:
                raise UnsupportedError(profile.name, probe.explain(e, prepared)) from e
            repair(written)
            tidy(written)
            keep_exact(written)
            round_before_shift(written)
            give_biases(written)
            written = restore_names(written, model, prepared)
            settle_names(written)
            bounds = narrow_inputs.input_bounds(model, notes)
            narrow_inputs.mark(written, bounds)
            if squeezed:
                written.set_rt_info(json.dumps(squeezed), [*SQUEEZED])
            if options.precision == "bf16":
                count = bfloat.store(written)
                notes.add(f"bf16: {count} weights are stored in two bytes an element")
                notes.add(bfloat.check_plan(probe.core, written, profile.name))
            openvino.save_model(written, path, compress_to_fp16=compress)
            del written
        # A sixth of the text is indents.
        path.write_text(re.sub(r">\s+<", "><", path.read_text(encoding="utf-8")), encoding="utf-8")
        precision, ops = read_back(path)
        return Lowered(
            format=self.format,
            files=(path, path.with_suffix(".bin")),
            precision=precision,
            engines=(EngineRequirement("openvino", OLDEST),),
            notes=tuple(notes.lines),
            ops=ops,
            constraints=input_constraint(prepared) | narrow_inputs.constraint(bounds),
        )


def _is_iterated(node: ir.Node) -> bool:
    """Whether a layer becomes a TensorIterator (2026.4.1), which fails without steps."""
    weights = [v for v in node.inputs[1:4] if v is not None]
    own = ("activations", "activation_alpha", "activation_beta", "clip", "input_forget")
    return any(v.const_value is None for v in weights) or any(n in node.attributes for n in own)


def _loop_scans(model: ir.Model) -> int:
    """Write each Scan as a Loop; return how many there were.

    Its TensorIterator (2026.4.1) gives a state another's memory, or that of a row, from the second
    turn on, fails without rows and holds no other, and takes nothing from outside; its Loop does
    none of that.
    """
    scans = [node for _, node in walk(model) if is_op(node, "Scan")]
    return sum(as_loop(model, node) for node in scans)


def _prepare(
    source: ir.Model, probe: OpenVinoProbe, notes: Remarks
) -> tuple[ir.Model, tuple[str, ...], list[Problem]]:
    """Return what OpenVINO can read, the outputs still to be squeezed, and what is in the way."""
    model = source.clone()
    squeezed = strip_squeezes(model)
    for name in squeezed:
        notes.add(f"output {name!r}: its rank follows from the sizes: squeezed by the runtime")
    _loop_scans(model)
    keep_first_states(model, notes, _is_iterated)
    settle_loops(model)
    cut_unturned(model, notes)
    # The reader takes a bias into a product of integers and is then refused; what it makes of ONNX
    # Runtime's operators gives 255 for all below zero, and it lacks some forms (2026.4.1).
    SplitQuantized()(model)
    keep(model, loses_nan, notes)
    zeros.keep(model, zero_form, notes)
    borders = refused_borders(model, PACKED | _REFUSED)
    for _ in range(5):
        # What a definition is made of has rules of its own, which look at constants.
        LiftConstants()(model)
        problems = [*borders, *apply(model, RULES, notes)]
        if _loop_scans(model):
            settle_loops(model)
            cut_unturned(model, notes)
            continue
        lacking = probe.lacking(model)
        names = {id(n): n.op_type for n in lacking}
        done = expand(model, lacking) if lacking else []
        for op in sorted({names[id(n)] for n in done}):
            notes.add(f"{op}: no conversion in OpenVINO {probe.version}: written by its definition")
        if not done:
            break
    RemoveUnusedNodesPass()(model)
    RemoveUnusedOpsetsPass()(model)
    refused = {p.node for p in problems}
    problems += [p for p in probe.problems(model) if p.node not in refused]
    return model, squeezed, problems
