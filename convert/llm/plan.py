"""A decoder as a tape: which kernels it needs, its weights packed, its phases in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from edgeinfer.convert.llm.adapters import Adapter
from edgeinfer.convert.llm.blocks import Integers, StoredTensor
from edgeinfer.convert.llm.pack import Matrix, Packer, joined
from edgeinfer.convert.llm.reading import Reading, reading_of
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.errors import UsageError
from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.kernels.defs.gemv import DOTS
from edgeinfer.kernels.defs.llm.cache import Pages
from edgeinfer.kernels.defs.llm.form import STEP, Form
from edgeinfer.kernels.defs.llm.heads import Attend
from edgeinfer.kernels.defs.llm.product import Epilogue, Product
from edgeinfer.llm import LlmConfig, tape
from edgeinfer.llm.tape import Adapted, Attention, Call, Counted, Phase, Products, Routed, Rows
from edgeinfer.records import dataclass

CACHES = ("float16", "uint8", "uint4")

Source = StoredTensor | Integers

_JOB = 8
"""Rows of an expert that are multiplied at once, at most: more would mostly be filled up."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is needed.

    Attributes:
        name: in the library.
        maker: name of the function that writes it, see ``convert.llm.compiled``.
        values: that the function is given.
    """

    name: str
    maker: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A product that a tape gets.

    Attributes:
        matrix: Its weights.
        source: Array that holds the tokens.
        target: Array that takes the result.
        epilogue: What becomes of it.
        norm: Norm of the tokens before; empty for none.
        width_of_target: Elements of a row of the result; 0 for those of the weights.
        bias: Name of one; empty for none.
        domain: What is multiplied.
        cap: Limit of the results.
        shared: Whether the product before this one has the same tokens and norm.
        parts: Rows of what it consists of, by the weights' names, where adapters change it.
    """

    matrix: Matrix
    source: str
    target: str
    epilogue: Epilogue
    norm: str = ""
    width_of_target: int = 0
    bias: str = ""
    domain: Literal["tokens", "outputs"] = "tokens"
    cap: float = 0.0
    shared: bool = False
    parts: Mapping[str, int] | None = None


@dataclass(slots=True)
class TapePlan:
    """A tape in the making.

    Attributes:
        machine: that it is for.
        config: Configuration of the model.
        packer: Packer of its weights.
        reading: how products read weights.
        caches: types of caches that there is to be code for.
        kernels: by name.
        phases: in order.
        columns: sizes of rows that are rounded.
        adapters: low-rank adapters of the model, by name.
        kept: what the tape says of them.
    """

    machine: Machine
    config: LlmConfig
    packer: Packer
    reading: Reading
    caches: tuple[str, ...]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    columns: set[int] = field(default_factory=set)
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    kept: tuple[tape.Adapter, ...] = ()

    def read_by(self, reading: Reading) -> None:
        """Let products read weights otherwise."""
        self.reading = reading
        items: dict[str, int] = {}
        for name, kernel in self.kernels.items():
            if kernel.maker == "product":
                what = self._read(kernel.values[0])
                self.kernels[name] = replace(kernel, values=(what,))
                items[name] = what.items
        for at, phase in enumerate(self.phases):
            if isinstance(phase, Products):
                shared = {width: items[call.kernel] for width, call in phase.calls.items()}
                adapted = phase.adapted
                if adapted is not None:
                    more = {width: items[call.kernel] for width, call in adapted.calls.items()}
                    adapted = replace(adapted, items=more)
                self.phases[at] = replace(phase, items=shared, adapted=adapted)

    def _read(self, what: Product) -> Product:
        """A product that reads weights as is fastest, whatever else it adds."""
        streams, ahead = self.reading.of(what.width, replace(what, more=False).name)
        return replace(what, streams=streams, ahead=ahead)

    def tiles(self, what: Attend) -> tuple[int, ...]:
        """Return the numbers of tokens of a sequence that attention takes at once."""
        return what.tiles(KernelCpu(self.machine.lanes, self.machine.registers))

    def kernel(self, name: str, maker: str, *values: Any) -> str:
        """Ask for a kernel; returns its name."""
        made = Kernel(name, maker, values)
        if self.kernels.setdefault(name, made) != made:
            raise ValueError(f"two kernels {name}")
        return name

    def rows(
        self, maker: str, label: str, values: tuple[Any, ...], *arguments: str, each: int = 1
    ) -> None:
        """Add a phase over all tokens, of ``each`` items a token."""
        call = self.call(maker, label, values, *arguments)
        self.phases.append(Rows(call, "tokens", each))

    def call(self, maker: str, label: str, values: tuple[Any, ...], *arguments: str) -> Call:
        """A kernel with its arguments; ``span`` comes last."""
        name = self.kernel(f"{maker}_{label}".replace(".", "p").replace("-", "m"), maker, *values)
        return Call(name, (*arguments, "span"))

    def gather(self) -> None:
        """Take the rows whose logits are wanted."""
        size = self.config.hidden
        call = self.call("gather", f"{size}", (size,), "x", "rows", "xo")
        self.phases.append(Rows(call, "outputs"))

    def norm(self, name: str, source: str, target: str) -> Call:
        """A norm of whole rows of hidden."""
        size, epsilon = self.config.hidden, self.config.norm_epsilon
        label = f"{size}_{size}_{epsilon:g}"
        return self.call("norm", label, (size, size, epsilon), source, name, target)

    def product(self, wanted: Multiplied) -> None:
        """Add a product."""
        matrix, source, target, norm = wanted.matrix, wanted.source, wanted.target, wanted.norm
        bias, parts = wanted.bias, wanted.parts
        dot, form, columns = self.packer.dot, matrix.form, matrix.columns
        before, given = self.before(form, columns, source, norm)
        wide = wanted.width_of_target or matrix.padded
        sizes = (dot, form, matrix.padded, columns, 1, wanted.epilogue, wide)
        what = Product(*sizes, bias=bool(bias), cap=wanted.cap)
        arguments = (*matrix.arguments, *((bias,) if bias else ()), *given)
        calls, items = self._of_widths(what, *arguments, target, "span")
        adapted = None
        if parts and self.is_adapted(parts):
            normed = f"n{columns}" if norm else source
            adapted = Adapted(dict(parts), columns, normed, target, wide, {}, {})
            if what.gated:
                own = self._of_widths(replace(what, more=True), *arguments, "more", target, "span")
                adapted = Adapted(dict(parts), columns, normed, "more", matrix.padded, *own)
        made = Products(calls, items, wanted.domain, before, wanted.shared, adapted)
        self.phases.append(made)

    def is_adapted(self, parts: Mapping[str, int]) -> bool:
        """Whether some adapter changes one of these matrices."""
        return any(name in parts for adapter in self.adapters.values() for name in adapter)

    def _of_widths(self, what: Product, *arguments: str) -> tuple[dict[str, Call], dict[str, int]]:
        """Calls of a product and their items, by the tokens that they take at once."""
        calls, items = {}, {}
        for width in self.reading.widths:
            made = self._read(replace(what, width=width))
            calls[str(width)] = Call(self.kernel(made.name, "product", made), arguments)
            items[str(width)] = made.items
        return calls, items

    def route(self, padded: int) -> None:
        """Choose experts by a router's scores, of which rows have so many."""
        experts = self.config.experts
        if experts is None:
            raise TypeError("the model has no experts")
        count, used = experts.count, experts.used
        label, sizes = f"{count}_{used}_{experts.normalised:d}", (count, padded, used)
        values = (*sizes, experts.normalised)
        self.rows("route", label, values, "router", "chosen", "shares")

    def experts(self, gates: Matrix, downs: Matrix, norm: str) -> None:
        """Add the products of the experts that were chosen: gates above inputs, and results."""
        config, experts = self.config, self.config.experts
        if experts is None:
            raise TypeError("the model has no experts")
        before, given = self.before(gates.form, config.hidden, "x", norm)
        if before is not None:
            self.phases.append(Rows(before, "tokens"))
        gate = self._of_experts(gates.form, 2 * experts.ffn, config.hidden, config.activation)
        down = self._of_experts(downs.form, config.hidden, experts.ffn, "add")
        middle, inner = self.before(downs.form, experts.ffn, "he", "")
        gated, added = (*gates.arguments, *given), (*downs.arguments, *inner)
        alone = self._alone(gate, down, gated, added, middle)
        width = max(w for w in self.reading.widths if w <= _JOB)
        streams, ahead = self.reading.of(width)
        gate, down = (replace(p, width=width, streams=streams, ahead=ahead) for p in (gate, down))
        listed = self._listed(gate, down, (gates, downs), given, (middle, inner))
        self.phases.append(Routed(alone, listed, width))

    def _of_experts(self, form: Form, rows: int, columns: int, epilogue: Epilogue) -> Product:
        """One expert's product of one token."""
        streams, ahead = self.reading.of(1)
        target = rows if epilogue == "add" else rows // 2
        sizes = (self.packer.dot, form, rows, columns, 1, epilogue, target)
        return Product(*sizes, streams=streams, ahead=ahead)

    def _alone(
        self,
        gate: Product,
        down: Product,
        gated: tuple[str, ...],
        added: tuple[str, ...],
        middle: Call | None,
    ) -> tuple[Rows, ...]:
        """Phases in which every pair of a token and an expert is worked on by itself."""
        count, used = self._chosen
        end = f"{count}_{used}"
        call = self.call(
            "expert_gate", f"{gate.name}_{end}", (gate, count, used), *gated, "chosen", "he"
        )
        made = [Rows(call, "tokens", used * gate.items)]
        if middle is not None:
            made.append(Rows(middle, "tokens", used))
        label, values = f"{down.name}_{end}", (down, count, used)
        call = self.call("expert_down", label, values, *added, "chosen", "shares", "x")
        return (*made, Rows(call, "tokens", down.items))

    def _listed(
        self,
        gate: Product,
        down: Product,
        matrices: tuple[Matrix, Matrix],
        given: tuple[str, ...],
        rounded: tuple[Call | None, tuple[str, ...]],
    ) -> tuple[Rows | Counted, ...]:
        """Phases in which the pairs of an expert lie together."""
        (count, used), columns, (middle, inner) = self._chosen, gate.columns, rounded
        items = gate.items, down.items
        label = f"{count}_{used}_{gate.width}_{items[0]}_{items[1]}"
        values = (count, used, gate.width, items)
        lists = ("chosen", "order", "places", "jobs", "late")
        made: list[Rows | Counted] = [
            Rows(self.call("list_experts", label, values, *lists), "step")
        ]
        rows = tuple(f"p{name}" for name in given)
        label, floats = f"{columns}_{used}_{gate.form.floats}", bool(gate.form.floats)
        call = self.call("pair_rows", label, (columns, used, floats), *given, *rows, "order")
        made.append(Counted(call, 2, _JOB))
        gates, downs = (m.arguments for m in matrices)
        label = f"{gate.name}_{count}"
        call = self.call("listed_gate", label, (gate, count), *gates, *rows, "jobs", "he")
        made.append(Counted(call, 0, gate.items))
        if middle is not None:
            made.append(Counted(middle, 2, _JOB))
        label = f"{down.name}_{count}"
        call = self.call("listed_down", label, (down, count), *downs, *inner, "jobs", "xe")
        made.append(Counted(call, 1, down.items))
        hidden = self.config.hidden
        call = self.call(
            *("sum_experts", f"{hidden}_{used}", (hidden, used)), "xe", "places", "shares", "x"
        )
        return (*made, Rows(call, "tokens"))

    @property
    def _chosen(self) -> tuple[int, int]:
        """Experts, and how many each token uses."""
        experts = self.config.experts
        if experts is None:
            raise TypeError("the model has no experts")
        return experts.count, experts.used

    def keep_adapters(self) -> None:
        """Put the adapters behind the weights, in the order in which they are read."""
        products = [p.adapted.parts for p in self.phases if isinstance(p, Products) and p.adapted]
        for at, (name, adapter) in enumerate(self.adapters.items()):
            kept: dict[str, tape.PackedLowRank] = {}
            for parts in products:
                pairs = {of: adapter[of] for of in parts if of in adapter}
                kept |= self.packer.low_ranks(f"adapter.{at}", pairs)
            self.kept += (tape.Adapter(name, kept),)

    def before(
        self, form: Form, columns: int, source: str, norm: str
    ) -> tuple[Call | None, tuple[str, ...]]:
        """What makes a product's vectors, and their names."""
        epsilon = self.config.norm_epsilon
        if form.floats:
            if not norm:
                return None, (source,)
            self.columns.add(columns)
            return self.norm(norm, source, f"n{columns}"), (f"n{columns}",)
        self.columns.add(columns)
        parts = tuple(f"r{columns}.{p}" for p in ("words", "scales", "starts", "sums"))
        if norm:
            label, values = f"{columns}_{epsilon:g}", (columns, epsilon)
            call = self.call("norm_round", label, values, source, norm, *parts, f"n{columns}")
        else:
            call = self.call("norm_round", f"{columns}", (columns, None), source, *parts)
        return call, parts


def plan(
    config: LlmConfig,
    tensors: Mapping[str, Source],
    machine: Machine,
    packer: Packer,
    *,
    reading: Reading | None = None,
    caches: tuple[str, ...] = CACHES,
    adapters: Mapping[str, Adapter] | None = None,
) -> TapePlan:
    """Lay a decoder out as a tape; its weights are packed on the way.

    Args:
        config: Configuration of the decoder.
        tensors: its weights.
        machine: that the tape is for.
        packer: Packer of the weights.
        reading: how products read weights; None for the machine's.
        caches: types of caches that there is to be code for, the usual one first; 4 bits where
            heads are multiples of 32.
        adapters: low-rank adapters, by name.
    """
    if config.head_dim % 32:
        caches = tuple(kind for kind in caches if kind != "uint4")
    made = TapePlan(machine, config, packer, reading or reading_of(packer.dot), caches)
    made.adapters = adapters or {}
    lay_out(made, tensors)
    return made


def lay_out(made: TapePlan, tensors: Mapping[str, Source]) -> None:
    """Add all phases of a decoder; its weights are packed on the way."""
    config, packer = made.config, made.packer
    embedding = packer.matrix("token_embd", [tensors["token_embd"]])
    label = f"{embedding.form.label}_{embedding.padded}x{embedding.columns}"
    factor = config.embedding_scale
    values = (packer.dot, embedding.form, embedding.padded, embedding.columns, factor)
    made.rows("embed", f"{label}_{factor:g}", values, *embedding.arguments, "tokens", "x")
    for layer in range(config.layers):
        _attention(made, tensors, layer)
        _feed_forward(made, tensors, layer)
    final = packer.vector("output_norm", _vector(tensors["output_norm"]))
    made.gather()
    head = embedding if config.tied else packer.matrix("output", [tensors["output"]])
    cap = config.logit_softcap
    made.product(Multiplied(head, "xo", "logits", "store", final, domain="outputs", cap=cap))
    made.keep_adapters()


def problems(config: LlmConfig, machine: Machine) -> list[str]:
    """List sizes that no kernel is made for."""
    found = []
    if machine.name not in DOTS:
        found.append(f"machine {machine.name!r}: no kernels of language models are made for it")
        return found
    inner = config.ffn if config.experts is None else config.experts.ffn
    sizes = {"hidden": config.hidden, "heads * head_dim": config.heads * config.head_dim}
    for name, size in {**sizes, "ffn": inner}.items():
        if size % STEP:
            found.append(f"{name} is {size}: kernels take multiples of {STEP}")
    if config.head_dim % 16:
        found.append(f"head_dim is {config.head_dim}: kernels take multiples of 16")
    if config.experts is not None and config.post_norms:
        found.append("experts whose result is normed: no kernels are made for it")
    return found


def _vector(value: Source) -> Any:
    if isinstance(value, Integers):
        raise TypeError("a vector of integers")
    return value.float32().reshape(-1)


def _weights(
    made: TapePlan, tensors: Mapping[str, Source], names: list[str]
) -> list[tuple[str, dict[str, Source]]]:
    """Matrices that can be one, together, by the weights' names."""
    parts = [tensors[n] for n in names]
    floats = [p for p in parts if isinstance(p, StoredTensor)]
    is_same = made.packer.same_form(floats) if len(floats) == len(parts) else not floats
    aligned = all(_rows(p) % made.packer.dot.rows == 0 for p in parts)
    if is_same and aligned:
        whole = dict(zip(names, parts, strict=True))
        return [("_".join(n.rpartition(".")[2] for n in names), whole)]
    return [(n.rpartition(".")[2], {n: p}) for n, p in zip(names, parts, strict=True)]


def _rows(part: Source) -> int:
    return part.values.shape[0] if isinstance(part, Integers) else part.shape[0]


def _attention(made: TapePlan, tensors: Mapping[str, Source], layer: int) -> None:
    config, packer, at = made.config, made.packer, f"blk.{layer}."
    norm = packer.vector(f"{at}attn_norm", _vector(tensors[f"{at}attn_norm"]))
    size, heads, kept = config.head_dim, config.heads, config.kv_heads
    whole = (heads + 2 * kept) * size
    column = 0
    groups = _weights(made, tensors, [f"{at}attn_{n}" for n in "qkv"])
    biases: Any = None
    if config.qkv_bias:
        biases = np.concatenate([_vector(tensors[f"{at}attn_{n}.bias"]) for n in "qkv"])
    for place, (name, parts) in enumerate(groups):
        matrix = packer.matrix(at + name, list(parts.values()))
        if matrix.padded != matrix.rows:
            raise UsageError(f"{at}{name}: {matrix.rows} rows are no multiple of {packer.dot.rows}")
        bias = ""
        if config.qkv_bias:
            given = biases[column : column + matrix.rows]
            bias = packer.vector(f"{at}{name}.bias", given)
        target = f"qkv@{column}" if column else "qkv"
        rows = {n: _rows(p) for n, p in parts.items()}
        wanted = Multiplied(matrix, "x", target, "store", norm, whole, bias, parts=rows)
        made.product(replace(wanted, shared=place > 0))
        column += matrix.rows
    if config.qk_norm_rows:
        for name, start, count in (("q", 0, heads * size), ("k", heads * size, kept * size)):
            weight = packer.vector(
                f"{at}attn_{name}_norm", _vector(tensors[f"{at}attn_{name}_norm"])
            )
            where = f"qkv@{start}" if start else "qkv"
            epsilon = config.norm_epsilon
            label = f"{count}_{whole}_{epsilon:g}"
            made.rows("norm", label, (count, whole, epsilon), where, weight, where)
    _attend(made, tensors, layer)
    output = packer.matrix(f"{at}attn_output", [tensors[f"{at}attn_output"]])
    _add(made, tensors, output, "att", f"{at}post_attention_norm")


def _attend(made: TapePlan, tensors: Mapping[str, Source], layer: int) -> None:
    config, at = made.config, f"blk.{layer}."
    rope = config.layer_rope[layer]
    rotated = 2 * len(config.ropes[rope].frequencies) if rope >= 0 else 0
    norms: tuple[str, ...] = ()
    if config.qk_norm:
        norms = tuple(
            made.packer.vector(f"{at}attn_{n}_norm", _vector(tensors[f"{at}attn_{n}_norm"]))
            for n in "qk"
        )
    tables = (f"cos{rope}", f"sin{rope}") if rotated else ()
    common = ("qkv", *tables, *norms, "positions", "owner", "table", "cache")
    fused, turns, tiles = {}, {}, {}
    for kind in made.caches:
        what = Attend(
            *(Pages(config.kv_heads, config.head_dim, kind), config.heads),
            *(config.attention_scale, config.windows[layer], config.attention_softcap, rotated),
            config.norm_epsilon if config.qk_norm else None,
        )
        turns[kind] = made.call("turn", what.label, (what,), *common)
        fused[kind] = made.call("fused", what.label, (what,), *common, "tiles1", "att")
        for n in made.tiles(what):
            given = (*common, f"tiles{n}", "att")
            tiles[f"{kind} {n}"] = made.call(f"attend{n}", what.label, (what,), *given)
    made.phases.append(Attention(layer, fused, turns, tiles))


def _feed_forward(made: TapePlan, tensors: Mapping[str, Source], layer: int) -> None:
    config, packer, at = made.config, made.packer, f"blk.{layer}."
    norm = packer.vector(f"{at}ffn_norm", _vector(tensors[f"{at}ffn_norm"]))
    if config.experts is not None:
        _experts(made, tensors, at, norm)
        return
    groups = _weights(made, tensors, [f"{at}ffn_gate", f"{at}ffn_up"])
    if len(groups) > 1:
        raise UsageError(f"layer {layer}: gate and input have different types of weights")
    parts = groups[0][1]
    inner = packer.matrix(at + groups[0][0], list(parts.values()))
    rows = {n: _rows(p) for n, p in parts.items()}
    made.product(Multiplied(inner, "x", "h", config.activation, norm, config.ffn, parts=rows))
    down = packer.matrix(f"{at}ffn_down", [tensors[f"{at}ffn_down"]])
    _add(made, tensors, down, "h", f"{at}post_ffw_norm")


def _experts(made: TapePlan, tensors: Mapping[str, Source], at: str, norm: str) -> None:
    """A router, and the products of whom it chooses."""
    packer, experts = made.packer, made.config.experts
    if experts is None:
        raise TypeError("the model has no experts")
    router = packer.matrix(f"{at}ffn_gate_inp", [tensors[f"{at}ffn_gate_inp"]])
    made.product(Multiplied(router, "x", "router", "store", norm))
    made.route(router.padded)
    gates, ups = tensors[f"{at}ffn_gate_exps"], tensors[f"{at}ffn_up_exps"]
    both = packer.matrix(f"{at}ffn_gate_up_exps", [stacked(gates, ups, experts.count)])
    downs = packer.matrix(f"{at}ffn_down_exps", [_flat(tensors[f"{at}ffn_down_exps"])])
    made.experts(both, downs, norm)


def _flat(value: Source) -> Source:
    """Experts' matrices, one below the other."""
    if isinstance(value, Integers) or len(value.shape) == 2:
        return value
    data = value.data.reshape(-1, value.data.shape[-1])
    return StoredTensor(value.kind, (data.shape[0], value.shape[-1]), data)


def stacked(gates: Source, ups: Source, count: int) -> Source:
    """Of each expert its gates above its inputs.

    Raises:
        UsageError: they have different types of weights.
    """
    one, two = _flat(gates), _flat(ups)
    rows = _rows(one) // count
    order = np.arange(2 * count * rows).reshape(2, count, rows).swapaxes(0, 1).reshape(-1)
    if isinstance(one, Integers) and isinstance(two, Integers):
        return joined([one, two]).rows(order)
    if isinstance(one, StoredTensor) and isinstance(two, StoredTensor) and one.kind == two.kind:
        data = np.concatenate([one.data, two.data])[order]
        return StoredTensor(one.kind, (len(data), one.shape[-1]), data)
    raise UsageError("gates and inputs of experts have different types of weights")


def _add(
    made: TapePlan, tensors: Mapping[str, Source], matrix: Matrix, source: str, norm: str
) -> None:
    """A product that is added to ``x``, with a norm between where the family has one."""
    config, parts = made.config, {matrix.name: matrix.rows}
    if matrix.padded != matrix.rows:
        raise UsageError(
            f"{matrix.name}: {matrix.rows} rows are no multiple of {made.packer.dot.rows}"
        )
    if not config.post_norms:
        made.product(Multiplied(matrix, source, "x", "add", parts=parts))
        return
    made.product(Multiplied(matrix, source, "t", "store", parts=parts))
    weight = made.packer.vector(norm, _vector(tensors[norm]))
    size, epsilon = config.hidden, config.norm_epsilon
    made.rows("norm_add", f"{size}_{epsilon:g}", (size, epsilon), "t", weight, "x")
