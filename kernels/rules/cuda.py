"""Order of the loops of products, convolutions and sums for a CUDA GPU.

A rule is a template with few numbers. A product's block of threads makes a tile of its result: some
threads lie along rows, some along columns, and some along what is summed, whose parts meet in
shared memory; each keeps a tile of its own in registers. Small nets have too few results to keep a
large GPU busy in any other way. A convolution is a product of its filters with the pixels; one over
each channel alone gives each thread some rows and columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from edgeinfer.kernels.defs.cuda import CudaTile, Strip, Sum, product, window
from edgeinfer.kernels.tuning import workload
from edgeinfer.records import dataclass

PRODUCT, WINDOW = "product", "window"

Plan = Mapping[str, Any]
"""A rule's name, as ``rule``, and its numbers."""

_WARP, _THREADS = 32, 1024
_CORES = {"sm_87": 16, "sm_90": 132, "sm_110": 20}
"""Multiprocessors of the GPUs that code is made for: Orin, H200, Thor."""

_SHARED_FLOATS = 12 * 1024
_FEW_ROWS = 8
"""Of a product of matrices: with more of them, neighbours share more than a cache holds."""


@dataclass(frozen=True, slots=True)
class FunctionShape:
    """What a rule sees of a function.

    Attributes:
        rule: that fits.
        kept: sizes of the result as the block writes it.
        summed: sizes of what is summed.
        columns: which of the block's operands has the columns; the other one has the rows.
        plain: whether that operand is read element by element, without a border.
    """

    rule: str
    kept: tuple[int, ...]
    summed: tuple[int, ...]
    columns: int = 0
    plain: bool = True


def shape_of(function: tirx.PrimFunc) -> FunctionShape | None:
    """Return what there is to order by a rule; None if no rule fits."""
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    found = _blocks(sch)
    return None if found is None else _shape(sch, *found)


def apply(function: tirx.PrimFunc, plan: Plan) -> tirx.PrimFunc:
    """Return the function with its loops ordered as a plan says; the given one may be changed.

    Raises:
        ValueError: the plan does not fit it.
    """
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    found = _blocks(sch)
    shape = None if found is None else _shape(sch, *found)
    if found is None or shape is None or shape.rule != plan.get("rule"):
        raise ValueError(f"the rule {plan.get('rule')!r} does not fit the kernel")
    main = sch.get(found[0])
    end = None if found[1] is None else sch.get(found[1])
    factors = main.body.value.b
    order = (factors.a, factors.b) if shape.columns == 0 else (factors.b, factors.a)
    made = Sum(
        params=list(sch.mod["main"].params),
        kept=shape.kept,
        summed=shape.summed,
        variables=[i.var for i in main.iter_vars],
        column=order[0],
        row=order[1],
        value=main.body.buffer,
        end=None if end is None else end.body.value,
        end_variables=[] if end is None else [i.var for i in end.iter_vars],
    )
    try:
        if shape.rule == PRODUCT:
            return product(made, CudaTile(*(int(plan[f.name]) for f in fields(CudaTile))))
        return window(made, Strip(*(int(plan[f.name]) for f in fields(Strip))))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the plan does not fit the kernel: {error!r}") from error


def default(function: tirx.PrimFunc, arch: str) -> tirx.PrimFunc | None:
    """Return the function in the order that a model of a GPU likes most; None if no rule fits."""
    first = workload.try_copy(function)
    shape = None if first is None else shape_of(first)
    if shape is None or (shape.columns and prod(shape.kept[:-1]) > _FEW_ROWS):
        return None
    found = plans(shape, arch, 1)
    return apply(workload.copy(function), found[0]) if found else None


def _blocks(sch: s_tir.Schedule) -> tuple[Any, Any | None] | None:
    """Find the block that sums and the one that reads it; a border becomes part of the first."""
    try:
        root = sch.get_sblock("root")
        blocks = list(sch.get_child_blocks(root))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return None
    sums = [b for b in blocks if _summed(sch, b)]
    if len(sums) != 1:
        return None
    (main,) = sums
    after = list(sch.get_consumers(main))
    before = [b for b in blocks if sch.get(b).name_hint == "border"]
    if len(after) > 1 or len(blocks) != 1 + len(after) + len(before):
        return None
    if any(len(sch.get_consumers(b)) != 1 for b in before):
        return None
    for block in before:
        sch.compute_inline(block)
    return main, after[0] if after else None


def _summed(sch: s_tir.Schedule, block: Any) -> bool:
    return any(i.iter_type == tirx.IterVar.CommReduce for i in sch.get(block).iter_vars)


def _shape(sch: s_tir.Schedule, main: Any, end: Any | None) -> FunctionShape | None:
    block = sch.get(main)
    kinds = [i.iter_type for i in block.iter_vars]
    sizes = [i.dom.extent for i in block.iter_vars]
    if not all(isinstance(s, tirx.IntImm) for s in sizes) or len(sch.get_loops(main)) != len(sizes):
        return None
    number = sum(k == tirx.IterVar.DataPar for k in kinds)
    if kinds != [tirx.IterVar.DataPar] * number + [tirx.IterVar.CommReduce] * (len(kinds) - number):
        return None
    extents = tuple(int(s) for s in sizes)
    kept, summed = extents[:number], extents[number:]
    if end is not None and len(sch.get_loops(end)) != number:
        return None
    if str(block.writes[0].source.dtype) != "float32":
        return None
    name, reads = block.name_hint, len(block.reads)
    if name == "flat" and reads == 2:
        return FunctionShape(PRODUCT, kept, summed, 0, len(summed) == 1)
    if name == "matmul" and reads == 2 and number >= 2 and len(summed) == 1:
        return FunctionShape(PRODUCT, kept, summed, 1)
    if name == "conv" and reads == 2 and number == 4 and summed[0] == 1:
        return FunctionShape(WINDOW, kept, summed)
    return None


# ---- plans


def plans(shape: FunctionShape, arch: str, most: int = 48) -> list[Plan]:
    """Return plans that are worth a measurement, what a simple model of a GPU likes most first."""
    ranked = _ranked(shape, _CORES[arch])
    if shape.rule == WINDOW:
        return list(ranked[:most])
    taken: list[Plan] = []
    seen: Counter[Any] = Counter()
    for plan in ranked:
        # A simple model is wrong in one direction for all of a kind.
        kinds = [("deep", plan["deep"]), ("tile", plan["rows"], plan["wide"])]
        if all(seen[k] < _OF_A_KIND for k in kinds):
            seen.update(kinds)
            taken.append(plan)
    return taken[:most]


@cache
def _ranked(shape: FunctionShape, cores: int) -> tuple[Plan, ...]:
    found = _product_plans(shape, cores) if shape.rule == PRODUCT else _window_plans(shape, cores)
    return tuple(plan for _, plan in sorted(found, key=lambda p: p[0])[:_KEPT])


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _product_plans(shape: FunctionShape, cores: int) -> list[tuple[float, Plan]]:
    rows, columns = shape.kept[-2:]
    found: list[tuple[float, Plan]] = []
    for wide in (w for w in (1, 2, 4) if columns % w == 0 and (w == 1 or shape.plain)):
        for own in (d for d in _divisors(rows, 32) if d * wide <= 64):
            for down in _divisors(rows // own, 16):
                for across in _divisors(columns // wide, 256):
                    for deep in _divisors(shape.summed[0], 64):
                        tile = CudaTile(own, wide, down, across, deep, 1)
                        for step in _steps(shape, tile):
                            cut = replace(tile, step=step)
                            plan = {"rule": PRODUCT, **asdict(cut)}
                            found.append((_product_cost(shape, cut, cores), plan))
    return found


def _steps(shape: FunctionShape, tile: CudaTile) -> list[int]:
    """Steps with which a tile makes sense; none if it makes none."""
    size = prod(tile.size)
    if not _WARP <= tile.threads <= _THREADS or tile.rows * tile.wide > 32:
        return []
    uneven = size > tile.threads and size % tile.threads
    if tile.deep > 1 and (tile.deep * size > _SHARED_FLOATS or uneven):
        return []
    share = shape.summed[0] // tile.deep
    return [s for s in (8, 4, 2, 1) if share % s == 0][:2]


_OF_A_KIND, _KEPT = 9, 4000
"""Plans of one depth, and of one tile."""

_READ, _LINES, _LATENCY, _START, _L2_BYTES = 1.86, 0.28, 164.0, 83.0, 2600.0
_MEET, _PART, _BEGIN, _RAGGED, _BUSY, _WORK = 15.0, 15.5, 10.0, 1.24, 11.0, 1.16
"""Cycles, bytes of a cycle and factors, fitted to 330 measurements of ten convolutions on an H200;
what they choose took 1.03 times as long as the fastest of each."""


def _product_cost(shape: FunctionShape, tile: CudaTile, cores: int) -> float:
    """Estimate a product's cycles."""
    own, threads = tile.rows * tile.wide, tile.threads
    rows, columns = tile.size
    blocks = prod(shape.kept) // (rows * columns)
    depth = shape.summed[0] // tile.deep * prod(shape.summed[1:])
    warps = -(-threads // _WARP)
    waves = -(-blocks // (cores * max(1, min(2048 // (warps * _WARP), 32))))
    # Instructions of a warp for one element of what is summed: reads, then products.
    vectors = next(tile.rows // w for w in (4, 2, 1) if tile.rows % w == 0)
    reads: float = vectors + (1 if shape.plain else tile.wide)
    # Threads of a warp that lie in different rows read different lines of the cache.
    reads *= 1 + _LINES * (_WARP / min(_WARP, tile.across) - 1)
    # A core that has few warps waits for each instruction.
    busy = max(-(-blocks // cores) * warps, _BUSY)
    issue = busy * depth * (_READ * reads + own / 4)
    traffic = blocks * depth * tile.deep * (rows + columns) * 4 / _L2_BYTES
    latency = -(-depth // (tile.step * prod(shape.summed[1:]))) * _LATENCY + _START
    added = _BEGIN * warps
    if tile.deep > 1:
        added += _MEET + _PART * tile.deep * max(1.0, rows * columns / threads)
    whole = max(issue, traffic) * _WORK + waves * (latency + added)
    return whole * (_RAGGED if threads % _WARP else 1.0)


def _window_plans(shape: FunctionShape, cores: int) -> list[tuple[float, Plan]]:
    height, width = shape.kept[-2:]
    tall, broad = shape.summed[-2:]
    found: list[tuple[float, Plan]] = []
    for rows in (r for r in (1, 2, 4, 7, 8, 14) if height % r == 0):
        for wide in (w for w in (1, 2, 4) if width % w == 0 and rows * w <= 16):
            own = rows * wide
            for threads in (64, 128, 256, 512):
                blocks = -(-(prod(shape.kept) // own) // threads)
                busy = max(-(-blocks // cores) * threads / _WARP, _BUSY)
                # Neighbours share what they read.
                reads = (rows + tall - 1) * (wide + broad - 1)
                cost = busy * (_READ * reads + own * tall * broad / 4) + 25 * own
                cost += {64: 15, 128: 0, 256: 10, 512: 25}[threads]
                found.append((cost, {"rule": WINDOW, **asdict(Strip(rows, wide, threads))}))
    return found
