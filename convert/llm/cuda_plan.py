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
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.gpu import (
    CACHES,
    MOST_FOLD,
    THREADS,
    TILE,
    WARPS,
    WIDTHS,
    eights_of,
    layer_words,
    tiles_of,
)
from edgeinfer.llm.tape import Call, Products, Rows
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

    def has_twos(self, what: Attend) -> bool:
        """Whether attention takes two tokens of a sequence at once."""
        return False

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
        squares = ("squares", _float(self.config.norm_epsilon)) if norm else (_NOTHING, "%0.0")
        arguments = (
            *(*_matrix(matrix, rows), "xs" if norm else wanted.source, places, "count"),
            *(wanted.target, f"#{wanted.width_of_target or matrix.padded}"),
            *(wanted.bias or _NOTHING, _float(wanted.cap)),
            *(*squares, *(_HANDED if epilogue == "add" else (_NOTHING,) * 3)),
        )
        calls, fold = {}, _fold(tiles, matrix.columns)
        for width in WIDTHS:
            cut = eights_of(width), tiles_of(width, tiles), fold
            made = cuda_code.product(loads(matrix.form), epilogue, *cut)
            calls[str(width)] = Call(self.entry(*made), arguments)
        items = {str(width): -(-tiles // tiles_of(width, tiles)) for width in WIDTHS}
        self.phases.append(Products(calls, items, wanted.domain))

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


def plan_cuda(config: LlmConfig, tensors: Mapping[str, Source], packer: CudaPacker) -> CudaPlan:
    """Lay a decoder out as a tape for GPUs; its weights are packed on the way."""
    made = CudaPlan(MACHINES[_HOST], config, packer, _READING, CACHES)
    lay_out(made, tensors)
    return made


def cuda_problems(config: LlmConfig, adapters: Mapping[str, Adapter]) -> Iterator[str]:
    """List what there are no kernels for."""
    if config.experts is not None:
        yield "experts: a GPU's kernels for them are not made"
    if adapters:
        yield "low-rank adapters: a GPU's kernels for them are not made"
    if config.head_dim % 16 or config.head_dim > _MOST_HEAD:
        yield f"head_dim is {config.head_dim}: kernels take multiples of 16 up to {_MOST_HEAD}"
    sizes = {"hidden": config.hidden, "heads * head_dim": config.heads * config.head_dim}
    for name, size in {**sizes, "ffn": config.ffn}.items():
        if size % STEP:
            yield f"{name} is {size}: kernels take multiples of {STEP}"


_MOST_HEAD = 256


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
