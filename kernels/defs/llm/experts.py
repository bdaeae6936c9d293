"""Feed-forward parts of which each token uses a few: who is chosen, and their products.

A pair is a token and one of its experts. Of few tokens every pair is worked on by itself; of many
the pairs of an expert lie together, in jobs of some rows, so that its matrix is read once for all
rows of a job. A pair's sums are the same in both, and a token's pairs are added in the order of
their ranks: its bits depend on no other token.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    function,
    load,
    registers,
    splat,
    store,
)
from edgeinfer.kernels.defs.llm.form import STEP
from edgeinfer.kernels.defs.llm.product import Product, buffers_of, gated, walked
from edgeinfer.kernels.defs.llm.rounding import rounded_buffers
from edgeinfer.kernels.defs.llm.steps import SPAN, TOKENS, between, fma, held, span_of, zeros
from edgeinfer.kernels.defs.rows import sweep

_LOWEST = -3.0e38


def route(count: int, padded: int, used: int, normalised: bool) -> tirx.PrimFunc:
    """Choose experts by their scores; of equal ones the first.

    The kernel takes ``router`` (tokens, padded), ``chosen`` (int32) and ``shares`` (float32), each
    of ``used`` entries a token, and ``span`` of tokens. Shares are those of a softmax over all
    experts, ``normalised`` ones sum to one.
    """
    buffers = {
        "router": ((TOKENS, padded), "float32"),
        "chosen": ((TOKENS * used,), "int32"),
        "shares": ((TOKENS * used,), "float32"),
        "span": ((SPAN,), "int32"),
    }

    def body(router: Buffer, chosen: Buffer, shares: Buffer, span: Buffer) -> None:
        first, end = span_of(span)
        with between(first, end) as token:
            left = registers(count)
            with T.serial(count) as e:
                T.buffer_store(left, T.BufferLoad(router, [token, e]), [e])
            most, total, of_used = registers(1), registers(1), registers(1)
            T.buffer_store(total, T.float32(0), [0])
            T.buffer_store(of_used, T.float32(0), [0])
            with T.serial(used) as rank:
                best, at = registers(1), registers(1, "int32")
                T.buffer_store(best, T.float32(_LOWEST), [0])
                T.buffer_store(at, T.int32(0), [0])
                with T.serial(count) as e:
                    value = T.BufferLoad(left, [e])
                    with T.If(value > T.BufferLoad(best, [0])), T.Then():
                        T.buffer_store(best, T.BufferLoad(left, [e]), [0])
                        T.buffer_store(at, e, [0])
                with T.If(rank == T.int32(0)), T.Then():
                    T.buffer_store(most, T.BufferLoad(best, [0]), [0])
                place = token * used + rank
                T.buffer_store(chosen, T.BufferLoad(at, [0]), [place])
                share = math.exp(T.BufferLoad(best, [0]) - T.BufferLoad(most, [0]))
                T.buffer_store(shares, share, [place])
                more = T.BufferLoad(of_used, [0]) + T.BufferLoad(shares, [place])
                T.buffer_store(of_used, more, [0])
                T.buffer_store(left, T.float32(_LOWEST), [T.BufferLoad(at, [0])])
            with T.serial(count) as e:
                one = math.exp(T.BufferLoad(router, [token, e]) - T.BufferLoad(most, [0]))
                T.buffer_store(total, T.BufferLoad(total, [0]) + one, [0])
            whole = of_used if normalised else total
            with T.serial(used) as rank:
                place = token * used + rank
                value = T.BufferLoad(shares, [place]) / T.BufferLoad(whole, [0])
                T.buffer_store(shares, value, [place])

    return function("route", buffers, body)


def expert_gate(what: Product, count: int, used: int) -> tirx.PrimFunc:
    """Gates and inputs of each token's experts.

    Args:
        what: the product of one expert, gates above inputs; of one token.
        count: Number of experts, whose matrices lie one below the other.
        used: by each token.

    The kernel takes the buffers of a product over all experts, ``chosen`` before ``y`` (tokens *
    used, inner size), and ``span`` of (token, rank, item of the product).
    """
    given = buffers_of(what, count)
    ends = {n: given.pop(n) for n in ("y", "span")}
    buffers = {**given, "chosen": ((TOKENS * used,), "int32"), **ends}

    def body(*made: Buffer) -> None:
        named = dict(zip(buffers, made, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as item:
            place = item // what.items
            expert = T.BufferLoad(named["chosen"], [place])
            at = item % what.items + expert * (2 * what.runs)
            gated(what, named, at, place // used, place)

    return function("expert_gate", buffers, body)


def expert_down(what: Product, count: int, used: int) -> tirx.PrimFunc:
    """Add the results of each token's experts by their shares.

    Args:
        what: the product of one expert; of one token.
        count: Number of experts.
        used: by each token.

    The kernel takes the buffers of a product over all experts, ``chosen`` and ``shares`` before
    ``y`` (tokens, hidden), and ``span`` of (token, item of the product).
    """
    given = buffers_of(what, count)
    ends = {n: given.pop(n) for n in ("y", "span")}
    lists = {"chosen": ((TOKENS * used,), "int32"), "shares": ((TOKENS * used,), "float32")}
    buffers = {**given, **lists, **ends}
    rows = what.dot.rows

    def body(*made: Buffer) -> None:
        named = dict(zip(buffers, made, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as item:
            token, inner = item // what.items, item % what.items
            sums = [zeros(rows) for _ in range(what.together)]
            with T.serial(used) as rank:
                place = token * used + rank
                expert = T.BufferLoad(named["chosen"], [place])
                share = held(T.BufferLoad(named["shares"], [place]))
                start = inner + expert * what.runs
                ats = [start + j * what.items for j in range(what.together)]
                for total, (found,) in zip(sums, walked(what, named, ats, place), strict=True):
                    factor = splat(T.BufferLoad(share, [0]), rows)
                    value = fma(load(found, [0], rows), factor, load(total, [0], rows), rows)
                    store(total, [0], value, rows)
            for j, total in enumerate(sums):
                target = [token, (inner + j * what.items) * rows]
                value = load(named["y"], target, rows) + load(total, [0], rows)
                store(named["y"], target, value, rows)

    return function("expert_down", buffers, body)


LATE = 4
"""Counts that are known when the experts are: items of the gates, of the results, and rows."""


def list_experts(count: int, used: int, rows: int, items: tuple[int, int]) -> tirx.PrimFunc:
    """List the pairs of each expert, in order, and jobs of so many rows.

    Args:
        count: Number of experts.
        used: by each token.
        rows: Rows of a job; what fills an expert's last one up is a copy of the first pair.
        items: Items of the gates, and of the results, of a job.

    The kernel takes ``chosen``, ``order`` (the pair of each row), ``places`` (the row of each
    pair), ``jobs`` (expert and first row), ``late`` (see ``LATE``), and ``span``, whose third
    number is that of the tokens.
    """
    buffers = {
        **dict.fromkeys(("chosen", "order", "places"), ((TOKENS * used,), "int32")),
        "jobs": ((TOKENS * 2,), "int32"),
        "late": ((LATE,), "int32"),
        "span": ((SPAN,), "int32"),
    }

    def body(chosen: Buffer, order: Buffer, places: Buffer, jobs: Buffer, *rest: Buffer) -> None:
        late, span = rest
        pairs = T.BufferLoad(span, [2]) * used
        ends, row, job = registers(count, "int32"), _whole(0), _whole(0)
        with T.serial(count) as e:
            T.buffer_store(ends, T.int32(0), [e])
        with T.serial(pairs) as pair:
            expert = _whole(T.BufferLoad(chosen, [pair]))
            T.buffer_store(ends, T.BufferLoad(ends, [expert[0]]) + 1, [expert[0]])
        with T.serial(count) as e:
            found, start, before = (
                _whole(T.BufferLoad(*place)) for place in ((ends, [e]), (row, [0]), (job, [0]))
            )
            own = _whole((found[0] + (rows - 1)) // rows)
            with T.serial(own[0]) as j:
                T.buffer_store(jobs, e, [(before[0] + j) * 2])
                T.buffer_store(jobs, start[0] + j * rows, [(before[0] + j) * 2 + 1])
            with between(found[0], own[0] * rows) as empty:
                T.buffer_store(order, T.int32(0), [start[0] + empty])
            T.buffer_store(ends, start[0], [e])
            T.buffer_store(row, start[0] + own[0] * rows, [0])
            T.buffer_store(job, before[0] + own[0], [0])
        for at, value in enumerate((job[0] * items[0], job[0] * items[1], row[0])):
            T.buffer_store(late, value, [at])
        with T.serial(pairs) as pair:
            expert = _whole(T.BufferLoad(chosen, [pair]))
            place = _whole(T.BufferLoad(ends, [expert[0]]))
            T.buffer_store(order, pair, [place[0]])
            T.buffer_store(places, place[0], [pair])
            T.buffer_store(ends, place[0] + 1, [expert[0]])

    return function("list_experts", buffers, body)


def _whole(value: Expr | int) -> Buffer:
    return held(T.int32(value) if isinstance(value, int) else value, 1, "int32")


def pair_rows(cpu: KernelCpu, columns: int, used: int, floats: bool) -> tirx.PrimFunc:
    """Copy each pair's token to its row.

    The kernel takes what a product takes of its tokens, the same of rows, ``order`` and ``span`` of
    rows.
    """
    given = {"x": ((TOKENS, columns), "float32")} if floats else rounded_buffers(columns)
    rows = {f"row_{name}": kind for name, kind in given.items()}
    order = {"order": ((TOKENS * used,), "int32")}
    buffers = {**given, **rows, **order, "span": ((SPAN,), "int32")}

    def body(*made: Buffer) -> None:
        named = dict(zip(buffers, made, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as row:
            token = _whole(T.BufferLoad(named["order"], [row]) // used)
            if floats:

                def copy(at: Expr, width: int) -> None:
                    store(named["row_x"], [row, at], load(named["x"], [token[0], at], width), width)

                sweep(cpu, columns, copy)
                return
            with T.serial(columns // STEP) as g:
                for name, width in (
                    ("words", STEP // 4),
                    ("scales", 1),
                    ("starts", 2),
                    ("sums", 2),
                ):
                    last = [0] if width > 1 else []
                    value = load(named[name], [token[0], g, *last], width)
                    store(named[f"row_{name}"], [row, g, *last], value, width)

    return function("pair_rows", buffers, body)


def listed_gate(what: Product, count: int) -> tirx.PrimFunc:
    """Gates and inputs of jobs: of ``what.width`` rows each, by an expert's matrix.

    The kernel takes the buffers of a product over all experts, ``jobs`` before ``y`` (rows, inner
    size), and ``span`` of (job, item of the product).
    """

    def one(named: dict[str, Buffer], item: Expr, expert: Expr, row: Expr) -> None:
        gated(what, named, item + expert * (2 * what.runs), row, row)

    return _listed("listed_gate", what, count, one)


def listed_down(what: Product, count: int) -> tirx.PrimFunc:
    """Results of jobs: as ``listed_gate``, with ``y`` (rows, hidden)."""

    def one(named: dict[str, Buffer], item: Expr, expert: Expr, row: Expr) -> None:
        ats = [item + expert * what.runs + j * what.items for j in range(what.together)]
        for j, totals in enumerate(walked(what, named, ats, row)):
            for column, total in enumerate(totals):
                place = [row + column, (item + j * what.items) * what.dot.rows]
                store(named["y"], place, load(total, [0], what.dot.rows), what.dot.rows)

    return _listed("listed_down", what, count, one)


def _listed(
    name: str,
    what: Product,
    count: int,
    one: Callable[[dict[str, Buffer], Expr, Expr, Expr], None],
) -> tirx.PrimFunc:
    given = buffers_of(what, count)
    ends = {n: given.pop(n) for n in ("y", "span")}
    buffers = {**given, "jobs": ((TOKENS * 2,), "int32"), **ends}

    def body(*made: Buffer) -> None:
        named = dict(zip(buffers, made, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as item:
            job = item // what.items
            expert, row = (_whole(T.BufferLoad(named["jobs"], [job * 2 + i])) for i in (0, 1))
            one(named, item % what.items, expert[0], row[0])

    return function(name, buffers, body)


def sum_experts(cpu: KernelCpu, columns: int, used: int) -> tirx.PrimFunc:
    """Add what a token's experts gave, by their shares.

    The kernel takes ``xe`` (rows, columns), ``places``, ``shares``, ``y`` (tokens, columns) and
    ``span`` of tokens.
    """
    buffers = {
        "xe": ((TOKENS, columns), "float32"),
        "places": ((TOKENS * used,), "int32"),
        "shares": ((TOKENS * used,), "float32"),
        "y": ((TOKENS, columns), "float32"),
        "span": ((SPAN,), "int32"),
    }

    def body(xe: Buffer, places: Buffer, shares: Buffer, y: Buffer, span: Buffer) -> None:
        first, end = span_of(span)
        with between(first, end) as token:

            def write(at: Expr, width: int) -> None:
                total = zeros(width)
                for rank in range(used):
                    pair = token * used + rank
                    found = load(xe, [T.BufferLoad(places, [pair]), at], width)
                    share = splat(T.BufferLoad(shares, [pair]), width)
                    store(total, [0], fma(found, share, load(total, [0], width), width), width)
                value = load(y, [token, at], width) + load(total, [0], width)
                store(y, [token, at], value, width)

            sweep(cpu, columns, write)

    return function("sum_experts", buffers, body)
