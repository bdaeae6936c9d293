"""Order of the loops that TVM writes for a CPU.

What TVM gives is right and an element at a time. Here element-wise blocks go into their readers,
outer loops onto threads where there is enough to do, and a last axis that is kept stands innermost,
where vectors can follow it.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm
from tvm import s_tir, tirx

from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.kernels.rules import vectors

_PARALLEL_ABOVE = 1 << 17
"""Elements, or products, from which a second thread is worth its start."""

_MOST_CHOICES = 200
"""Choices in one element's value, every name written out, above which a step reads the one before
from memory: with 127 of them, seven Relus in a row, TVM takes 0.4 s, with 255 of them 2.2 s."""

_NARROWEST = 4
"""Elements of a vector below which LLVM is left alone."""


def schedule(function: tirx.PrimFunc, cpu: KernelCpu) -> tirx.PrimFunc:
    """Return the same function with its loops in a better order."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        # Written with its order. TVM says so by an exception, and reads all symbols for its first.
        return function
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    try:
        root = sch.get_sblock("root")
        blocks = list(sch.get_child_blocks(root))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return function
    if not blocks or any(sch.get(b).name_hint == "root" for b in blocks):
        return function
    _inline(sch, root)
    for block in sch.get_child_blocks(root):
        _arrange(sch, block, cpu)
    return sch.mod["main"].with_attrs(dict(function.attrs) if function.attrs else {})


def _inline(sch: s_tir.Schedule, root: Any) -> None:
    for block in sch.get_child_blocks(root):
        if _is_reduction(sch, block) or len(sch.get_consumers(block)) != 1:
            continue
        reader = sch.get_consumers(block)[0]
        if _is_reduction(sch, reader) and _size(sch, reader) > _size(sch, block):
            # It would be computed once for each read.
            continue
        if _choices(sch.get(block), sch.get(reader)) > _MOST_CHOICES:
            continue
        _try(sch.compute_inline, block)


def _choices(block: Any, reader: Any) -> int:
    """Count the choices between two values in what a reader computes once it computes a block too.

    Each name counts as what it stands for: TVM simplifies choices so, again and again, and each
    that reads the one before twice takes it five times as long.
    """
    own = _written_out(block.body, tirx.Select)
    times = _written_out(reader.body, tvm.ir.TensorLoad, block.body.buffer) if own else 0
    return _written_out(reader.body, tirx.Select) + own * times if times > 1 else 0


def _written_out(store: Any, kind: Any, source: Any = None) -> int:
    """Count parts of a kind, or reads of one buffer, in a value whose names are written out."""
    sizes: dict[Any, int] = {}

    def count(part: Any) -> int:
        if isinstance(part, tirx.Let):
            sizes[part.var] = count(part.value)
            return count(part.body)
        if isinstance(part, tvm.ir.Var):
            return sizes.get(part, 0)
        fits = isinstance(part, kind) and (source is None or part.source.same_as(source))
        names = ("a", "b", "condition", "true_value", "false_value", "value")
        inner = [getattr(part, n) for n in names if hasattr(part, n)]
        inner += getattr(part, "args", ())
        return fits + sum(count(p) for p in inner if hasattr(p, "same_as"))

    return count(store.value) if isinstance(store, tirx.BufferStore) else 0


def _try(action: Any, *arguments: Any) -> Any:
    """Do something that the schedule may refuse; it then stays as it is."""
    try:
        return action(*arguments)
    except s_tir.ScheduleError:
        return None


def _is_reduction(sch: s_tir.Schedule, block: Any) -> bool:
    return any(i.iter_type == tirx.IterVar.CommReduce for i in sch.get(block).iter_vars)


def _extent(sch: s_tir.Schedule, loop: Any) -> int:
    extent = sch.get(loop).extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else 0


def _size(sch: s_tir.Schedule, block: Any) -> int:
    size = 1
    for loop in sch.get_loops(block):
        size *= max(1, _extent(sch, loop))
    return size


def _arrange(sch: s_tir.Schedule, block: Any, cpu: KernelCpu) -> None:
    loops = sch.get_loops(block)
    kinds = [i.iter_type for i in sch.get(block).iter_vars]
    if len(loops) != len(kinds) or not loops:
        return
    large = _size(sch, block) >= _PARALLEL_ABOVE
    kept = [x for x, k in zip(loops, kinds, strict=True) if k == tirx.IterVar.DataPar]
    summed = [x for x, k in zip(loops, kinds, strict=True) if k == tirx.IterVar.CommReduce]
    if len(kept) + len(summed) != len(loops):
        return
    if not summed:
        run = vectors.runs(sch.get(block), [_extent(sch, x) for x in kept])
        _outer(sch, _along(sch, kept, run, cpu), large)
    elif kept and _extent(sch, kept[-1]) >= cpu.lanes // 2:
        _kept_last(sch, block, kept, summed, large)
    else:
        _summed_last(sch, block, kept, summed, large)


def _along(sch: s_tir.Schedule, loops: list[Any], run: int, cpu: KernelCpu) -> list[Any]:
    """Make vectors of a run of last loops that lies in one piece; returns all loops but those."""
    if not run:
        return loops
    *outer, last = loops[: len(loops) - run + 1]
    if run > 1:
        last = sch.fuse(*loops[len(loops) - run :])
    width = gcd(_extent(sch, last), cpu.lanes)
    if width < _NARROWEST:
        return [*outer, last]
    whole, part = sch.split(last, [None, width])
    sch.vectorize(part)
    return [*outer, whole]


def _outer(sch: s_tir.Schedule, loops: list[Any], large: bool) -> None:
    """Put all but the last loop on threads."""
    if not large or len(loops) < 2:
        return
    outer = sch.fuse(*loops[:-1]) if len(loops) > 2 else loops[0]
    if _extent(sch, outer) >= 2:
        _try(sch.parallel, outer)


def _kept_last(
    sch: s_tir.Schedule, block: Any, kept: list[Any], summed: list[Any], large: bool
) -> None:
    """Whole rows are summed onto one another."""
    _try(sch.reorder, *kept[:-1], *summed, kept[-1])
    _try(sch.decompose_reduction, block, summed[0])
    if large and len(kept) > 1:
        outer = sch.fuse(*kept[:-1]) if len(kept) > 2 else kept[0]
        if _extent(sch, outer) >= 2:
            _try(sch.parallel, outer)


def _summed_last(
    sch: s_tir.Schedule, block: Any, kept: list[Any], summed: list[Any], large: bool
) -> None:
    """One sum after the other."""
    _try(sch.reorder, *kept, *summed)
    _try(sch.decompose_reduction, block, summed[0])
    if large and kept:
        outer = sch.fuse(*kept) if len(kept) > 1 else kept[0]
        if _extent(sch, outer) >= 2:
            _try(sch.parallel, outer)
