"""Write a model as a shared library of machine code, by TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from edgeinfer.backends.engines import import_tvm, load_cuda_of_tvm
from edgeinfer.backends.tvm import library
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower import zeros
from edgeinfer.convert.lower.bfloat import as_single
from edgeinfer.convert.lower.expand import with_definitions, with_known
from edgeinfer.convert.lower.loops import as_loop
from edgeinfer.convert.lower.rows import at_once
from edgeinfer.convert.lower.target import Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.tvm.branches import select
from edgeinfer.convert.lower.tvm.machines import Machine, machine
from edgeinfer.convert.lower.tvm.unrolled_loops import unroll
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.infra import all_nodes, is_op
from edgeinfer.convert.passes.interface import input_specs, output_specs
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.errors import NotAvailableError, Remarks, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import TensorSpec

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tvm.graph import LoweredModule as Module
    from edgeinfer.convert.lower.tvm.tuned import Tuning
    from edgeinfer.kernels.tuning.task import Task

_INSTALL = "pip install 'edgeinfer[tvm]'"


class TvmTarget(Target):
    """Format ``tvm``."""

    format: ClassVar[str] = "tvm"

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Make the module of ``model.so``, for macOS of ``model.dylib`` and its weights."""
        where = _machine(profile, options)
        from edgeinfer.convert.lower.tvm import tuned

        tuning = tuned.for_machine(where, options.records)
        notes = Remarks()
        made = module_of(model, where, notes, tuning)
        writer = partial(self._write, model, where, made, tuning, notes)
        return Prepared(made.problems, profile.name, writer)

    def _write(
        self,
        model: ir.Model,
        where: Machine,
        made: Module,
        tuning: Tuning,
        notes: Remarks,
        folder: Path,
    ) -> Lowered:
        tvm = import_tvm()
        from edgeinfer.convert.lower.tvm.build import build

        path = folder / ("model.dylib" if where.system == "macos" else "model.so")
        built = build(made.module, where, path, static=made.is_static, tuning=tuning)
        about = {
            "kind": built.kind,
            "machine": where.name,
            "features": list(where.features),
            "device": "gpu" if where.cuda else "cpu",
            "parallel": built.parallel,
            "inputs": library.describe(input_specs(model)),
            "outputs": library.describe(_results(model, made)),
            "tvm": str(tvm.__version__),
            "memory": [list(m) for m in built.memory],
        }
        files = library.append(path, about, built.weights)
        _tell(notes, made, built.kind, built.kernels, built.reason)
        for line in tuning.lines():
            notes.add(line)
        return Lowered(
            format=self.format,
            files=files,
            precision="fp32",
            engines=(EngineRequirement("tvm", f"=={tvm.__version__}"),),
            notes=tuple(notes.lines),
            ops={"kernel": built.kernels},
            # Features of the CPU are in the file, and the backend compares them.
            constraints={
                "os": where.system,
                "arch": where.arch,
                "device": "gpu" if where.cuda else "cpu",
            },
        )


def workloads(
    model: ir.Model, profile: Profile, options: LowerOptions
) -> tuple[Machine, list[Task], int]:
    """Return what a normalised model consists of for a machine, and how much of it stays open.

    What has open sizes cannot be measured; the number says of how many kernels that is so.

    Raises:
        UnsupportedError: it cannot be written.
        NotAvailableError: TVM is not installed.
    """
    where = _machine(profile, options)
    from edgeinfer.convert.lower.tvm import tuned
    from edgeinfer.convert.lower.tvm.build import prepared

    tuning = tuned.Tuning(collect=True)
    made = module_of(model, where, Remarks(), tuning)
    if made.module is None:
        raise UnsupportedError(profile.name, made.problems)
    prepared(made.module, where, tuning)
    return where, list(tuning.tasks.values()), len(tuning.open)


def _results(model: ir.Model, made: Module) -> list[TensorSpec]:
    """Say of results what was written: one may have one size though it is declared as open."""
    declared = output_specs(model)
    if not made.is_static or made.module is None:
        return list(declared)
    fields = made.module["main"].ret_ty.fields
    shapes = [tuple(int(s) for s in kind.shape.values) for kind in fields]
    return [replace(spec, shape=shape) for spec, shape in zip(declared, shapes, strict=True)]


def _tell(notes: Remarks, made: Module, kind: str, kernels: int, reason: str) -> None:
    how = "one function" if kind == "direct" else f"TVM's virtual machine, because {reason}"
    notes.add(f"{kernels} kernels, run by {how}")
    for name, count in sorted(Counter(made.naive).items()):
        notes.add(
            f"{count} of {name} without a kernel of their own: plain loops, tens of times slower "
            "than an engine's, unless a tuned kernel is named for them"
        )


def _machine(profile: Profile, options: LowerOptions) -> Machine:
    try:
        import_tvm()
    except ImportError as error:
        raise NotAvailableError(f"format 'tvm' needs TVM: {error}; {_INSTALL}") from error
    if options.precision != "fp32":
        raise UsageError(
            f"target {profile.name!r}, format 'tvm': precision {options.precision!r} cannot be "
            "written; known: fp32"
        )
    if not profile.machine:
        raise UsageError(f"target {profile.name!r} names no machine, which format 'tvm' needs")
    found = machine(profile.machine)
    if found.cuda:
        load_cuda_of_tvm()
    return found


def module_of(
    source: ir.Model, where: Machine, notes: Remarks, tuning: Tuning | None = None
) -> Module:
    """Lower a normalised model; what has no lowering is replaced by its definition first."""

    def lower(model: ir.Model) -> Module:
        made = _module_of(model, where, notes, tuning)
        if made.module is None:
            raise UnsupportedError("tvm", made.problems)
        return made

    try:
        # Names of what is refused are those of the nodes that are lowered.
        return with_definitions(_prepared(source, where, notes), lower, notes)
    except UnsupportedError as error:
        from edgeinfer.convert.lower.tvm.graph import LoweredModule as Refused

        return Refused(None, list(error.problems))


def _module_of(
    source: ir.Model, where: Machine, notes: Remarks, tuning: Tuning | None = None
) -> Module:
    from edgeinfer.convert.lower.tvm.graph import lower_graph
    from edgeinfer.convert.lower.tvm.ops import attend

    model = _prepared(source, where, notes)
    zeros.keep(model, _zero_form, notes)
    if not where.cuda and (count := attend.mark(model)):
        notes.add(f"{count} Attention: one kernel each")
    return lower_graph(model, where, tuning)


def _zero_form(node: ir.Node) -> zeros.Form:
    """How zeros get back a sign that a sum or a choice has lost."""
    if node.op_type == "Sign":
        return "plus"
    return "operand" if node.op_type in ("Celu", "Elu", "Selu", "Tanh") else ""


def _prepared(source: ir.Model, where: Machine, notes: Remarks) -> ir.Model:
    """Put definitions in the place of what has no lowering, and settle turns and branches."""
    from edgeinfer.convert.lower.tvm.ops import attend
    from edgeinfer.convert.lower.tvm.registry import OPS

    model = source.clone()
    if count := as_single(model):
        notes.add(f"bfloat16: {count} operators computed in float32, each result rounded")
    # A product of integers is one here.
    SplitQuantized(lambda node: node.op_type != "MatMulInteger")(model)
    model = _settled(model, notes)

    def is_known(node: ir.Node, opsets: Mapping[str, int]) -> bool:
        if not where.cuda and attend.takes(node):
            return True
        return OPS.find(node.op_type, node.domain) is not None

    # Definitions have turns too.
    model = _settled(with_known(model, is_known, notes), notes)
    # Operators that were recovered meanwhile may have bfloat16 again.
    as_single(model)
    return model


def _settled(model: ir.Model, notes: Remarks) -> ir.Model:
    """Write out the turns and branches that can be; what is left a run decides."""
    if count := sum(at_once(model, node) for node in all_nodes(model)):
        notes.add(f"{count} Scan: all turns at once")
        model = normalise(model).model
    if count := unroll(model):
        notes.add(f"{count} loops: every turn is written out")
        model = normalise(model).model
    if count := sum(is_op(node, "Scan") and as_loop(model, node) for node in all_nodes(model)):
        notes.add(f"{count} Scan: a Loop that reads a row in each turn")
        model = normalise(model).model
    if count := select(model):
        notes.add(f"{count} If: both branches are computed, one result is taken")
        model = normalise(model).model
    return model
