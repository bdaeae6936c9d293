"""Feed-forward parts of which each token uses a few: who is chosen, and their products.

Every pair of a token and one of its experts is worked on by itself, so that a token's bits depend
on no other. A token's experts are added in the order of their ranks.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, function, load, registers, splat, store
from edgeinfer.kernels.defs.llm.product import Product, buffers_of, gated, walked
from edgeinfer.kernels.defs.llm.steps import SPAN, TOKENS, between, fma, held, span_of, zeros

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
