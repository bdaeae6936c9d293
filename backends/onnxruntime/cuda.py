"""ONNX Runtime on an NVIDIA GPU: bound buffers on the device, replayed as a CUDA graph."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.device_tensor import DeviceFeeds, DeviceTensor
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.backend import BFLOAT16, bind_host
from edgeinfer.errors import BackendError, ClosedError, RunError
from edgeinfer.types import Array, Feeds

GRAPH_OPTION = "enable_cuda_graph"

_GRAPH_ID = "gpu_graph_id"
_CUDA_MEMORY = "Cuda"
_DEVICE = "cuda"
_LOG_FATAL = 4
_NO_GRAPH = "-1"
"""Of a run that neither records nor replays (onnxruntime docs, CUDA provider, "CUDA Graphs")."""

_numbers = itertools.count(1)


@functools.cache
def load_libraries() -> None:
    """Make the engine ready for a GPU, once: quiet, and with CUDA and cuDNN from Python packages.

    The engine says on stdout what it did not find there; a system's own libraries are found later.
    """
    onnxruntime = import_onnxruntime()
    # Plans that cuDNN tried and left are errors to its log, which no session's level holds back.
    onnxruntime.set_default_logger_severity(_LOG_FATAL)
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            preload()


def plain_run_options(settings: Any) -> None:
    """Keep ordinary runs out of the graphs: their arrays lie elsewhere each time."""
    settings.add_run_config_entry(_GRAPH_ID, _NO_GRAPH)


def graph_refused(error: Exception) -> bool:
    """Whether a session failed because it cannot be recorded, not because it cannot run."""
    text = str(error).lower()
    return "graph capture" in text or "cuda graph" in text


class CudaBound:
    """A model with its buffers fixed here and on the device; one thread at a time.

    Each call copies the inputs, replays what the second call recorded, and copies the outputs back.
    """

    def __init__(
        self,
        session: Any,
        inputs: dict[str, Array],
        outputs: dict[str, Array],
        *,
        record: bool = True,
    ) -> None:
        onnxruntime = import_onnxruntime()

        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        here = _read_here(session, [n for n, a in inputs.items() if not _is_there(a)])
        self._settings = onnxruntime.RunOptions()
        self._settings.log_severity_level = _LOG_FATAL
        # What is read on the host, sizes or a condition, is read once for all replays of a graph.
        graph = _NO_GRAPH if here else str(next(_numbers))
        if record:
            self._settings.add_run_config_entry(_GRAPH_ID, graph)
        self._session = session
        from edgeinfer.machine.cuda import Transfers

        self._transfers = Transfers(0)
        self._binding = binding = session.io_binding()
        there = {n: a for n, a in (inputs | outputs).items() if n not in here}
        # The binding holds addresses only.
        self._values = values = {
            name: array.value if isinstance(array, DeviceTensor) else _on_device(array)
            for name, array in there.items()
        }
        for name, array in inputs.items():
            if name in here:
                # Bound on the device it would be copied back now, and never again.
                bind_host(binding.bind_input, name, array)
            else:
                binding.bind_ortvalue_input(name, values[name])
        for name in outputs:
            binding.bind_ortvalue_output(name, values[name])
        moved = {n: a for n, a in there.items() if not _is_there(a)}
        self._in = [(values[n].data_ptr(), a) for n, a in moved.items() if n in inputs]
        self._out = [(a, values[n].data_ptr()) for n, a in moved.items() if n in outputs]
        for array in (*inputs.values(), *outputs.values()):
            if not _is_there(array):
                self._transfers.pin(array)
        self._call: Callable[[], None] = self._run

    def __call__(self) -> None:
        """Run once over the buffers."""
        try:
            self._call()
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime failed: {one_line(error)}") from error

    def _run(self) -> None:
        transfers = self._transfers
        for address, array in self._in:
            transfers.to_device(address, array)
        transfers.wait()
        self._session.run_with_iobinding(self._binding, self._settings)
        for array, address in self._out:
            transfers.to_host(array, address)

    def release(self) -> None:
        """Let go of the session and of the device's memory; a later call raises ``ClosedError``."""
        self._call = _closed
        self._transfers.close()
        self._binding = self._session = None
        self._values = {}
        self._in, self._out = [], []


def run_there(
    session: Any, settings: Any, feeds: DeviceFeeds, names: list[str]
) -> dict[str, DeviceTensor]:
    """Run once; inputs on the device are read where they are, and results stay there.

    Args:
        session: Session of a provider of the device.
        settings: Settings of the run.
        feeds: arrays and tensors.
        names: Names of the outputs.

    Raises:
        RunError: an output has an element type that no array holds.
    """
    binding = session.io_binding()
    kept = []
    for name, value in feeds.items():
        if isinstance(value, DeviceTensor):
            binding.bind_ortvalue_input(name, value.value)
        else:
            array = np.ascontiguousarray(value).reshape(value.shape)
            kept.append(array)
            binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name, _DEVICE)
    # What others have started to write on their streams has to be there.
    binding.synchronize_inputs()
    from edgeinfer.machine.cuda import Transfers

    transfers = Transfers(0)
    try:
        transfers.wait()
    finally:
        transfers.close()
    session.run_with_iobinding(binding, settings)
    try:
        results = [DeviceTensor(value) for value in binding.get_outputs()]
    except TypeError as error:
        raise RunError(f"onnxruntime: an output cannot stay on the device: {error}") from error
    return dict(zip(names, results, strict=True))


def _is_there(array: Array) -> bool:
    return isinstance(array, DeviceTensor)


def _read_here(session: Any, names: list[str]) -> frozenset[str]:
    """Return the inputs that the model reads on the host; all where the engine does not say."""
    ask = getattr(session, "get_input_memory_infos", None)
    if ask is None:
        return frozenset(names)
    devices = {arg.name: info.name for arg, info in zip(session.get_inputs(), ask(), strict=True)}
    return frozenset(name for name in names if devices[name] != _CUDA_MEMORY)


def _on_device(array: Array) -> Any:
    value = import_onnxruntime().OrtValue
    if array.dtype.name == "bfloat16":
        return value.ortvalue_from_shape_and_type(list(array.shape), BFLOAT16, "cuda", 0)
    return value.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, "cuda", 0)


def _closed() -> NoReturn:
    raise ClosedError("backend 'onnxruntime': used after close()")
