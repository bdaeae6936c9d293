"""A decoder as a tape for NVIDIA GPUs: the order of phases is that of any tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from edgeinfer.convert.llm import cuda_code
from edgeinfer.convert.llm.adapters import Adapter
from edgeinfer.convert.llm.cuda_pack import CudaPacker, loads
from edgeinfer.convert.llm.pack import Matrix
from edgeinfer.convert.llm.plan import Source, TapePlan, lay_out
from edgeinfer.convert.llm.reading import Reading
from edgeinfer.convert.lower.tvm.machines import MACHINES
from edgeinfer.kernels.defs.llm.form import STEP, Form
from edgeinfer.kernels.defs.llm.heads import Attend
from edgeinfer.kernels.defs.llm.product import Epilogue
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.gpu import CACHE, TILE, WIDTHS
from edgeinfer.llm.step import PAGE
from edgeinfer.llm.tape import Call, Products
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
    """

    entries: dict[str, str] = field(default_factory=dict)

    def has_twos(self, what: Attend) -> bool:
        """Whether attention takes two tokens of a sequence at once."""
        return False

    def call(self, maker: str, label: str, values: tuple[Any, ...], *arguments: str) -> Call:
        """A kernel with its arguments, in the order in which ``step.cu`` has them."""
        return _MAKERS[maker](self, values, *arguments)

    def before(
        self, form: Form, columns: int, source: str, norm: str
    ) -> tuple[Call | None, tuple[str, ...]]:
        """What makes a product's vectors, and their names."""
        if not norm:
            return None, (source,)
        self.columns.add(columns)
        epsilon = _float(self.config.norm_epsilon)
        to = f"n{columns}"
        return Call("norm_split", (source, norm, to, "count", f"#{columns}", epsilon)), (to,)

    def product(
        self,
        matrix: Matrix,
        source: str,
        target: str,
        epilogue: Epilogue,
        *,
        norm: str = "",
        width_of_target: int = 0,
        bias: str = "",
        domain: str = "tokens",
        cap: float = 0.0,
        shared: bool = False,
        parts: Mapping[str, int] | None = None,
    ) -> None:
        """Add a product; see ``TapePlan.product``."""
        before, (given,) = self.before(matrix.form, matrix.columns, source, norm)
        wide = width_of_target or matrix.padded
        gated = epilogue not in ("store", "add")
        rows = matrix.rows // 2 if gated else matrix.rows
        end = (given, "count", target, f"#{wide}", bias or _NOTHING, _float(cap))
        calls, items = {}, {}
        for width in WIDTHS:
            name, text = cuda_code.product(loads(matrix.form), width, epilogue)
            self.entries[name] = text
            calls[str(width)] = Call(name, (*_matrix(matrix, rows), *end))
            items[str(width)] = matrix.padded // TILE // (2 if gated else 1)
        self.phases.append(
            Products(calls, items, domain, before, shared)  # type: ignore[arg-type]
        )


def plan_cuda(
    config: LlmConfig, tensors: Mapping[str, Source], packer: CudaPacker
) -> CudaPlan:
    """Lay a decoder out as a tape for GPUs; its weights are packed on the way."""
    made = CudaPlan(MACHINES[_HOST], config, packer, _READING, (CACHE,))
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
    matrix = Matrix(arrays[0].removeprefix("w:").rpartition(".")[0], form, padded, columns, padded, names)
    name, text = cuda_code.embed(loads(form))
    made.entries[name] = text
    return Call(name, (*_matrix(matrix, padded), tokens, "count", target, _float(factor)))


def _norm(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    size, stride, epsilon = values
    source, weight, target = arguments
    if source != target:
        raise ValueError("norms of rows are made in place")
    sizes = (f"#{size}", f"#{stride}", _float(epsilon))
    return Call("norm_rows", (source, weight, "count", *sizes))


def _norm_add(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    size, epsilon = values
    return Call("norm_add", (*arguments, "count", f"#{size}", _float(epsilon)))


def _gather(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
    return Call("gather", (*arguments, "count", f"#{values[0]}"))


def _attention(kernel: str) -> Callable[..., Call]:
    def make(made: CudaPlan, values: tuple[Any, ...], *arguments: str) -> Call:
        (what,) = values
        given = list(arguments)
        tables = (given[1], given[2]) if what.turned else (_NOTHING, _NOTHING)
        at = 3 if what.turned else 1
        norms = (_NOTHING, _NOTHING)
        if what.epsilon is not None:
            norms = (given[at], given[at + 1])
        cache = ("qkv", "cache", "table", "positions", "owner", "count")
        if kernel != "turn_all":
            name, text = cuda_code.attend(kernel == "attend_fused")
            made.entries[name] = text
        page = made.config.layers * 2 * what.pages.heads * PAGE * what.pages.size
        sizes = ("columns", f"#{page}", "layer", f"#{what.heads}", f"#{what.pages.heads}")
        epsilon = _float(what.epsilon or 0.0)
        if kernel == "turn_all":
            return Call(kernel, (*cache, *tables, *norms, *sizes, f"#{what.turned}", epsilon))
        more = (f"#{what.turned}", f"#{what.window}", _float(what.scale), _float(what.cap))
        return Call(kernel, (*cache, *tables, *norms, "att", *sizes, *more, epsilon))

    return make


_MAKERS: dict[str, Callable[..., Call]] = {
    "embed": _embed,
    "norm": _norm,
    "norm_add": _norm_add,
    "gather": _gather,
    "turn": _attention("turn_all"),
    "fused": _attention("attend_fused"),
    "attend1": _attention("attend_turned"),
}
