"""What is tuned: a function of TensorIR over fixed sizes, its name in a database, its orders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import tvm
from tvm import s_tir, tirx

from edgeinfer.kernels.tuning import traces

NAME = "main"
_KEPT = frozenset({"tirx.noalias", "s_tir"})


def plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function under one name and without what passes wrote on it."""
    for key in list(function.attrs.keys()) if function.attrs else []:
        if key not in _KEPT:
            function = function.without_attr(key)
    return function.with_attr({"global_symbol": NAME, "tirx.noalias": True})


def key_of(function: tirx.PrimFunc) -> str:
    """Return what a workload is filed under: a digest of its text."""
    text = plain(function).script(show_meta=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def is_fixed(function: tirx.PrimFunc) -> bool:
    """Whether every size is a number, and blocks are there to be ordered."""
    if len(function.params) != sum(map(tirx.is_buffer_var, function.params)):
        return False
    return not is_open(function) and bool(blocks(function))


def is_open(function: tirx.PrimFunc) -> bool:
    """Whether a size of an array is known in the run only."""
    sizes = [s for p in function.params if tirx.is_buffer_var(p) for s in p.shape]
    return not all(isinstance(s, tirx.IntImm) for s in sizes)


def blocks(function: tirx.PrimFunc) -> list[Any]:
    """Return the blocks of a function; none if it has no root to find them in."""
    sch = s_tir.Schedule(tvm.IRModule({NAME: plain(function)}))
    try:
        return list(sch.get_child_blocks(sch.get_sblock("root")))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return []


def outputs(function: tirx.PrimFunc) -> list[int]:
    """Return the positions of what a function writes among its parameters."""
    sch = s_tir.Schedule(tvm.IRModule({NAME: plain(function)}))
    found = sch.get_child_blocks(sch.get_sblock("root"))
    written = {hash(r.source) for b in found for r in sch.get(b).writes}
    return [i for i, p in enumerate(sch.mod[NAME].params) if hash(p) in written]


def iterations(function: tirx.PrimFunc) -> int:
    """Return how often the innermost block of the largest nest of loops is run."""
    sch = s_tir.Schedule(tvm.IRModule({NAME: plain(function)}))
    most = 1
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        count = 1
        for loop in sch.get_loops(block):
            extent = sch.get(loop).extent
            count *= int(extent.value) if isinstance(extent, tirx.IntImm) else 1
        most = max(most, count)
    return most


def order(function: tirx.PrimFunc, trace: Any) -> tirx.PrimFunc:
    """Return the function with its loops ordered as a trace, or the plan of a rule, says.

    Raises:
        ValueError: the trace does not fit it, or is not of what a search writes.
    """
    if isinstance(trace, Mapping):
        from edgeinfer.kernels.rules import cuda

        return cuda.apply(copy(function), trace)
    traces.check(trace)
    sch = s_tir.Schedule(tvm.IRModule({NAME: copy(function)}))
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(trace, sch)
    except Exception as error:  # TVM raises whatever its C++ threw
        line = str(error).strip().splitlines()[-1][:200] if str(error).strip() else repr(error)
        raise ValueError(f"the order does not fit the kernel: {line}") from error
    return sch.mod[NAME]


def dump(function: tirx.PrimFunc) -> str:
    """Return a function as text that ``load`` reads.

    TVM's own form, ``tvm.ir.save_json``, ends the process with a segmentation fault for every
    function (0.27.0.post1 with tvm-ffi 0.1.15.post2); its database goes the same way.
    """
    return str(plain(function).script(show_meta=True))


def load(text: str) -> tirx.PrimFunc:
    """Read what ``dump`` wrote: the text is run as Python, so only our own is read."""
    _name_pairs()
    return tvm.script.from_source(text)


@cache
def _name_pairs() -> None:
    """Give names to vectors of two, which TVM writes and does not read."""
    from tvm.tirx.script.builder import _ffi_api

    def named(kind: str) -> Any:
        def made(value: Any = None) -> Any:
            # Without a value it is how a variable of the type is written.
            return tirx.Var("", kind) if value is None else tirx.Cast(kind, value)

        return made

    for kind in ("Float16", "Float32", "Float64", "Int8", "Int16", "Int32", "Int64", "UInt8"):
        if not hasattr(_ffi_api, f"{kind}x2"):
            setattr(_ffi_api, f"{kind}x2", named(f"{kind.lower()}x2"))


def copy(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function that shares nothing: schedules change what they were given in place."""
    return load(dump(function))


def try_copy(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return a copy; None of sizes that are open, and of what TVM writes and does not read.

    It does not read the least number of 64 bits, with which the search for a maximum begins.
    """
    if not is_fixed(function):
        return None
    try:
        return copy(function)
    except tvm.error.DiagnosticError:
        return None


def digest(trace: Any) -> str:
    """Return what tells orders apart."""
    return hashlib.sha256(json.dumps(trace).encode()).hexdigest()[:20]


def target(described: Mapping[str, Any]) -> tvm.target.Target:
    """Return TVM's target from its description."""
    given = dict(described)
    host = given.pop("host", None)
    return tvm.target.Target(given, host=host) if host else tvm.target.Target(given)
