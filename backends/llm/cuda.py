"""Runs a model's tape on an NVIDIA GPU: one CUDA graph for each width of a batch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.llm.arrays import aligned, map_weights
from edgeinfer.backends.llm.batch import BatchCheck
from edgeinfer.backends.llm.cuda_adapters import CudaAdapters, adapter_sizes
from edgeinfer.backends.llm.sizes import ExecutorSizes, TapeExecutor
from edgeinfer.errors import ClosedError, InputError, LoadError, NotAvailableError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.gpu import (
    ROUTED_WIDTHS,
    THREADS,
    WARPS,
    code_name,
    eights_of,
    layer_words,
    most_jobs,
    routed_width,
    share_of,
    width_for,
)
from edgeinfer.llm.step import Bytes, Floats, Ints, StepBatch
from edgeinfer.llm.tape import Attention, Call, Products, Routed, Rows, Tape
from edgeinfer.machine.cuda import Memory, Recording, Transfers, compute_capability, cuda_devices
from edgeinfer.machine.cuda_kernels import Kernels
from edgeinfer.machine.device import DeviceKind
from edgeinfer.types import Array

_EIGHT = 8
"""Tokens of a product's width."""

_OUTPUTS = 64
"""Rows of logits that are computed at once: more take memory that nobody needs."""

_BEST_THREADS = 1024
_HOPPER = (9, 0)
"""Compute capability from which on a kernel may start before the one before it has ended."""

_MINUS = np.int32(-1)

_COLUMNS = ("tokens", "positions", "owner", "rows", "adapter")
"""Arrays of a batch, one behind the other."""


def architecture(names: tuple[str, ...]) -> str:
    """Return the one of some architectures whose code runs on the GPU here.

    Code of one runs on those of the same generation that came later, but not between chips with
    memory of their own and those without (CUDA C++ Programming Guide, "Binary Compatibility").

    Raises:
        NotAvailableError: there is no GPU, or none of them fits.
    """
    if not cuda_devices():
        raise NotAvailableError(
            f"its code is for NVIDIA GPUs ({', '.join(names)}), and CUDA's driver finds none here"
        )
    major, minor = (int(part) for part in compute_capability().split("."))
    exact = f"sm_{major}{minor}"
    if exact in names:
        return exact
    older = [n for n in names if n not in _ON_CHIP and int(n[3:-1]) == major and int(n[-1]) < minor]
    if older and exact not in _ON_CHIP:
        return max(older)
    raise NotAvailableError(f"its code is for {', '.join(names)}; the GPU here is {exact}")


_ON_CHIP = ("sm_72", "sm_87", "sm_101", "sm_110")
"""Of Jetson's."""


class CudaExecutor(TapeExecutor):
    """Runs a tape on a GPU; see ``Executor`` for attributes and methods.

    Args:
        config: Configuration of the model.
        tape: Tape of the model.
        weights: path of the packed weights; code lies next to it.
        sizes: what there is room for.
        digest: Digest of all that the model's numbers depend on.

    Raises:
        UsageError: sizes contradict one another or the model.
        LoadError: files do not fit.
        NotAvailableError: there is no GPU that the code is for, or too little of its memory.
    """

    def __init__(
        self, config: LlmConfig, tape: Tape, weights: Path, sizes: ExecutorSizes, digest: str
    ) -> None:
        super().__init__(config, tape, sizes, digest)
        self.device: DeviceKind = "gpu"
        self._layer = layer_words(self.cache, config.kv_heads, config.head_dim)
        self.page_bytes = self._layer * 2 * config.layers
        arch = architecture(tuple(tape.machine.split()))
        self._held: dict[str, Memory] = {}
        self._recordings: dict[tuple[int, int, bool, bool], Recording] = {}
        self._adapted: dict[int, CudaAdapters] = {}
        self._closed = self._has_left = False
        self._gpu = Transfers(0)
        try:
            is_early = (int(arch[3:-1]), int(arch[-1])) >= _HOPPER
            code = (weights.parent / code_name(arch)).read_bytes()
            self._kernels = Kernels(self._gpu, code, may_start_early=is_early)
            self._host = self._host_arrays()
            self._mapped = map_weights(weights, tape)
            self._fill()
        except BaseException:
            self.close()
            raise
        forks.watch(self)
        self._check = BatchCheck(
            *(self.max_tokens, self.hidden),
            vocab=self.vocab,
            positions=self.context,
            sequences=self.max_sequences,
            columns=self._columns,
            pages=self.pages,
            window=self.window,
            adapters=len(self.adapters),
        )
        self.best: Ints | None = None

    def forked(self) -> None:
        """Note that the device is the parent's."""
        self._has_left = True

    def _host_arrays(self) -> dict[str, Array]:
        """What is copied to the device and back, in pages that stay in place."""
        most = self.max_tokens
        made = {
            "batch": aligned((2 + len(_COLUMNS) * most,), "int32"),
            "table": aligned((self.max_sequences, self._columns), "int32"),
            "logits": aligned((min(most, _OUTPUTS), self._stride), "float32"),
            "best": aligned((min(most, _OUTPUTS),), "int32"),
            "more": aligned((0, self._stride), "float32"),
        }
        for name in ("batch", "table", "logits", "best"):
            self._gpu.pin(made[name])
        made["table"][...] = _MINUS
        return made

    @property
    def _stride(self) -> int:
        """Elements of a row of logits."""
        return -(-self._config.vocab // self._tape.side) * self._tape.side

    def _fill(self) -> None:
        """Reserve memory of the device and copy what does not change."""
        config, rows = self._config, self.max_tokens
        outputs = min(rows, _OUTPUTS)
        heads = config.heads + 2 * config.kv_heads
        sizes = {
            "weights": self._mapped.nbytes,
            "cache": self.pages * self.page_bytes,
            "batch": self._host["batch"].nbytes,
            "table": self._host["table"].nbytes,
            "x": rows * config.hidden * 4,
            "t": rows * config.hidden * 4,
            "xs": rows * config.hidden * 4,
            "squares": rows * config.hidden // 4,
            "qkv": rows * heads * config.head_dim * 4,
            "att": rows * config.heads * config.head_dim * 4,
            "h": rows * config.ffn * 4,
            "logits": outputs * self._stride * 4,
            "best": outputs * 4,
            **_of_experts(config, rows, self._tape.side),
            **adapter_sizes(self._tape, rows),
        }
        for name, size in sizes.items():
            self._memory(name, size)
        self._gpu.to_device(self._held["weights"].address, self._mapped)
        self._gpu.to_device(self._held["table"].address, self._host["table"])
        for i, rope in enumerate(config.ropes):
            for name, table in zip(("cos", "sin"), rope.tables(self.context), strict=True):
                held = self._memory(f"{name}{i}", table.nbytes)
                self._gpu.to_device(held.address, np.ascontiguousarray(table))
        for at, phase in enumerate(self._tape.phases):
            if isinstance(phase, Products) and phase.adapted is not None:
                self._adapted[at] = made = CudaAdapters(self._tape, phase.adapted)
                for name, array in made.tables(self._held["weights"].address).items():
                    held = self._memory(f"{name}{at}", array.nbytes)
                    self._gpu.to_device(held.address, array)
        self._gpu.wait()

    def _memory(self, name: str, size: int) -> Memory:
        self._held[name] = made = Memory(self._gpu)
        made.hold(size)
        return made

    def step(self, batch: StepBatch) -> Floats:
        """Compute the logits of the wanted rows and append keys and values to the cache."""
        alone = self._take(batch)
        count, wanted = len(batch.tokens), len(batch.rows)
        first = min(wanted, _OUTPUTS)
        logits, best = self._outputs(wanted)
        adapted = batch.adapter is not None and int(batch.adapter.max()) >= 0
        self._run(count, first, alone, adapted, logits, best)
        for at in range(first, wanted, _OUTPUTS):
            some = min(_OUTPUTS, wanted - at)
            rows = self._host["batch"][2 + 3 * self.max_tokens :]
            rows[:some] = batch.rows[at : at + some]
            self._run(0, some, alone, False, logits[at:], best[at:])
        self.best = best[:wanted]
        return logits[:wanted, : self.vocab]

    def _outputs(self, wanted: int) -> tuple[Array, Array]:
        host = self._host
        if wanted <= _OUTPUTS:
            return host["logits"], host["best"]
        if len(host["more"]) < wanted:
            host["more"] = aligned((wanted, self._stride), "float32")
        return host["more"], np.zeros(wanted, np.int32)

    def _run(
        self, tokens: int, outputs: int, alone: bool, adapted: bool, logits: Array, best: Array
    ) -> None:
        """Run the body of a tape, its end, or both, and fetch what comes out."""
        batch = self._host["batch"]
        batch[0], batch[1] = tokens, outputs
        recording = self._recording(_rounded(tokens), _rounded(outputs), alone, adapted)
        recording.start()
        if outputs:
            recording.to_host(logits[:outputs], self._held["logits"].address)
            recording.to_host(best[:outputs], self._held["best"].address)
        recording.wait()

    def _recording(self, width: int, outputs: int, alone: bool, adapted: bool) -> Recording:
        key = (width, outputs, alone, adapted)
        if key not in self._recordings:

            def work(stream: int) -> None:
                self._start(stream, *key)

            self._recordings[key] = Recording(work, self._gpu)
        return self._recordings[key]

    def _start(self, stream: int, width: int, outputs: int, alone: bool, adapted: bool) -> None:
        """Start all kernels of a step on a stream."""
        self._copy_batch(stream)
        for at, phase in enumerate(self._tape.phases):
            if isinstance(phase, Routed):
                raise LoadError("the tape has experts as CPUs take them; convert the model again")
            is_end = not isinstance(phase, Attention) and phase.domain == "outputs"
            count = outputs if is_end else width
            if not count:
                continue
            without: tuple[str, ...] = ()
            if (adapters := self._adapted.get(at)) is not None:
                if adapted:
                    self._start_adapters(stream, adapters, at, count)
                else:
                    without = ("more", "adapter")
            for call, grid, layer in self._launches(phase, count, alone):
                names = ("#0" if name in without else name for name in call.arguments)
                arguments = [self._argument(name, is_end, layer) for name in names]
                self._kernels.start(call.kernel, grid, self._threads(call), arguments, stream)
        if outputs:
            held = self._held
            addresses = (held["logits"].address, held["best"].address, held["batch"].address + 4)
            arguments = [*addresses, self.vocab, self._stride]
            self._kernels.start("best", (outputs, 1, 1), _BEST_THREADS, arguments, stream)

    def _start_adapters(self, stream: int, adapters: CudaAdapters, at: int, count: int) -> None:
        """Compute what adapters add to the product of a phase."""
        for call, blocks in adapters.calls(at, self._config.norm_epsilon):
            arguments = [self._argument(name, False, 0) for name in call.arguments]
            self._kernels.start(call.kernel, (blocks, count, 1), THREADS, arguments, stream)

    def _copy_batch(self, stream: int) -> None:
        for name in ("batch", "table"):
            host = self._host[name]
            code = self._gpu.driver.cuMemcpyHtoDAsync_v2(
                ctypes.c_uint64(self._held[name].address),
                ctypes.c_void_p(host.ctypes.data),
                ctypes.c_size_t(host.nbytes),
                ctypes.c_void_p(stream),
            )
            self._gpu.check(code, "copy a batch")

    def _launches(
        self, phase: Rows | Products | Attention, count: int, alone: bool
    ) -> Iterator[tuple[Call, tuple[int, int, int], int]]:
        """Calls of a phase, with their blocks of threads and the layer that they are of."""
        config = self._config
        if isinstance(phase, Rows):
            yield phase.call, (1 if phase.domain == "step" else count, 1, 1), 0
        elif isinstance(phase, Products) and phase.domain == "pairs":
            experts = config.experts
            if experts is None:
                raise LoadError("the tape has experts, and the model has none")
            pairs = count * experts.used
            width = routed_width(pairs, experts.count)
            jobs = most_jobs(pairs, experts.count, width)
            yield phase.calls[str(width)], (phase.items[str(width)], jobs, 1), 0
        elif isinstance(phase, Products):
            eights = -(-count // _EIGHT)
            width = width_for(eights)
            grid = (phase.items[str(width)], -(-eights // eights_of(width)), 1)
            yield phase.calls[str(width)], grid, 0
        else:
            blocks = (count, config.heads // share_of(config), 1)
            if alone:
                yield phase.fused[self.cache], blocks, phase.layer
                return
            heads = config.heads + 2 * config.kv_heads
            yield phase.turn[self.cache], (count, -(-heads // WARPS), 1), phase.layer
            yield phase.tiles[f"{self.cache} 1"], blocks, phase.layer

    def _threads(self, call: Call) -> int:
        """Of a block."""
        (tiles,) = self._tape.kernels.get(call.kernel) or (None,)
        return THREADS if tiles is None else tiles.shape[0]

    def _argument(self, name: str, is_end: bool, layer: int) -> int | float:
        """Value of an argument of a kernel."""
        if name[0] in "#%":
            return int(name[1:]) if name[0] == "#" else float(name[1:])
        if name == "count":
            return self._held["batch"].address + 4 * is_end
        if name in _COLUMNS:
            place = 2 + _COLUMNS.index(name) * self.max_tokens
            return self._held["batch"].address + 4 * place
        if name == "columns":
            return self._columns
        if name == "layer":
            return layer * self._layer
        if name.startswith("w:"):
            return self._held["weights"].address + self._tape.weights[name[2:]].offset
        stem, _, column = name.partition("@")
        return self._held[stem].address + 4 * int(column or 0)

    def _take(self, batch: StepBatch) -> bool:
        """Check a batch and copy it to where the device reads it.

        Returns:
            Whether no sequence has two tokens in it.
        """
        if self._closed:
            raise ClosedError("the executor is closed")
        if self._has_left:
            raise ClosedError("the executor's device did not come along into this process")
        alone = self._check(batch)
        most, count = self.max_tokens, len(batch.tokens)
        arrays = self._host["batch"][2:].reshape(len(_COLUMNS), most)
        arrays[0, :count], arrays[1, :count] = batch.tokens, batch.positions
        arrays[2, :count] = batch.owner
        arrays[4, :count] = _MINUS if batch.adapter is None else batch.adapter
        some = batch.rows[:_OUTPUTS]
        arrays[3, : len(some)] = some
        rows, columns = batch.table.shape
        self._host["table"][:rows, :columns] = batch.table
        if batch.embedded is not None and batch.embeddings is not None:
            arrays[0, batch.embedded] = _MINUS
            for place, row in zip(batch.embedded.tolist(), batch.embeddings, strict=True):
                at = self._held["x"].address + place * self.hidden * 4
                self._gpu.to_device(at, np.ascontiguousarray(row, np.float32))
            self._gpu.wait()
        return alone

    def states(self, batch: StepBatch) -> Floats:
        """Like ``step``, but return what goes into the head."""
        alone = self._take(batch)
        none = np.zeros(0, np.float32)
        adapted = batch.adapter is not None and int(batch.adapter.max()) >= 0
        self._run(len(batch.tokens), 0, alone, adapted, none, none)
        x = np.zeros((len(batch.tokens), self.hidden), np.float32)
        self._gpu.to_host(x, self._held["x"].address)
        x = x[batch.rows]
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        place = self._tape.weights["output_norm"]
        weight = self._mapped[place.offset : place.offset + 4 * self.hidden].view(np.float32)
        return np.asarray(x / np.sqrt(mean + np.float32(self._config.norm_epsilon)) * weight)

    @property
    def tape(self) -> Tape:
        """What it runs."""
        return self._tape

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of all layers, before a forked sequence writes to its own."""
        self._gpu.enter()
        code = self._gpu.driver.cuMemcpyDtoDAsync_v2(
            ctypes.c_uint64(self._place(target)),
            ctypes.c_uint64(self._place(source)),
            ctypes.c_size_t(self.page_bytes),
            None,
        )
        self._gpu.check(code, "copy a page")
        self._gpu.wait()

    def read_page(self, page: int, into: Bytes) -> None:
        """Copy a page of all layers into (page_bytes,) uint8."""
        self._gpu.to_host(into, self._place(page))

    def write_page(self, page: int, data: Bytes) -> None:
        """Fill a page of all layers with what ``read_page`` gave."""
        if data.nbytes != self.page_bytes:
            raise InputError("page", f"{self.page_bytes} bytes", f"{data.nbytes}")
        self._gpu.to_device(self._place(page), np.ascontiguousarray(data))
        self._gpu.wait()

    def _place(self, page: int) -> int:
        return self._held["cache"].address + page * self.page_bytes

    def close(self) -> None:
        """Release weights, cache and code; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._has_left:
            return
        for recording in self._recordings.values():
            recording.close()
        for held in self._held.values():
            held.free()
        if hasattr(self, "_kernels"):
            self._kernels.close()
        self._gpu.close()
        self._recordings, self._held = {}, {}


def _of_experts(config: LlmConfig, rows: int, side: int) -> dict[str, int]:
    """Bytes of what experts need for so many tokens."""
    experts = config.experts
    if experts is None:
        return {}
    pairs = rows * experts.used
    jobs = {
        f"jobs{width}": (1 + 3 * most_jobs(pairs, experts.count, width)) * 4
        for width in ROUTED_WIDTHS
    }
    return {
        "router": rows * -(-experts.count // side) * side * 4,
        **dict.fromkeys(("chosen", "shares", "order"), pairs * 4),
        **jobs,
        "he": pairs * experts.ffn * 4,
        "xe": pairs * config.hidden * 4,
    }


def _rounded(count: int) -> int:
    """Of a graph: the next power of two."""
    return 1 << (count - 1).bit_length() if count else 0
