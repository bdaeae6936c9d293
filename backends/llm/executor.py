"""Runs a model's tape of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.llm.adapters import ARGUMENTS, AdaptedPhases, arrays_of
from edgeinfer.backends.llm.arrays import BEST, SLACK, Arrays, aligned, map_weights, together
from edgeinfer.backends.llm.batch import USUAL, Taker
from edgeinfer.backends.llm.sizes import ExecutorSizes, TapeExecutor
from edgeinfer.backends.llm.team import PHASE, TILES, Team, ask_for_tiles
from edgeinfer.backends.tvm import library as tvm_library
from edgeinfer.errors import ClosedError, InputError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.step import Bytes, Floats, Ints, StepBatch
from edgeinfer.llm.tape import Adapted, Attention, Call, Counted, Products, Routed, Rows, Tape
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.device import DeviceKind
from edgeinfer.records import dataclass
from edgeinfer.types import Array

COSTS = {1: 1.0, 2: 1.2, 3: 1.45, 4: 1.8, 6: 2.6, 8: 3.3, 16: 4.9}
"""Time of a product by the tokens that it takes at once; of one token it is 1. Of 16 it is that of
AMX tiles, which no other machine has kernels of."""


_OFTEN = 4
"""Uses of a matrix from which on its rows are shared out one by one or nearly so."""

_SMALL, _LONG = 2, 64
"""Tokens of a tile that any number of tokens is cut into, and how many there are where larger tiles
are used, too: of a few tokens there would be too few items for all threads."""

_LISTED = 2
"""Pairs for each expert from which on they are listed."""

_OF_ADAPTERS = ("adapters_low", "adapters_high")


@dataclass(frozen=True, slots=True)
class _Key:
    """What decides how a tape is laid out; counts are filled in."""

    width: int
    out_width: int
    fused: bool
    one: bool
    one_out: bool
    adapted: bool
    listed: bool


@dataclass(slots=True)
class _Laid:
    """A tape for the library, and where counts go.

    Attributes:
        phases: Phases of ``PHASE``.
        address: Address of these.
        rows: Offsets of phases over tokens; ``outputs`` likewise.
        each: items of every token, of ``rows``.
        adapted: Offsets of phases of adapters.
        steps: Offsets of phases of one item, which take the number of tokens.
        filled: counts that were filled in last.
        products: Offsets of products over tokens; ``out_products`` likewise.
        tiles: Offsets of attention by tokens of a tile.
        out_items: Output items of ``out_products``, where any row is wanted.
        shares: Chunks of ``products`` that multiply a few tokens.
    """

    phases: Array
    rows: list[int]
    outputs: list[int]
    products: list[int]
    out_products: list[int]
    tiles: dict[int, list[int]]
    out_items: Array
    shares: Array
    each: Array
    adapted: list[int]
    steps: list[int]
    address: int = 0
    filled: tuple[int, int, dict[int, int]] = (0, 0, {})


class NativeExecutor(TapeExecutor):
    """Runs a tape; see ``Executor`` for attributes and methods.

    Args:
        config: Configuration of the model.
        tape: Tape of the model.
        weights: path of the packed weights.
        library: path of the kernels.
        sizes: what there is room for.
        digest: Digest of all that the model's numbers depend on.

    Raises:
        UsageError: sizes contradict one another or the model.
        LoadError: the library is not for this processor, or files do not fit.
        NotAvailableError: memory or threads lack.
    """

    def __init__(
        self,
        config: LlmConfig,
        tape: Tape,
        weights: Path,
        library: Path,
        sizes: ExecutorSizes,
        digest: str,
    ) -> None:
        about = tvm_library.read(library)
        tvm_library.check_machine(library, about)
        if TILES in about.features:
            ask_for_tiles()
        super().__init__(config, tape, sizes, digest)
        self.device: DeviceKind = "cpu"
        self.threads = sizes.threads or available_cpus()
        self._made = self._cache(config.layers)
        self.page_bytes = sum(a[0].nbytes for layer in self._made for a in layer)
        self._job = next((p.rows for p in tape.phases if isinstance(p, Routed)), 1)
        attention = next(p for p in tape.phases if isinstance(p, Attention))
        kinds = map(str.split, attention.tiles)
        self._tile_sizes = sorted((int(n) for kind, n in kinds if kind == self.cache), reverse=True)
        self._shared = self._arrays()
        self._team = Team(library, self.threads, 32 * config.layers + 16)
        self._has_left = False
        forks.watch(self)
        spans = self._team.spans()
        self._team.set_rows(spans, self._columns)
        self._given = Arrays(
            *(tape, map_weights(weights, tape), self._shared),
            *([self._private() for _ in spans], self._made, spans),
        )
        self._adapted = AdaptedPhases(tape, self._given)
        self._laid: dict[_Key, _Laid] = {}
        self._by_counts: dict[tuple[int, int, bool, bool], _Laid] = {}
        self._views: dict[int, tuple[Floats, Ints]] = {}
        self._take = Taker(
            *(self._team.library, self._shared, self.max_tokens),
            vocab=self.vocab,
            positions=self.context,
            sequences=self.max_sequences,
            columns=self._columns,
            pages=self.pages,
            window=self.window,
            adapters=len(self.adapters),
        )
        phases = tape.phases
        self._widths = next([int(w) for w in p.calls] for p in phases if isinstance(p, Products))
        self.best: Ints | None = None
        self._closed = False

    def forked(self) -> None:
        """Note that the threads are the parent's."""
        self._has_left = True

    def _cache(self, layers: int) -> list[list[Array]]:
        """The cache by layer, as kernels declare it but for the number of pages."""
        phase = next(p for p in self._tape.phases if isinstance(p, Attention))
        declared = self._tape.kernels[phase.fused[self.cache].kernel]
        each = [
            ((self.pages, *argument.shape[1:]), argument.dtype)
            for argument in declared
            if argument.name in ("k", "v", "factors")
        ]
        arrays = together(each * layers)
        return [arrays[at : at + len(each)] for at in range(0, len(arrays), len(each))]

    def _arrays(self) -> dict[str, Array]:
        config, rows = self._config, self.max_tokens + SLACK
        side = self._tape.side
        logits = -(-config.vocab // side) * side
        heads = config.heads + 2 * config.kv_heads
        floats = {
            "x": config.hidden,
            "t": config.hidden,
            "xo": config.hidden,
            "qkv": heads * config.head_dim,
            "att": config.heads * config.head_dim,
            "h": config.ffn,
            "logits": logits,
        }
        made = {name: aligned((rows, size), "float32") for name, size in floats.items()}
        for name in ("tokens", "positions", "owner", "rows", "best"):
            made[name] = aligned((rows,), "int32")
        for size in self._tile_sizes:
            made[f"tiles{size}"] = aligned((rows,), "int32")
        made["table"] = aligned((self.max_sequences, self._columns), "int32")
        for i, rope in enumerate(config.ropes):
            for name, table in zip(("cos", "sin"), rope.tables(self.context), strict=True):
                made[f"{name}{i}"] = aligned(table.shape, "float32")
                made[f"{name}{i}"][...] = table
        experts, pairs = config.experts, rows
        if experts is not None:
            pairs = self.max_tokens * experts.used + SLACK
            pairs += experts.count * (self._job - 1)
            made["router"] = aligned((rows, -(-experts.count // side) * side), "float32")
            for name in ("chosen", "order", "places"):
                made[name] = aligned((pairs,), "int32")
            made["jobs"] = aligned((pairs // self._job + experts.count, 2), "int32")
            made["late"] = aligned((4,), "int32")
            made["shares"] = aligned((pairs,), "float32")
            made["he"] = aligned((pairs, experts.ffn), "float32")
            made["xe"] = aligned((pairs, config.hidden), "float32")
            made |= {f"p{n}": a for n, a in _rounded(config.hidden, pairs).items()}
        for columns in self._tape.columns:
            is_inner = experts is not None and columns == experts.ffn
            made |= _rounded(columns, pairs if is_inner else rows)
        return made | arrays_of(self._tape, rows, config.ffn)

    def _private(self) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for columns in self._tape.columns:
            made |= _rounded(columns, SLACK)
        return made

    def step(self, batch: StepBatch) -> Floats:
        """Compute the logits of the wanted rows and append keys and values to the cache."""
        laid = self._ready(batch)
        self._team.run(laid.address, len(laid.phases))
        count = len(batch.rows)
        if count not in self._views:
            whole, best = self._shared["logits"], self._shared["best"]
            self._views[count] = whole[:count, : self.vocab], best[:count]
        logits, self.best = self._views[count]
        return logits

    def states(self, batch: StepBatch) -> Floats:
        """Like ``step``, but return what goes into the head."""
        laid = self._ready(batch)
        # The first phase over outputs gathers their rows.
        self._team.run(laid.address, laid.outputs[0] + 1)
        x = self._shared["xo"][: len(batch.rows)]
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        weight = self._given.weight("output_norm")
        return np.asarray(x / np.sqrt(mean + np.float32(self._config.norm_epsilon)) * weight)

    @property
    def tape(self) -> Tape:
        """What it runs."""
        return self._tape

    def profile(self, batch: StepBatch, runs: int = 1) -> dict[str, float]:
        """Run a step and return the microseconds of its phases, by kernel.

        Args:
            batch: the step.
            runs: as often; the least of each phase counts, since what else a machine does only
                adds to it.
        """
        laid = self._ready(batch)
        phases = laid.phases
        least = np.full(len(phases), np.inf)
        for _ in range(runs):
            times = np.zeros(len(phases))
            self._team.run(laid.address, len(phases), times)
            np.minimum(least, times, out=least)
        names = {self._team.function(name): name for name in self._tape.kernels}
        names[self._team.best] = "best"
        if self.adapters:
            names |= {self._team.function(name, ""): name for name in _OF_ADAPTERS}
        found: dict[str, float] = {}
        for phase, time in zip(phases, least, strict=True):
            name = names[int(phase["main"])]
            found[name] = found.get(name, 0.0) + float(time)
        return found

    def _ready(self, batch: StepBatch) -> _Laid:
        if self._closed:
            raise ClosedError("the executor is closed")
        if self._has_left:
            raise ClosedError("the executor's threads did not come along into this process")
        alone = self._take(batch)
        count = len(batch.tokens)
        tiles = {1: count} if alone else self._tiles(batch.owner)
        adapted = batch.adapter is not None and int(batch.adapter.max()) >= 0
        return self._filled(count, len(batch.rows), alone, tiles, adapted)

    def _filled(
        self, count: int, outputs: int, alone: bool, tiles: dict[int, int], adapted: bool
    ) -> _Laid:
        counts = count, outputs, alone, adapted
        laid = self._by_counts.get(counts)
        if laid is not None and laid.filled == (count, outputs, tiles):
            return laid
        widths = self._width(count), self._width(outputs)
        # What adapters are multiplied by must be there before the product.
        one = count == 1 and not adapted
        key = _Key(*widths, alone, one, outputs == 1, adapted, self._is_listed(count))
        if key not in self._laid:
            self._laid[key] = self._lay(key)
        laid = self._laid[key]
        if count <= USUAL:
            self._by_counts[counts] = laid
        laid.filled = (count, outputs, tiles)
        items, chunk, extra = (laid.phases[n] for n in ("items", "chunk", "extra"))
        items[laid.rows] = laid.each * count
        chunk[laid.rows] = self._chunks(laid.each * count)
        items[laid.outputs], chunk[laid.outputs] = outputs, self._chunk(outputs, 4)
        often = -(-count // key.width)
        extra[laid.products] = often
        finely = self._chunks(items[laid.products], 16)
        chunk[laid.products] = finely if often >= _OFTEN else laid.shares
        extra[laid.adapted] = count
        extra[laid.steps] = count
        extra[laid.out_products] = -(-outputs // key.out_width)
        for size, offsets in laid.tiles.items():
            total = tiles[size] * self._config.kv_heads
            items[offsets], chunk[offsets] = total, self._chunk(total, 8)
        items[laid.out_products] = laid.out_items if outputs else 0
        return laid

    def _tiles(self, owner: Array) -> dict[int, int]:
        """Cut what each sequence has into tiles, the largest first; returns how many of each."""
        starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        lengths = np.diff(np.r_[starts, len(owner)])
        inside = np.arange(len(owner)) - np.repeat(starts, lengths)
        lengths = np.repeat(lengths, lengths)
        counts, begin = {}, np.zeros_like(lengths)
        for size in self._tile_sizes:
            end = begin + (lengths - begin) // size * size
            if size > _SMALL:
                end = np.where(lengths < _LONG, begin, end)
            within = (inside >= begin) & (inside < end)
            firsts = np.flatnonzero(within & ((inside - begin) % size == 0))
            # Those that see the most come first: threads end together.
            self._shared[f"tiles{size}"][: len(firsts)] = firsts[::-1]
            counts[size], begin = len(firsts), end
        return counts

    def _is_listed(self, count: int) -> bool:
        """Whether experts have so many tokens each that their pairs are better listed."""
        experts = self._config.experts
        return experts is not None and count * experts.used >= _LISTED * experts.count

    def _width(self, count: int) -> int:
        if count <= 1:
            return 1
        return min(self._widths, key=lambda w: (-(-count // w) * COSTS[w], -w))

    def _chunk(self, items: int, shares: int) -> int:
        if self.threads == 1:
            return max(1, items)
        return max(1, -(-items // (self.threads * shares)))

    def _chunks(self, items: Array, shares: int = 4) -> Array:
        parts = 1 if self.threads == 1 else shares * self.threads
        return np.asarray(np.maximum(1, -(-items // parts)))

    def _lay(self, key: _Key) -> _Laid:
        none = np.zeros(0, np.int32)
        laid = _Laid(np.zeros(0, PHASE), [], [], [], [], {}, none, none, none, [], [])
        made: list[tuple[int, ...]] = []
        multiples: dict[int, int] = {}
        add = made.append
        for phase in self._phases(key.listed):
            at = len(made)
            if isinstance(phase, Counted):
                add(self._phase(phase.call, chunk=phase.chunk, late=phase.late))
            elif isinstance(phase, Rows) and phase.domain == "step":
                laid.steps.append(at)
                add(self._phase(phase.call, items=1))
            elif isinstance(phase, Rows):
                offsets = laid.rows if phase.domain == "tokens" else laid.outputs
                offsets.append(at)
                multiples[at] = phase.each
                add(self._phase(phase.call))
            elif isinstance(phase, Products):
                self._lay_products(phase, key, laid, add, lambda: len(made))
            else:
                self._lay_attention(phase, key, laid, add, lambda: len(made))
        laid.outputs.append(len(made))
        add((self._team.best, self._given.of_best(self.vocab), 0, 0, 0, BEST, 0, 0, 1, 1, 0))
        laid.phases = np.array(made, PHASE)
        laid.address = int(laid.phases.ctypes.data)
        laid.each = np.array([multiples.get(at, 1) for at in laid.rows], np.int32)
        laid.out_items = laid.phases["items"][laid.out_products].copy()
        laid.shares = laid.phases["chunk"][laid.products].copy()
        return laid

    def _phases(self, listed: bool) -> Iterator[Rows | Counted | Products | Attention]:
        """The tape's phases, with those of experts as they are wanted."""
        for phase in self._tape.phases:
            if isinstance(phase, Routed):
                yield from phase.listed if listed else phase.alone
            else:
                yield phase

    def _lay_products(
        self,
        phase: Products,
        key: _Key,
        laid: _Laid,
        add: Callable[[tuple[int, ...]], None],
        place: Callable[[], int],
    ) -> None:
        is_output = phase.domain == "outputs"
        one, width = (key.one_out, key.out_width) if is_output else (key.one, key.width)
        if phase.before is not None and not one and not phase.shared:
            (laid.outputs if is_output else laid.rows).append(place())
            add(self._phase(phase.before))
        calls, counts, last = phase.calls, phase.items, None
        if key.adapted and phase.adapted is not None:
            low, high = self._adapters(phase.adapted)
            laid.adapted.append(place())
            add(low)
            if phase.adapted.calls:
                laid.adapted.append(place())
                add(high)
                calls, counts = phase.adapted.calls, phase.adapted.items
            else:
                last = high
        (laid.out_products if is_output else laid.products).append(place())
        items, call = counts[str(width)], calls[str(width)]
        before = phase.before if one else None
        add(self._phase(call, items=items, chunk=self._share(items), before=before, private=one))
        if last is not None:
            laid.adapted.append(place())
            add(last)

    def _adapters(self, adapted: Adapted) -> list[tuple[int, ...]]:
        """The phases of adapters' first matrices and of their second ones."""
        given = self._adapted.arguments(adapted)
        made: list[tuple[int, ...]] = []
        for name, items in zip(_OF_ADAPTERS, self._adapted.items(adapted), strict=True):
            main, chunk = self._team.function(name, ""), self._share(items)
            made.append((main, given, 0, 0, 0, ARGUMENTS, 0, items, chunk, 0, 0))
        return made

    def _share(self, items: int) -> int:
        if self.threads == 1:
            return items
        return max(1, -(-items // (self.threads * (4 if items >= 64 else 2))))

    def _lay_attention(
        self,
        phase: Attention,
        key: _Key,
        laid: _Laid,
        add: Callable[[tuple[int, ...]], None],
        place: Callable[[], int],
    ) -> None:
        kind, layer = self.cache, phase.layer
        if key.fused:
            laid.tiles.setdefault(1, []).append(place())
            add(self._phase(phase.fused[kind], layer=layer))
            return
        laid.rows.append(place())
        add(self._phase(phase.turn[kind], layer=layer))
        for size in self._tile_sizes:
            laid.tiles.setdefault(size, []).append(place())
            add(self._phase(phase.tiles[f"{kind} {size}"], layer=layer))

    def _phase(
        self,
        call: Call,
        *,
        layer: int = 0,
        items: int = 0,
        chunk: int = 1,
        before: Call | None = None,
        private: bool = False,
        late: int | None = None,
    ) -> tuple[int, ...]:
        arguments = self._given.arguments(call, layer=layer, private=private)
        count, first, given, fewer = len(self._tape.kernels[call.kernel]), 0, 0, 0
        if before is not None:
            first = self._team.function(before.kernel)
            given = self._given.arguments(before, layer=layer, private=True, before=True)
            fewer = len(self._tape.kernels[before.kernel])
        main = self._team.function(call.kernel)
        counted = 0 if late is None else self._given.place("late") + 4 * late
        return (main, arguments, first, given, counted, count, fewer, items, chunk, 1, 0)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of all layers, before a forked sequence writes to its own."""
        for layer in self._made:
            for array in layer:
                array[target] = array[source]

    def read_page(self, page: int, into: Bytes) -> None:
        """Copy a page of all layers into (page_bytes,) uint8."""
        at = 0
        for layer in self._made:
            for array in layer:
                size = array[page].nbytes
                into[at : at + size] = array[page].reshape(-1).view(np.uint8)
                at += size

    def write_page(self, page: int, data: Bytes) -> None:
        """Fill a page of all layers with what ``read_page`` gave."""
        if data.nbytes != self.page_bytes:
            raise InputError("page", f"{self.page_bytes} bytes", f"{data.nbytes}")
        at = 0
        for layer in self._made:
            for array in layer:
                size = array[page].nbytes
                array[page].reshape(-1).view(np.uint8)[:] = data[at : at + size]
                at += size

    def close(self) -> None:
        """Release weights, cache and threads; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if not self._has_left:
            self._team.close()
        self._made, self._shared, self._laid = [], {}, {}
        self._by_counts, self._views = {}, {}
        del self._given


def _rounded(columns: int, rows: int) -> dict[str, Array]:
    blocks, name = columns // 32, f"r{columns}"
    return {
        f"n{columns}": aligned((rows, columns), "float32"),
        f"{name}.words": aligned((rows, blocks, 8), "int32"),
        f"{name}.scales": aligned((rows, blocks), "float32"),
        f"{name}.starts": aligned((rows, blocks, 2), "int32"),
        f"{name}.sums": aligned((rows, blocks, 2), "float32"),
    }
