"""From a Relax module to a library on disk."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.support import cc

from edgeinfer.convert.lower.tvm import apple, cuda_code
from edgeinfer.convert.lower.tvm.direct import NotDirectError, direct
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.convert.lower.tvm.ops.reduce import share_extremes
from edgeinfer.convert.lower.tvm.order import sizes_first
from edgeinfer.convert.lower.tvm.tuned import MARK, Tuning, sizes_of
from edgeinfer.errors import NotAvailableError
from edgeinfer.kernels.defs import ahead
from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.kernels.rules import cuda
from edgeinfer.kernels.rules.cpu import schedule
from edgeinfer.kernels.tuning import workload
from edgeinfer.records import dataclass
from edgeinfer.types import Array

DIRECT_UP_TO = 150
"""Kernels in one function; above, the machine's microsecond each is nothing compared with their
work, and LLVM takes long over one large function."""

RECORDED_UP_TO = 600
"""The same on a GPU, where the machine's time for a launch is many times a recorded one's."""

DIRECT_LINES = 5000
"""Lines of loops in one function. TVM's passes take more than twice as long over twice as many:
seven minutes over 16,000, and two where the same loops stand in functions of their own. What has
so many computes for long enough not to notice the machine."""


LINE_S, WAIT_S = 2e-3, 30.0
"""Seconds that TVM and LLVM take for a line of loops, 0.9 to 1.6 ms on a quiet core (15,000 lines
of basic-pitch, 17,000 of a text classifier); and those that are not reported before."""

_log = logging.getLogger("edgeinfer")


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """What was made.

    Attributes:
        kind: ``direct`` or ``vm``.
        weights: what the entry function takes behind outputs.
        parallel: whether any of it runs on several threads.
        kernels: calls of kernels.
        reason: why it is not ``direct``; empty if it is.
        memory: what the entry function takes behind weights, on a GPU.
    """

    kind: str
    weights: list[Array]
    parallel: bool
    kernels: int
    reason: str = ""
    memory: tuple[tuple[str, int], ...] = ()


def linker_for(machine: Machine) -> str:
    """Return the compiler driver that makes libraries for a machine.

    Raises:
        NotAvailableError: it is not installed; has the install line.
    """
    if machine.system == "macos":
        return apple.check_linker(machine.name)
    found = shutil.which(machine.linker)
    if found is None:
        package = "gcc" if machine.linker == "gcc" else "gcc-aarch64-linux-gnu"
        raise NotAvailableError(
            f"libraries for {machine.name} need {machine.linker}; apt-get install {package}"
        )
    if machine.cuda:
        cuda_code.get_ready(machine.name)
    return found


def build(
    module: tvm.IRModule, machine: Machine, path: Path, *, static: bool, tuning: Tuning
) -> BuiltModule:
    """Compile a module and write its library."""
    linker = linker_for(machine)
    target = machine.target()
    ready = prepared(module, machine, tuning)
    kernels = _calls(ready)
    texts = [f.script() for f in ready.functions.values() if isinstance(f, tirx.PrimFunc)]
    parallel = any("T.parallel" in text for text in texts)
    lines = sum(t.count("\n") for t in texts)
    if warning := effort(kernels, lines):
        _log.warning("%s", warning)
    reason = _not_direct(kernels, static, lines, RECORDED_UP_TO if machine.cuda else DIRECT_UP_TO)
    weights: list[Array] = []
    memory: tuple[tuple[str, int], ...] = ()
    if not reason:
        try:
            made = direct(ready, own_memory=not machine.cuda)
        except NotDirectError as error:
            reason = str(error)
        else:
            weights, memory = made.weights, tuple(made.memory)
            name = str(made.function.attrs["global_symbol"])
            # TVM's own sharing of memory does not see that two shapes may be one buffer.
            with target, tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
                compiled = _compiled(tvm.IRModule({name: made.function}), machine)
    if reason:
        with target:
            compiled = _compiled(_copying(ready, machine), machine)
    with tempfile.TemporaryDirectory() as folder:
        link = apple.link if machine.system == "macos" else cc.cross_compiler(linker)
        compiled.export_library(str(path), fcompile=link, workspace_dir=folder)
    if machine.cuda and any("T.launch_thread" in t or "thread_binding" in t for t in texts):
        cuda_code.check(path, machine.name)
    return BuiltModule("vm" if reason else "direct", weights, parallel, kernels, reason, memory)


def _compiled(module: tvm.IRModule, machine: Machine) -> Any:
    """Compile for the target that is set."""
    pipeline = ahead.PIPELINE if machine.cuda else "default"
    try:
        # For a GPU TVM would fuse once more: what has its order with loops that have none.
        return tvm.compile(
            module,
            target=machine.target(),
            relax_pipeline="default_build",
            tir_pipeline=pipeline,
        )
    except RuntimeError as error:
        # CUDA's compiler gives back all of the text, and a line for all that it dislikes.
        if found := cuda_code.errors(str(error)):
            raise RuntimeError(f"kernels for {machine.name} do not compile: {found}") from error
        raise


def _copying(module: tvm.IRModule, machine: Machine) -> tvm.IRModule:
    """Write loops for a result in another shape where TVM's virtual machine would do it.

    It looks at such a result as a view where it can tell that there are as many elements, and at
    most of them on a GPU; for others it writes loops that nothing orders any more: the host would
    run a GPU's, on memory that it cannot read, and a CPU's take callers' arrays for aligned ones.
    """
    from tvm.s_tir import dlight

    passes = [relax.transform.LegalizeOps(), relax.transform.RewriteDataflowReshape()]
    made = tvm.transform.Sequential(passes)(module)
    if machine.cuda:
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(made)
    cpu, before = (
        KernelCpu(machine.lanes, machine.registers),
        {g.name_hint for g in module.functions},
    )
    for where, function in list(made.functions.items()):
        if isinstance(function, tirx.PrimFunc) and where.name_hint not in before:
            made[where] = _unaligned(schedule(function, cpu))
    return made


def effort(kernels: int, lines: int) -> str:
    """Say how long TVM will take; empty where nobody has to wait for it."""
    seconds = lines * LINE_S
    if seconds < WAIT_S:
        return ""
    return (
        f"TVM compiles {kernels} kernels, {lines} lines of loops, which takes about "
        f"{seconds:.0f} s of one core"
    )


def _not_direct(kernels: int, static: bool, lines: int, most: int) -> str:
    if not static:
        return "it has open sizes"
    if kernels > most:
        return f"it has {kernels} kernels"
    if lines > DIRECT_LINES:
        return f"its loops have {lines} lines"
    return ""


def prepared(module: tvm.IRModule, machine: Machine, tuning: Tuning) -> tvm.IRModule:
    """Fuse what is element-wise, and order the loops."""
    target = machine.target()
    # Names of one size become one name, and what compares them in a run is gone.
    names = [] if _compares(module) else [relax.transform.CanonicalizeBindings()]
    passes = [
        *names,
        relax.transform.DeadCodeElimination(),
        relax.transform.LegalizeOps(skip_ops=["relax.reshape"]),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with target:
        module = sizes_first(tvm.transform.Sequential(passes)(module))
        if machine.cuda:
            return _on_gpu(module, machine, tuning)
    cpu = KernelCpu(machine.lanes, machine.registers)
    calls = _called(module)
    for where, function in list(module.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            is_tuned = MARK in function.attrs
            before = function if is_tuned else _kept(tuning, function)
            own = function if is_tuned else schedule(function, cpu)
            module[where] = _unaligned(_tuned(tuning, where, before, own, calls))
    # Where a value went into two readers, its names are defined twice.
    return tirx.transform.ConvertSSA()(module)


def _compares(module: tvm.IRModule) -> bool:
    """Whether a run holds sizes against each other."""
    functions = [f for f in module.functions.values() if isinstance(f, relax.Function)]
    blocks = [b for f in functions for b in getattr(f.body, "blocks", ())]
    return any(isinstance(b, relax.MatchCast) for block in blocks for b in block.bindings)


def _unaligned(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Have a function take arrays that are aligned to their elements only, as callers' are."""
    taken: dict[int, Any] = {}
    for param in function.params:
        if not tirx.is_buffer_var(param):
            continue
        dtype = str(param.dtype)
        each = max(1, np.dtype(dtype).itemsize)
        made = tirx.decl_buffer(param.shape, dtype, param.name, data_alignment=each)
        taken[hash(param)] = made
    changed: tirx.PrimFunc = tvm_ffi.structural_map(
        function, (tvm.ir.Var, lambda v: taken.get(hash(v), v))
    )
    return changed


def _tuned(
    tuning: Tuning,
    where: Any,
    function: tirx.PrimFunc | None,
    own: tirx.PrimFunc,
    calls: Counter[str],
) -> tirx.PrimFunc:
    """Return a function as it was tuned, where it was."""
    name = str(where.name_hint)
    if tuning.is_active and workload.is_open(own):
        tuning.leave(name, calls[name])
    if function is None or MARK in function.attrs:
        return own
    title = f"{name} {sizes_of(function)}"
    found = tuning.choose(function, lambda: own, title, name, calls[name])
    return own if found is None else found


def _kept(tuning: Tuning, function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return a function as it is now, where it may have been tuned."""
    return workload.try_copy(function) if tuning.is_active else None


def _called(module: tvm.IRModule) -> Counter[str]:
    """How often each function is called."""
    bindings = [b for block in module["main"].body.blocks for b in block.bindings]
    return Counter(
        str(b.value.args[0].name_hint)
        for b in bindings
        if isinstance(getattr(b.value, "op", None), tvm.ir.Op) and b.value.op.name == _CALL
    )


_CALL = "relax.call_tir"


def _on_gpu(module: tvm.IRModule, machine: Machine, tuning: Tuning) -> tvm.IRModule:
    from tvm.s_tir import dlight

    share_extremes()
    # TVM's rule for vectors has threads write beyond a result that has fewer rows than they are.
    rules = [
        _tried(dlight.gpu.Matmul()),
        _tried(dlight.gpu.Reduction()),
        _tried(dlight.gpu.GeneralReduction()),
        dlight.gpu.Fallback(),
    ]
    written = {
        g.name_hint: _kept(tuning, f)
        for g, f in module.functions.items()
        if isinstance(f, tirx.PrimFunc)
    }
    calls = _called(module)
    for where, function in list(module.functions.items()):
        if not isinstance(function, tirx.PrimFunc) or MARK in function.attrs:
            continue
        own = _nothing(function) or cuda.default(function, machine.cuda)
        if own is not None:
            module[where] = own.with_attrs({MARK: True, "tirx.is_scheduled": True})
    plain = dlight.ApplyDefaultSchedule(*rules)(module)
    for where, function in list(plain.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            before = written[where.name_hint]
            plain[where] = _tuned(tuning, where, before, function.without_attr(MARK), calls)
    return plain


def _nothing(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return a function that does nothing where the result has no elements; else None."""
    result = function.params[-1]
    sizes = result.shape if tirx.is_buffer_var(result) else ()
    if all(not isinstance(s, tirx.IntImm) or int(s) for s in sizes):
        return None
    return tirx.PrimFunc(function.params, tirx.Evaluate(0), function.ret_type, attrs=function.attrs)


def _tried(rule: Any) -> Any:
    """Have a rule of TVM's pass on what it or the next step of TVM ends in an error for.

    A maximum and its place, for one, are two results of one sum, which threads cannot share.
    """
    from tvm.s_tir import dlight
    from tvm.s_tir.transform import LowerCrossThreadReduction

    class Tried(dlight.ScheduleRule):  # type: ignore[misc]
        def apply(self, func: tirx.PrimFunc, target: Any, tunable: bool) -> Any:
            try:
                made = rule.apply(func, target, tunable)
                if made is not None:
                    LowerCrossThreadReduction()(made.mod)
            except (RuntimeError, ValueError, AssertionError) as e:
                _log.debug("%s does not order %s: %s", type(rule).__name__, func.attrs, e)
                return None
            else:
                return made

    return Tried()


def _calls(module: tvm.IRModule) -> int:
    return _called(module).total()
