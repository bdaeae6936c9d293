"""The process that builds an order of loops and measures it, here or on a device over RPC."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from edgeinfer.backends.process.confine import confine
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.kernels.tuning import workload
from edgeinfer.kernels.tuning.worker import serve
from edgeinfer.machine.cuda import Recording, Transfers
from edgeinfer.types import Array

_ROUNDS = 5
_BATCH_S = 0.004
_BATCH_GPU_S, _LAUNCHES = 0.001, 300
_TOLERANCE = 2e-4


class Measurer:
    """Builds for one machine and runs where that is."""

    def setup(
        self, target: Mapping[str, Any], threads: int, cpu: int | None, device: str, linker: str
    ) -> None:
        """Store the arguments.

        Args:
            target: TVM's, as ``workload.target`` takes it.
            threads: Threads of parallel loops.
            cpu: to stay on; None for any.
            device: address of the relay to it, or empty for this machine.
            linker: compiler driver that makes a library, for a device.
        """
        if cpu is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu})
        self._target, self._linker = workload.target(target), linker
        self._kind = "cuda" if target["kind"] == "cuda" else "cpu"
        self._session = _connected(device) if device else None
        if device:
            # A second layer: what a device answers is taken apart by TVM.
            confine([Path(tempfile.gettempdir())], programs=True)
        self._known: dict[str, list[Any]] = {}
        configure = (
            self._session.get_function("runtime.config_threadpool")
            if self._session
            else tvm.get_global_func("runtime.config_threadpool")
        )
        configure(1, threads)
        self._transfers: Transfers | None = None
        self._on_gpu = self._kind == "cuda" and not device
        where = self._session or tvm
        self._device = where.device(self._kind, 0) if self._session else tvm.device(self._kind, 0)

    def candidate(self, text: str, trace: Any) -> tuple[float, float]:
        """Build and measure one order; returns seconds and spread."""
        function = workload.load(text)
        if trace is not None:
            function = workload.order(function, trace)
        times = self._times(self._built(function), self._arguments(function), _ROUNDS)
        # Noise only ever adds.
        return min(times), _spread(times)

    def kernel(self, text: str) -> tuple[float, float]:
        """Measure a function as it is."""
        return self.candidate(text, None)

    def compare(
        self, text: str, traces: Sequence[Any], own: str, rounds: int
    ) -> tuple[list[list[float]], list[str]]:
        """Measure orders and a kernel in turns.

        Returns:
            Seconds of each round, the orders' first, the kernel's last; and for each order what is
            wrong with its numbers, empty if nothing is.
        """
        function, kernel = workload.load(text), workload.load(own)
        ready = [workload.order(function, t) for t in traces]
        calls = [(self._built(f), self._arguments(f)) for f in (*ready, kernel)]
        wrong = self._wrong(function, calls[:-1])
        return self._in_turns(calls, rounds), wrong

    def _wrong(self, function: tirx.PrimFunc, calls: Sequence[Any]) -> list[str]:
        """Compare results with those of the loops as they were written."""
        plain = function if self._kind == "cpu" else _bound(function, self._target)
        arguments = self._arguments(function)
        expected = self._results(self._built(plain), arguments, function)
        found = []
        for built, given in calls:
            worst = 0.0
            for got, right in zip(self._results(built, given, function), expected, strict=True):
                scale = max(1e-6, float(np.abs(right).max(initial=0)))
                worst = max(worst, float(np.abs(got - right).max(initial=0)) / scale)
            # Also for NaN.
            ok = worst <= _TOLERANCE
            found.append("" if ok else f"wrong numbers: relative error {worst:.2g}")
        return found

    def _results(self, built: Any, arguments: list[Any], function: tirx.PrimFunc) -> list[Array]:
        built[workload.NAME](*arguments)
        self._device.sync()
        return [arguments[i].numpy().astype(np.float64) for i in workload.outputs(function)]

    def _built(self, function: tirx.PrimFunc) -> Any:
        module = tvm.IRModule({workload.NAME: workload.plain(function)})
        # CUDA's compiler takes the architecture of the current device.
        with self._target:
            compiled = tvm.compile(module, target=self._target)
        if self._session is None:
            return compiled.jit()
        from tvm.support import cc

        with tempfile.TemporaryDirectory() as folder:
            # Names differ: a device that still has the last one open must not get it again.
            name = f"k{os.getpid()}-{time.monotonic_ns()}.so"
            path = Path(folder, name)
            compiled.export_library(str(path), fcompile=cc.cross_compiler(self._linker))
            self._session.upload(str(path))
            loaded = self._session.load_module(name)
            self._session.remove(name)
            return loaded

    def _times(self, built: Any, arguments: list[Any], rounds: int) -> list[float]:
        if self._on_gpu:
            self._compiled(built, arguments)
            with _alone(), self._replays(built, arguments) as replays:
                return [replays() for _ in range(rounds)]
        once = built.time_evaluator(workload.NAME, self._device, number=1, repeat=2)
        took = max(min(once(*arguments).results), 1e-7)
        number = max(1, int(_BATCH_S / took))
        timed = built.time_evaluator(workload.NAME, self._device, number=number, repeat=rounds)
        return [float(t) for t in timed(*arguments).results]

    def _in_turns(self, calls: Sequence[Any], rounds: int) -> list[list[float]]:
        """Measure built functions with their arguments in turns; a row of seconds for each."""
        times: list[list[float]] = [[] for _ in calls]
        with ExitStack() as stack:
            if self._on_gpu:
                for call in calls:
                    self._compiled(*call)
                stack.enter_context(_alone())
                ready = [stack.enter_context(self._replays(*c)) for c in calls]
            for _ in range(rounds):
                for index, (built, arguments) in enumerate(calls):
                    one = [ready[index]()] if self._on_gpu else self._times(built, arguments, 1)
                    times[index] += one
        return times

    def _compiled(self, built: Any, arguments: list[Any]) -> None:
        """Have TVM compile for a GPU, which it does at the first call, while others measure."""
        built[workload.NAME](*arguments)
        self._device.sync()

    @contextmanager
    def _replays(self, built: Any, arguments: list[Any]) -> Iterator[Callable[[], float]]:
        """Give what times a call on a GPU, as one of many in a graph: launches take longer."""
        if self._transfers is None:
            self._transfers = Transfers(0)
        call, count = built[workload.NAME], 10
        for last in (False, True):
            work = partial(self._launch, call, arguments, count)
            recording = Recording(work, self._transfers)
            try:
                once = partial(_replayed, recording, count)
                took = max(min(once(), once()), 1e-7)
                if last:
                    yield once
            finally:
                recording.close()
            count = min(_LAUNCHES, max(1, int(_BATCH_GPU_S / took)))

    def _launch(self, function: Any, arguments: list[Any], count: int, stream: int) -> None:
        with tvm_ffi.use_raw_stream(self._device, stream):
            for _ in range(count):
                function(*arguments)

    def _arguments(self, function: tirx.PrimFunc) -> list[Any]:
        made = []
        for index, param in enumerate(function.params):
            shape, dtype = tuple(int(s) for s in param.shape), str(param.dtype)
            key = f"{index}{shape}{dtype}"
            if key not in self._known:
                rng = np.random.default_rng(index)
                values = rng.standard_normal(shape) * (1 if "float" in dtype else 8)
                array = (values > 0) if dtype == "bool" else np.abs(values).astype(dtype)
                if dtype.startswith("float"):
                    array = values.astype(dtype)
                self._known[key] = [tvm.runtime.tensor(array, self._device)]
            made += self._known[key]
        return made


def _connected(relay: str) -> Any:
    """Connect to a device, of which nothing but answers comes through.

    Args:
        relay: ``address`` of a ``Relay`` to it.

    Raises:
        ConnectionError: it is not there.
    """
    from tvm import rpc

    place, _, key = relay.partition("/")
    host, _, port = place.rpartition(":")
    try:
        return rpc.connect(host, int(port), key, session_timeout=600)
    except Exception as error:  # whatever its C++ throws
        line = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise ConnectionError(line[:200]) from error


def _bound(function: tirx.PrimFunc, target: Any) -> tirx.PrimFunc:
    from tvm.s_tir import dlight

    module = tvm.IRModule({workload.NAME: workload.plain(function)})
    with target:
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)[workload.NAME]


def _replayed(recording: Recording, count: int) -> float:
    start = time.perf_counter()
    recording.start()
    recording.wait()
    return (time.perf_counter() - start) / count


@contextmanager
def _alone() -> Iterator[None]:
    """Measure on a GPU while no other process does; they go on compiling meanwhile."""
    import fcntl

    # In a folder of our own: nobody else can put something in its place, or hold it.
    descriptor = os.open(writable_folder("locks") / "gpu", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _spread(times: Sequence[float]) -> float:
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
    return float((high - low) / 2 / middle)


if __name__ == "__main__":
    serve(Measurer())
