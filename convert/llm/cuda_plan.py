"""A decoder as a tape for NVIDIA GPUs: the order of phases is that of any tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from edgeinfer.convert.llm import cuda_code
from edgeinfer.convert.llm.adapters import Adapter
from edgeinfer.convert.llm.cuda_pack import CudaPacker, loads
from edgeinfer.convert.llm.pack import Matrix
from edgeinfer.convert.llm.plan import Multiplied, Source, TapePlan, lay_out
from edgeinfer.convert.llm.reading import Reading
from edgeinfer.convert.lower.tvm.machines import MACHINES
from edgeinfer.kernels.defs.llm.form import STEP
from edgeinfer.kernels.defs.llm.heads import Attend
from edgeinfer.llm import Experts, LlmConfig
from edgeinfer.llm.gpu import (
    CACHES,
    MOST_FOLD,
    ROUTED_WIDTHS,
    THREADS,
    TILE,
    WARPS,
    WIDTHS,
    eights_of,
    layer_words,
    tiles_of,
)
from edgeinfer.llm.tape import Adapted, Call, Products, Rows
from edgeinfer.records import dataclass

_NOTHING = "#0"
_HOST = "sm_90"
"""No kernel of a tape for GPUs runs on a CPU, so it does not matter which."""
_READING = Reading(WIDTHS, (1,) * len(WIDTHS), (0,) * len(WIDTHS))


@dataclass(slots=True)
class CudaPlan(TapePlan):
    """A tape for GPUs in the making.

    Attributes:
        entries: Texts of kernels, by name; those that every model has are none.
        threads: Threads of their blocks, likewise.
    """

    entries: dict[str, str] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)

    def tiles(self, what: Attend) -> tuple[int, ...]:
        """Attention takes one token at once here."""
        return (1,)

    def call(self, maker: str, label: str, values: tuple[Any, ...], *arguments: str) -> Call:
        """A kernel with its arguments, in the order in which ``step.cu`` has them."""
        return _MAKERS[maker](self, values, *arguments)

    def gather(self) -> None:
        """The head finds the rows whose logits are wanted by itself."""

    def product(self, wanted: Multiplied) -> None:
        """Add a product."""
        matrix, norm, epilogue = wanted.matrix, wanted.norm, wanted.epilogue
        gated = epilogue not in ("store", "add")
        rows = matrix.rows // 2 if gated else matrix.rows
        tiles = matrix.padded // TILE // (2 if gated else 1)
        places = "rows" if wanted.domain == "outputs" else _NOTHING
        if norm:
            self._hand_on(norm)
        source = "xs" if norm else wanted.source
        adapted, more = None, (_NOTHING,) * 3
        if wanted.parts and self.is_adapted(wanted.parts):
            parts = dict(wanted.parts)
            adapted = Adapted(parts, matrix.columns, source, "more", matrix.padded, {}, {})
            more = ("more", f"#{matrix.padded}", "adapter")
        arguments = (
            *(*_matrix(matrix, rows), source, places, "count"),
            *(wanted.target, f"#{wanted.width_of_target or matrix.padded}"),
            *(wanted.bias or _NOTHING, _float(wanted.cap), *self._squares(norm)),
            *(*(_HANDED if epilogue == "add" else (_NOTHING,) * 3), *more, "#1"),
        )
        calls, fold = {}, _fold(tiles, matrix.columns)
        for width in WIDTHS:
            cut = eights_of(width), tiles_of(width, tiles), fold
            made = cuda_code.product(loads(matrix.form), epilogue, *cut)
            calls[str(width)] = Call(self.entry(*made), arguments)
        items = {str(width): -(-tiles // tiles_of(width, tiles)) for width in WIDTHS}
        self.phases.append(Products(calls, items, wanted.domain, adapted=adapted))

    def _squares(self, norm: str) -> tuple[str, str]:
        """Squares of tokens that are normed, and the norm's epsilon."""
        return ("squares", _float(self.config.norm_epsilon)) if norm else (_NOTHING, "%0.0")

    def route(self, padded: int) -> None:
        """Choose experts by a router's scores, of which rows have so many."""
        experts = _experts_of(self.config)
        jobs = tuple(f"jobs{width}" for width in ROUTED_WIDTHS)
        sizes = (experts.count, padded, experts.used, int(experts.normalised))
        arrays = ("router", "count", "chosen", "shares", "order", *jobs)
        self.threads["route"] = _ROUTING
        call = Call("route", (*arrays, *(f"#{size}" for size in sizes)))
        self.phases.append(Rows(call, "step"))

    def experts(self, gates: Matrix, downs: Matrix, norm: str) -> None:
        """Add the products of the experts that were chosen: gates above inputs, and results."""
        config, experts = self.config, _experts_of(self.config)
        inner, size, squares = experts.ffn, config.hidden, self._squares(norm)
        self._routed(gates, inner, config.activation, ("xs", "he"), squares, experts.used)
        self._routed(downs, size, "store", ("he", "xe"), self._squares(""), 1)
        sizes = (f"#{size}", f"#{experts.used}")
        call = Call("sum_experts", ("xe", "shares", "x", "count", *sizes, *_HANDED))
        self.phases.append(Rows(call, "tokens"))

    def _routed(
        self,
        matrix: Matrix,
        rows: int,
        epilogue: str,
        arrays: tuple[str, str],
        squares: tuple[str, str],
        used: int,
    ) -> None:
        """Multiply each pair of a token and an expert by the expert's matrix.

        Args:
            matrix: Matrix of all experts, one below the other.
            rows: Rows of the result.
            epilogue: What becomes of the sums.
            arrays: What is multiplied, and the result.
            squares: Squares of tokens that are normed, and an epsilon.
            used: Pairs of a row of the first array.
        """
        source, target = arrays
        calls, tiles = {}, rows // TILE
        fold = _fold(tiles * _experts_of(self.config).used, matrix.columns)
        nothing = (_NOTHING,) * 6
        for width in ROUTED_WIDTHS:
            made = cuda_code.product(loads(matrix.form), epilogue, width, 1, fold, is_routed=True)
            arguments = (
                *(*_matrix(matrix, rows), source, "order", f"jobs{width}", target, f"#{rows}"),
                *(_NOTHING, "%0.0", *squares, *nothing, f"#{used}"),
            )
            calls[str(width)] = Call(self.entry(*made), arguments)
        self.phases.append(Products(calls, dict.fromkeys(calls, tiles), "pairs"))

    def entry(self, name: str, text: str, threads: int = THREADS) -> str:
        """Ask for a kernel; returns its name."""
        self.entries[name], self.threads[name] = text, threads
        return name

    def _hand_on(self, norm: str) -> None:
        """Tell who wrote ``x`` last which norm comes next."""
        for at in reversed(range(len(self.phases))):
            phase = self.phases[at]
            if isinstance(phase, Rows):
                phase = replace(phase, call=_with_norm(phase.call, norm))
            elif isinstance(phase, Products):
                calls = {width: _with_norm(call, norm) for width, call in phase.calls.items()}
                phase = replace(phase, calls=calls)
            if phase != self.phases[at]:
                self.phases[at] = phase
                return


_NEXT = "next"
_HANDED = (_NEXT, "xs", "squares")
"""What a kernel is given that leaves a row of ``x`` ready for the next product: the norm that comes
there, the row times its factors, and the sums of its squares."""

_MOST_WARPS, _LEAST_CHUNKS = 132 * 16, 4


def _with_norm(call: Call, norm: str) -> Call:
    return Call(call.kernel, tuple(norm if a == _NEXT else a for a in call.arguments))


def _fold(tiles: int, columns: int) -> int:
    """Eights of slices that columns are cut into: for enough warps with enough columns each."""
    fold = 1
    while fold < MOST_FOLD:
        few = tiles * WARPS * fold < _MOST_WARPS
        if not few or columns // STEP <= WARPS * fold * _LEAST_CHUNKS:
            break
        fold *= 2
    return fold


def plan_cuda(
    config: LlmConfig,
    tensors: Mapping[str, Source],
    packer: CudaPacker,
    adapters: Mapping[str, Adapter] | None = None,
) -> CudaPlan:
    """Lay a decoder out as a tape for GPUs; its weights are packed on the way."""
    made = CudaPlan(MACHINES[_HOST], config, packer, _READING, CACHES, adapters=adapters or {})
    lay_out(made, tensors)
    return made


def cuda_problems(config: LlmConfig) -> Iterator[str]:
    """List what there are no kernels for."""
    if config.head_dim % 16 or config.head_dim > _MOST_HEAD:
        yield f"head_dim is {config.head_dim}: kernels take multiples of 16 up to {_MOST_HEAD}"
    experts = config.experts
    inner = config.ffn if experts is None else experts.ffn
    sizes = {"hidden": config.hidden, "heads * head_dim": config.heads * config.head_dim}
    for name, size in {**sizes, "ffn": inner}.items():
        if size % STEP:
            yield f"{name} is {size}: kernels take multiples of {STEP}"
    if experts is None:
        return
    if config.post_norms:
        yield "experts whose result is normed: no kernels are made for it"
    if experts.count > MOST_EXPERTS:
        yield f"{experts.count} experts: kernels choose among up to {MOST_EXPERTS}"


_MOST_HEAD, MOST_EXPERTS = 256, 1024
_ROUTING = 1024
"""Threads of the block that chooses experts."""


def _experts_of(config: LlmConfig) -> Experts:
    if config.experts is None:
        raise TypeError("the model has no experts")
    return config.experts


def _float(value: float) -> str:
    return f"%{np.float32(value)!s}"


def _matrix(matrix: Matrix, rows: int) -> tuple[str, ...]:
    form = matrix.form
    named = dict(zip(matrix.arrays, matrix.arguments, strict=True))
    arrays = (named.get(name, _NOTHING) for name in "wsm")
    return (*arrays, f"#{form.zero}", f"#{form.group}", f"#{rows}", f"#{matrix.columns}")


def _embed(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    _, form, padded, columns, factor = values
    *arrays, tokens, target = arguments
    names = tuple(a.rpartition(".")[2] for a in arrays)
    matrix = Matrix(
        arrays[0].removeprefix("w:").rpartition(".")[0], form, padded, columns, padded, names
    )
    name = made.entry(*cuda_code.embed(loads(form)))
    given = (*_matrix(matrix, padded), tokens, "count", target, _float(factor), *_HANDED)
    return Call(name, given)


def _norm(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    size, stride, epsilon = values
    source, weight, target = arguments
    if source != target:
        raise ValueError("norms of rows are made in place")
    sizes = (f"#{size}", f"#{stride}", _float(epsilon))
    return Call("norm_rows", (source, weight, "count", *sizes))


def _norm_add(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    size, epsilon = values
    return Call("norm_add", (*arguments, "count", f"#{size}", _float(epsilon), *_HANDED))


def _turn(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    (what,) = values
    name = made.entry(*cuda_code.turn(what.pages.kind))
    arrays, sizes = _of_attention(made, what, arguments)
    return Call(name, (*arrays, *sizes, _float(what.epsilon or 0.0)))


def _attend(fused: bool) -> Callable[..., Call]:
    def make(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
        (what,) = values
        name = made.entry(*cuda_code.attend(what.pages.kind, fused))
        arrays, sizes = _of_attention(made, what, arguments)
        more = (f"#{what.window}", _float(what.scale), _float(what.cap))
        return Call(name, (*arrays, "att", *sizes, *more, _float(what.epsilon or 0.0)))

    return make


def _of_attention(
    made: CudaPlan, what: Attend, given: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arrays and sizes that all kernels of attention take."""
    tables = (given[1], given[2]) if what.rotated else (_NOTHING, _NOTHING)
    at = 3 if what.rotated else 1
    norms = (_NOTHING, _NOTHING)
    if what.epsilon is not None:
        norms = (given[at], given[at + 1])
    cache = ("qkv", "cache", "table", "positions", "owner", "count")
    pages = what.pages
    size = made.config.layers * layer_words(pages.kind, pages.heads, pages.size)
    heads = (f"#{what.heads}", f"#{pages.heads}", f"#{what.rotated}")
    return (*cache, *tables, *norms), ("columns", f"#{size}", "layer", *heads)


_MAKERS: dict[str, Callable[..., Call]] = {
    "embed": _embed,
    "norm": _norm,
    "norm_add": _norm_add,
    "turn": _turn,
    "fused": _attend(True),
    "attend1": _attend(False),
}
