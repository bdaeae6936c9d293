"""An engine of TensorRT at work: contexts, memory on the device, and calls recorded as CUDA graphs.

Sources: NVIDIA's Python API reference (``ICudaEngine``, ``IExecutionContext``,
``IOutputAllocator``) and the chapter on CUDA graphs of its documentation: what was recorded stands
for one state of one context, so each recording has a context of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

import numpy as np

from edgeinfer.backends.built_ahead import SizeRanges
from edgeinfer.backends.checks import array_type, check_buffers, check_feeds, one_line
from edgeinfer.backends.tensorrt.build import NAME, reason_of
from edgeinfer.errors import BackendError, ClosedError, LoadError, RunError
from edgeinfer.machine.cuda import Memory, Recording, Stream, Transfers
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, TensorSpec

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
}
DTYPES = frozenset(_DTYPES.values())


@dataclass(frozen=True, slots=True)
class EnginePort:
    """An input or output of an engine.

    Attributes:
        spec: name, element type and sizes.
        is_input: which of both.
        on_host: whether the engine reads or writes it in the host's memory.
    """

    spec: TensorSpec
    is_input: bool
    on_host: bool


def ports_of(trt: Any, engine: Any) -> tuple[EnginePort, ...]:
    """Describe what an engine reads and writes.

    Raises:
        LoadError: an element type has no array.
    """
    found = []
    for i in range(engine.num_io_tensors):
        name = engine.get_tensor_name(i)
        kind = engine.get_tensor_dtype(name).name
        if kind not in _DTYPES:
            raise LoadError(f"backend {NAME!r}: {name!r} is {kind}, which has no array")
        shape = tuple(None if d < 0 else int(d) for d in engine.get_tensor_shape(name))
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        found.append(EnginePort(TensorSpec(name, _DTYPES[kind], shape), is_input, on_host))
    return tuple(found)


class ExecutionLane:
    """One execution context, its memory on the device and its stream; one thread at a time.

    Args:
        trt: the module.
        engine: to run.
        ports: Ports of the engine.
        transfers: Transfers of the device.
    """

    def __init__(
        self, trt: Any, engine: Any, ports: tuple[EnginePort, ...], transfers: Transfers
    ) -> None:
        self.lock = threading.Lock()
        self._trt, self._ports, self._transfers = trt, ports, transfers
        self._context = engine.create_execution_context()
        if self._context is None:
            raise RunError(f"TensorRT cannot make a context: {reason_of(trt, 'too little memory')}")
        self._dtypes = {p.spec.name: array_type(p.spec.dtype) for p in ports}
        self._memory = {p.spec.name: Memory(transfers) for p in ports if not p.on_host}
        self._here: dict[str, Array] = {}
        self._allocators: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._stream: Stream = Stream(transfers)

    @property
    def is_closed(self) -> bool:
        """Whether it was let go of."""
        return self._context is None

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make ready for inputs of these shapes.

        Raises:
            RunError: the engine takes none of such shapes, or memory is short.
        """
        if dict(shapes) == self._shapes and self._outputs:
            return
        self._shapes = {}
        context = self._context
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise RunError(
                    f"input {name!r}: {reason_of(self._trt, f'{list(shape)} is refused')}"
                )
            self._place(name, shape)
        if unknown := context.infer_shapes():
            raise RunError(f"TensorRT does not know the sizes of {', '.join(unknown)}")
        self._outputs = {}
        for port in self._ports:
            if not port.is_input:
                name = port.spec.name
                shape = tuple(int(d) for d in context.get_tensor_shape(name))
                self._outputs[name] = shape
                if -1 in shape:
                    self._let_allocate(name)
                else:
                    self._place(name, shape)
        self._shapes = dict(shapes)

    def _place(self, name: str, shape: tuple[int, ...]) -> None:
        if name in self._memory:
            size = int(np.prod(shape, dtype=np.int64)) * self._dtypes[name].itemsize
            address = self._memory[name].hold(size)
        else:
            self._here[name] = np.zeros(shape, self._dtypes[name])
            address = self._here[name].ctypes.data
        if not self._context.set_tensor_address(name, address):
            raise RunError(f"{name!r}: {reason_of(self._trt, 'its address is refused')}")

    def _let_allocate(self, name: str) -> None:
        """Let the engine say what size an output has, which depends on values."""
        if name not in self._allocators:
            self._allocators[name] = _allocator(self._trt, self._memory[name])
        if not self._context.set_output_allocator(name, self._allocators[name]):
            raise RunError(f"{name!r}: {reason_of(self._trt, 'no allocator is taken')}")

    def record(self) -> None:
        """Record the work as a CUDA graph where it can be; otherwise each call starts it anew."""
        if self._allocators:
            # The size of an output is read on the host, in the middle of the work.
            return
        # What was sent has to be there: the work is done once before it is recorded.
        self._stream.wait()
        try:
            recording = Recording(self._enqueue, self._transfers)
        except RunError:
            reason_of(self._trt, "")
            return
        self._stream.close()
        self._stream = recording

    @property
    def is_recorded(self) -> bool:
        """Whether a call replays a graph."""
        return isinstance(self._stream, Recording)

    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of outputs; -1 stands for what depends on values."""
        return dict(self._outputs)

    def send(self, arrays: Mapping[str, Array]) -> None:
        """Copy inputs, C-contiguous ones, to where the engine reads them."""
        self._transfers.enter()
        for name, array in arrays.items():
            if name in self._here:
                self._here[name][...] = array
            else:
                self._stream.to_device(self._memory[name].address, array)

    def start(self) -> None:
        """Start the work."""
        if isinstance(self._stream, Recording):
            self._stream.start()
        else:
            self._enqueue(self._stream.handle)

    def fetch(self, arrays: Mapping[str, Array]) -> None:
        """Copy outputs into arrays of their shapes, and wait until all is there."""
        for name, array in arrays.items():
            if name not in self._here:
                self._stream.to_host(array, self._memory[name].address)
        self._stream.wait()
        for name in arrays.keys() & self._here.keys():
            arrays[name][...] = self._here[name]

    def made(self) -> dict[str, Array]:
        """Return new arrays for the outputs of the work that was started."""
        shapes = self.outputs()
        if self._allocators:
            self._stream.wait()
            shapes |= {name: found.shape for name, found in self._allocators.items()}
        return {name: np.empty(shape, self._dtypes[name]) for name, shape in shapes.items()}

    def close(self) -> None:
        """Let go of the device's memory; a second call does nothing."""
        if self._context is None:
            return
        self._stream.close()
        self._context = None
        for memory in self._memory.values():
            memory.free()

    def _enqueue(self, stream: int) -> None:
        if not self._context.execute_async_v3(stream):
            raise RunError(f"TensorRT failed: {reason_of(self._trt, 'it gives no reason')}")


def _allocator(trt: Any, memory: Memory) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Nothing may be raised into the library: an address of 0 says that there is no memory."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] = ()

        def reallocate_output(
            self, tensor_name: str, memory_: Any, size: int, alignment: int
        ) -> int:
            try:
                return memory.hold(size)
            except RunError:
                return 0

        def reallocate_output_async(
            self, tensor_name: str, memory_: Any, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory_, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(int(d) for d in shape)

    return Allocator()


class EngineExecutable:
    """A loaded engine; calls of several threads follow one another.

    Attributes:
        notes: for the session's report.
    """

    def __init__(
        self,
        trt: Any,
        engine: Any,
        ports: tuple[EnginePort, ...],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        ranges: SizeRanges,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.notes: tuple[str, ...] = ()
        self._trt, self._engine, self._ports, self._ranges = trt, engine, ports, ranges
        self._dtypes = {s.name: array_type(s.dtype) for s in (*inputs, *outputs)}
        self._transfers = Transfers(0)
        self._lane = ExecutionLane(trt, engine, ports, self._transfers)
        # The sizes of one with open sizes change, and a recording does not.
        self._is_fixed = all(p.spec.is_static for p in ports if p.is_input)
        self._bounds: WeakSet[EngineBound] = WeakSet()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the engine or the driver failed, or it was not built for these sizes.
            ClosedError: after ``close``.
        """
        lane = self._lane
        with lane.lock:
            if lane.is_closed:
                raise _closed()
            check_feeds(self.inputs, self._dtypes, feeds)
            self._ranges.check(feeds)
            arrays = {n: np.ascontiguousarray(a).reshape(a.shape) for n, a in feeds.items()}
            try:
                lane.fit({name: array.shape for name, array in arrays.items()})
                lane.send(arrays)
                if self._is_fixed and not lane.is_recorded:
                    lane.record()
                    lane.send(arrays)
                lane.start()
                made = lane.made()
                lane.fetch(made)
            except BackendError:
                raise
            except Exception as error:
                raise RunError(
                    f"TensorRT failed: {reason_of(self._trt, one_line(error))}"
                ) from error
        return {spec.name: made[spec.name] for spec in self.outputs}

    def bind(self, inputs: Feeds, outputs: Feeds) -> EngineBound:
        """Fix buffers of all inputs and outputs; each call copies them, and replays a recording.

        Raises:
            RunError: a buffer cannot be used, or has sizes that the engine was not built for.
            ClosedError: after ``close``.
        """
        if self._lane.is_closed:
            raise _closed()
        ins = check_buffers("input", self.inputs, inputs, self._dtypes)
        outs = check_buffers("output", self.outputs, outputs, self._dtypes)
        self._ranges.check(ins)
        lane = ExecutionLane(self._trt, self._engine, self._ports, self._transfers)
        try:
            lane.fit({name: array.shape for name, array in ins.items()})
            _check_outputs(lane.outputs(), outs)
            lane.send(ins)
            lane.record()
        except BaseException:
            lane.close()
            raise
        bound = EngineBound(lane, ins, outs)
        self._bounds.add(bound)
        return bound

    def close(self) -> None:
        """Free the device's memory, also of what was bound; a run under way ends first."""
        for bound in [*self._bounds]:
            bound.release()
        with self._lane.lock:
            self._lane.close()
            self._engine = None
            self._transfers.close()


def _check_outputs(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Array]) -> None:
    for name, shape in shapes.items():
        if -1 in shape:
            raise RunError(f"bind: output {name!r}: its size depends on values; use run")
        if arrays[name].shape != shape:
            raise RunError(
                f"bind: output {name!r}: expected shape {list(shape)} for these inputs, "
                f"received {list(arrays[name].shape)}"
            )


class EngineBound:
    """An engine with its buffers fixed here and on the device; one thread at a time."""

    def __init__(
        self, lane: ExecutionLane, inputs: dict[str, Array], outputs: dict[str, Array]
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._lane, self._in, self._out = lane, inputs, outputs
        self._pins = Transfers(0)
        for array in (*inputs.values(), *outputs.values()):
            self._pins.pin(array)

    def __call__(self) -> None:
        """Run once over the buffers.

        Raises:
            RunError: the engine or the driver failed.
            ClosedError: after ``close``.
        """
        lane = self._lane
        with lane.lock:
            if lane.is_closed:
                raise _closed()
            lane.send(self._in)
            lane.start()
            lane.fetch(self._out)

    def release(self) -> None:
        """Let go of the device's memory; a later call raises ``ClosedError``."""
        with self._lane.lock:
            self._lane.close()
            self._pins.close()


def _closed() -> ClosedError:
    return ClosedError(f"backend {NAME!r}: used after close()")
