"""Attention of a ragged batch over pages, and what comes before it: norms, turns, appending.

``passes.py`` walks over the pages of a sequence.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, splat, store
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm.cache import PAGE, TABLE, append
from edgeinfer.kernels.defs.llm.heads import POSITIONS, Attend, page_of
from edgeinfer.kernels.defs.llm.passes import FloatPass, IntegerPass, ask_first
from edgeinfer.kernels.defs.llm.rounding import inverse_root
from edgeinfer.kernels.defs.llm.steps import SPAN, TOKENS, between, fma, held, span_of
from edgeinfer.kernels.defs.rows import sweep


def _common(what: Attend) -> dict[str, tuple[tuple[int, ...], str]]:
    pages = what.pages
    made: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((TOKENS, what.heads + 2 * pages.heads, pages.size), "float32")
    }
    if what.rotated:
        half = what.rotated // 2
        made |= dict.fromkeys(("cos", "sin"), ((POSITIONS, half), "float32"))
    if what.epsilon is not None:
        made |= dict.fromkeys(("qn", "kn"), ((pages.size,), "float32"))
    made |= dict.fromkeys(("positions", "owner"), ((TOKENS,), "int32"))
    return {**made, "table": ((TABLE,), "int32"), **pages.buffers()}


def turn(cpu: KernelCpu, what: Attend) -> tirx.PrimFunc:
    """Norm and turn queries and keys, and append keys and values to the cache.

    The kernel takes ``q`` (tokens, heads, size; behind the queries keys and values), ``cos`` and
    ``sin`` (positions, rotated / 2), norms ``qn``, ``kn``, ``positions`` and ``owner`` of tokens,
    ``table``, the cache and ``span`` of tokens; its fourth number is the length of a table's row.
    """
    buffers = {**_common(what), "span": ((SPAN,), "int32")}

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as token:
            with T.serial(what.heads) as head:
                _ready(cpu, what, named, token, head, "qn")
            with T.serial(what.pages.heads) as head:
                _ready(cpu, what, named, token, what.heads + head, "kn")
                _append_both(what, named, token, head)

    return function("turn", buffers, body)


def _append_both(what: Attend, named: dict[str, Buffer], token: Expr, head: Expr) -> None:
    pages = what.pages
    position = T.BufferLoad(named["positions"], [token])
    page = page_of(named, T.BufferLoad(named["owner"], [token]), position // PAGE)
    for which, base in ((0, what.heads), (1, what.heads + pages.heads)):
        append(pages, named, which, (token, base + head), (page, head, position % PAGE))


def _ready(
    cpu: KernelCpu, what: Attend, named: dict[str, Buffer], token: Expr, head: Expr, norm: str
) -> None:
    """Norm and turn one head where it lies."""
    q, size = named["q"], what.pages.size
    if what.epsilon is not None:
        factor = inverse_root(cpu, size, what.epsilon, lambda i, n: load(q, [token, head, i], n))

        def scale(i: Expr, width: int) -> None:
            value = load(q, [token, head, i], width) * splat(T.BufferLoad(factor, [0]), width)
            store(q, [token, head, i], value * load(named[norm], [i], width), width)

        sweep(cpu, size, scale)
    if not what.rotated:
        return
    half, position = what.rotated // 2, T.BufferLoad(named["positions"], [token])

    def pair(i: Expr, width: int) -> None:
        a = held(load(q, [token, head, i], width), width)
        b = held(load(q, [token, head, i + half], width), width)
        c = held(load(named["cos"], [position, i], width), width)
        s = held(load(named["sin"], [position, i], width), width)
        one, two, cos, sin = (load(v, [0], width) for v in (a, b, c, s))
        less = splat(T.float32(0), width) - two
        store(q, [token, head, i], fma(less, sin, one * cos, width), width)
        store(q, [token, head, i + half], fma(one, sin, two * cos, width), width)

    sweep(cpu, half, pair)


def attend(cpu: KernelCpu, dot: Dot, what: Attend, tile: int, *, fused: bool) -> tirx.PrimFunc:
    """Attend each token of a batch to its sequence.

    The kernel takes what ``turn`` takes, ``tiles`` (the first token of each tile of ``tile``
    neighbours of one sequence) and ``out`` (tokens, heads, size) before ``span``, whose items are
    (tile, head of keys).

    Args:
        cpu: that it is for.
        dot: Product of the processor.
        what: Description of the attention.
        tile: tokens of an item.
        fused: it does the work of ``turn`` first; for batches in which each token is its
            sequence's only one.
    """
    pages = what.pages
    buffers = {
        **_common(what),
        "tiles": ((TOKENS,), "int32"),
        "out": ((TOKENS, what.heads, pages.size), "float32"),
        "span": ((SPAN,), "int32"),
    }
    group, together = what.heads // pages.heads, what.together(cpu)

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as item:
            head = item % pages.heads
            token = T.BufferLoad(named["tiles"], [item // pages.heads])
            if fused:
                ask_first(what, named, head, token)
                with T.serial(group) as h:
                    _ready(cpu, what, named, token, head * group + h, "qn")
                _ready(cpu, what, named, token, what.heads + head, "kn")
                _append_both(what, named, token, head)
            with T.serial(group // together) as part:
                base = head * group + part * together
                rows = [(t, base + h) for t in range(tile) for h in range(together)]
                kind = IntegerPass if pages.quantized else FloatPass
                kind(cpu, dot, what, named, head, token, rows).write()

    return function("attend", buffers, body)
