"""TVM on an NVIDIA GPU: a library over fixed shapes, recorded once and replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from edgeinfer.backends.engines import import_tvm_runtime
from edgeinfer.backends.tvm.library import Library, stored
from edgeinfer.errors import ClosedError
from edgeinfer.machine.cuda import Recording, Transfers
from edgeinfer.types import Array

_DEVICE = "cuda"


class Recorded:
    """A library's function with its inputs, outputs, weights and memory on the device.

    Calls of several threads follow one another.

    Args:
        function: Function of the library.
        about: what it takes.
        weights: constants of the model.
    """

    def __init__(self, function: Any, about: Library, weights: Sequence[Array]) -> None:
        runtime = import_tvm_runtime()
        self._function = function
        self._inputs = [_memory(_sizes(s.shape), s.dtype) for s in about.inputs]
        self._outputs = [_memory(_sizes(s.shape), s.dtype) for s in about.outputs]
        self._kept = [_copied(w) for w in weights]
        self._kept += [_memory((count,), dtype) for dtype, count in about.memory]
        self._device = runtime.Device(_DEVICE, 0)
        self._transfers = Transfers(0)
        # Weights were copied on another stream.
        self._transfers.wait()
        self._lock = Lock()
        self._recording: Recording | None = None
        self._recording = Recording(self._start, self._transfers)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Copy inputs, replay, and copy outputs.

        Raises:
            RunError: the driver failed.
            ClosedError: after ``close``.
        """
        with self._lock:
            recording = self._recording
            if recording is None:
                raise ClosedError("backend 'tvm': used after close()")
            self._transfers.enter()
            for tensor, array in zip(self._inputs, inputs, strict=True):
                recording.to_device(_address(tensor), array)
            recording.start()
            for tensor, array in zip(self._outputs, outputs, strict=True):
                recording.to_host(array, _address(tensor))
            recording.wait()

    def bound(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], object]:
        """Return a call over arrays that stay where they are."""
        pins = Transfers(0)
        for array in (*inputs, *outputs):
            pins.pin(array)
        return partial(self._pinned, pins, inputs, outputs)

    def _pinned(self, pins: Transfers, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # Pages stay pinned as long as the call is kept.
        del pins
        self.run(inputs, outputs)

    def replay(self) -> None:
        """Run once over what lies on the device; nothing is copied."""
        with self._lock:
            if self._recording is not None:
                self._recording.start()
                self._recording.wait()

    def close(self) -> None:
        """Let go of the device."""
        with self._lock:
            if self._recording is not None:
                self._recording.close()
                self._recording = None
                self._transfers.close()

    def _start(self, stream: int) -> None:
        runtime = import_tvm_runtime()
        with runtime.use_raw_stream(self._device, stream):
            self._function(*self._inputs, *self._outputs, *self._kept)


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in shape or ())


def _memory(shape: tuple[int, ...], dtype: str) -> Any:
    runtime = import_tvm_runtime()
    allocate = runtime.get_global_func("runtime.TVMTensorAllocWithScope")
    return allocate(
        runtime.Shape(shape), runtime.dtype(stored(dtype)), runtime.Device(_DEVICE, 0), None
    )


def _copied(array: Array) -> Any:
    runtime = import_tvm_runtime()
    made = _memory(array.shape, array.dtype.name)
    if array.size:
        source = runtime.from_dlpack(np.array(array))
        runtime.get_global_func("runtime.TVMTensorCopyFromTo")(source, made)
    return made


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr())
