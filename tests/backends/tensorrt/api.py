"""A stand-in for the package ``tensorrt``: its classes, with the members that it has.

``members.json`` lists, for three versions, members and parameters as the published
bindings (``tensorrt-bindings`` 8.6.1, ``tensorrt-cu12-bindings`` 10.3.0, ``tensorrt-cu13-bindings``
11.4.0) say them of themselves; a test holds the stand-in to that. Engines are ONNX files with a
head, and run on ONNX Runtime's CPU provider. What TensorRT makes of a graph stays open.
"""

from __future__ import annotations

import ctypes
import enum
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from edgeinfer.backends.base import Device
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.tensorrt import backend, library
from edgeinfer.machine import cuda
from tests.backends.cuda_standin import Driver
from tests.backends.cuda_standin import driver as driver

MEMBERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("members.json").read_text()
)
_KINDS = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
}


class State:
    """What a test sets and sees.

    Attributes:
        version: of the package.
        cores: DLA cores of the device.
        not_on_dla: types of operators that a DLA does not take.
        refuses: why no engine is built; empty builds one.
        is_foreign: whether a timing cache is of another device.
        unrecorded: whether work cannot be recorded as a graph.
        failing: whether work fails.
        sizes: names of inputs whose values are sizes.
        on_host: names of tensors that lie on the host.
        built: heads of the engines that were built.
        pools: memory limits.
        timings: what each build was given.
        runs: how often an engine ran.
    """

    def __init__(self, version: str, driver: Driver) -> None:
        self.version, self.driver = version, driver
        self.cores = 0
        self.not_on_dla: set[str] = set()
        self.refuses = ""
        self.is_foreign = self.unrecorded = self.failing = False
        self.sizes: set[str] = set()
        self.on_host: set[str] = set()
        self.built: list[dict[str, Any]] = []
        self.pools: dict[str, int] = {}
        self.timings: list[bytes] = []
        self.runs = 0


def module(state: State) -> Any:
    """Return the module of a version."""
    members = MEMBERS[state.version]
    made: Any = ModuleType("tensorrt")
    made.__version__ = state.version
    for name, listed in members.items():
        if isinstance(listed, list):
            setattr(made, name, enum.IntEnum(name, {n: i for i, n in enumerate(listed)}))
    for name, kind in _classes(state, made).items():
        if name in members:
            for member in set(vars(kind)) - set(members[name]):
                if not member.startswith("_") and not isinstance(vars(kind)[member], int):
                    delattr(kind, member)
            setattr(made, name, kind)
    # Its members are all for others to write, and none is written in the bindings.
    made.IOutputAllocator = type("IOutputAllocator", (), {})
    made.init_libnvinfer_plugins = lambda logger, namespace: True
    return made


def _classes(state: State, trt: Any) -> dict[str, type]:
    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

        def log(self, severity: int, msg: str) -> None:
            raise NotImplementedError

    class IProgressMonitor:
        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            raise NotImplementedError

        def phase_finish(self, phase_name: str) -> None:
            raise NotImplementedError

        def step_complete(self, phase_name: str, step: int) -> bool:
            raise NotImplementedError

    class ITensor:
        __slots__ = ("is_shape_tensor", "name", "shape")

        def __init__(self, value: onnx.ValueInfoProto) -> None:
            self.name, self.shape = value.name, _dims(value)
            self.is_shape_tensor = value.name in state.sizes

    class ILayer:
        __slots__ = ("_kind", "name")

        def __init__(self, node: onnx.NodeProto) -> None:
            self.name, self._kind = node.name or node.output[0], node.op_type

    class INetworkDefinition:
        def __init__(self, flags: int) -> None:
            self._flags, self._model, self._inputs = flags, onnx.ModelProto(), list[ITensor]()

        @property
        def num_inputs(self) -> int:
            return len(self._inputs)

        def get_input(self, index: int) -> ITensor:
            return self._inputs[index]

        @property
        def num_layers(self) -> int:
            return len(self._model.graph.node)

        def get_layer(self, index: int) -> ILayer:
            return ILayer(self._model.graph.node[index])

    class ParserError:
        def __init__(self, node: onnx.NodeProto, index: int) -> None:
            self._node, self._index = node, index

        def desc(self) -> str:
            return "no importer"

        def node(self) -> int:
            return self._index

        def node_name(self) -> str:
            return str(self._node.name)

        def node_operator(self) -> str:
            return str(self._node.op_type)

    class OnnxParser:
        def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
            self._network, self._errors = network, list[ParserError]()

        def parse_from_file(self, model: str) -> bool:
            read = onnx.load(model)
            known = {s.name for s in onnx.defs.get_all_schemas()}
            self._errors = [
                ParserError(node, i)
                for i, node in enumerate(read.graph.node)
                if node.domain not in ("", "ai.onnx") or node.op_type not in known
            ]
            kinds = {v.type.tensor_type.elem_type for v in (*read.graph.input, *read.graph.output)}
            if not kinds or not kinds <= _KINDS.keys():
                self._errors.append(ParserError(onnx.NodeProto(), -1))
            stored = {value.name for value in read.graph.initializer}
            self._network._model = read
            self._network._inputs = [ITensor(v) for v in read.graph.input if v.name not in stored]
            return not self._errors

        @property
        def num_errors(self) -> int:
            return len(self._errors)

        def get_error(self, index: int) -> ParserError:
            return self._errors[index]

    class IOptimizationProfile:
        def __init__(self) -> None:
            self._shapes: dict[str, Any] = {}

        def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
            self._shapes[input] = [list(min), list(opt), list(max)]

    class ITimingCache:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def serialize(self) -> bytearray:
            return bytearray(self._content)

    class IBuilderConfig:
        __slots__ = (
            *("DLA_core", "builder_optimization_level", "default_device_type", "progress_monitor"),
            *("_cache", "_flags", "_profiles"),
        )

        def __init__(self) -> None:
            self._flags = {"TF32"}
            self._profiles: list[IOptimizationProfile] = []
            self.builder_optimization_level, self.DLA_core = 3, -1
            self.default_device_type = trt.DeviceType.GPU
            if "progress_monitor" in MEMBERS[state.version]["IBuilderConfig"]:
                self.progress_monitor: Any = None

        def set_flag(self, flag: Any) -> None:
            self._flags.add(flag.name)

        def clear_flag(self, flag: Any) -> None:
            self._flags.discard(flag.name)

        def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
            state.pools[pool.name] = pool_size

        def can_run_on_DLA(self, layer: ILayer) -> bool:  # noqa: N802
            return layer._kind not in state.not_on_dla

        def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
            self._profiles.append(profile)
            return len(self._profiles) - 1

        def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache:
            return ITimingCache(serialized_timing_cache)

        def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
            if state.is_foreign and cache._content and not ignore_mismatch:
                return False
            self._cache = cache
            return True

        def get_timing_cache(self) -> ITimingCache:
            return self._cache

    class Builder:
        def __init__(self, logger: ILogger) -> None:
            self._logger = logger

        @property
        def num_DLA_cores(self) -> int:  # noqa: N802
            return state.cores

        def create_network(self, flags: int = 0) -> INetworkDefinition:
            return INetworkDefinition(flags)

        def create_builder_config(self) -> IBuilderConfig:
            return IBuilderConfig()

        def create_optimization_profile(self) -> IOptimizationProfile:
            return IOptimizationProfile()

        def build_serialized_network(
            self, network: INetworkDefinition, config: IBuilderConfig
        ) -> bytearray | None:
            state.timings.append(config._cache._content)
            on_dla = config.default_device_type == trt.DeviceType.DLA
            left = [n for n in network._model.graph.node if n.op_type in state.not_on_dla]
            if state.refuses or (on_dla and left and "GPU_FALLBACK" not in config._flags):
                self._logger.log(trt.ILogger.ERROR, state.refuses or "a layer cannot run on DLA")
                return None
            if not self._steps(getattr(config, "progress_monitor", None)):
                return None
            kinds = trt.NetworkDefinitionCreationFlag
            head = {
                "version": state.version,
                "network": [k.name for k in kinds if network._flags >> int(k) & 1],
                "flags": sorted(config._flags),
                "level": config.builder_optimization_level,
                "dla": config.DLA_core,
                "device": trt.DeviceType(config.default_device_type).name,
                "shapes": config._profiles[0]._shapes if config._profiles else {},
            }
            state.built.append(head)
            config._cache._content += b"tactic;"
            return bytearray(json.dumps(head).encode() + b"\n" + network._model.SerializeToString())

        def _steps(self, monitor: Any) -> bool:
            if monitor is None:
                return True
            monitor.phase_start("Building engine", None, 2)
            monitor.phase_start("Tactics", "Building engine", 2)
            going = all(monitor.step_complete("Tactics", step) for step in range(2))
            monitor.phase_finish("Tactics")
            for step in range(2):
                going = going and monitor.step_complete("Building engine", step)
            monitor.phase_finish("Building engine")
            return going

    class IExecutionContext:
        def __init__(self, engine: ICudaEngine) -> None:
            self._engine = engine
            self._inputs: dict[str, tuple[int, ...]] = {}
            self._addresses: dict[str, int] = {}
            self._allocators: dict[str, Any] = {}
            self._outputs = dict[str, tuple[int, ...]]()

        def set_input_shape(self, name: str, shape: Any) -> bool:
            wanted = self._engine.get_tensor_shape(name)
            low, _, high = self._engine._head["shapes"].get(name, (wanted, wanted, wanted))
            fits = len(shape) == len(low) and all(
                a <= b <= c for a, b, c in zip(low, shape, high, strict=True)
            )
            self._inputs[name] = tuple(shape)
            return fits

        def infer_shapes(self) -> list[str]:
            model = onnx.ModelProto()
            model.CopyFrom(self._engine._model)
            for value in model.graph.input:
                if value.name in self._inputs:
                    for dim, size in zip(
                        value.type.tensor_type.shape.dim, self._inputs[value.name], strict=True
                    ):
                        dim.dim_value = size
            for value in model.graph.output:
                value.type.tensor_type.ClearField("shape")
            del model.graph.value_info[:]
            known = onnx.shape_inference.infer_shapes(model, data_prop=True)
            self._outputs = {v.name: _dims(v) for v in known.graph.output}
            names = [n for n in self._engine._names if n not in self._outputs]
            return [n for n in names if n not in self._inputs]

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self._outputs.get(name) or self._inputs.get(name, ())

        def set_tensor_address(self, name: str, memory: int) -> bool:
            self._addresses[name] = memory
            return memory != 0

        def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
            self._allocators[name] = output_allocator
            return True

        def execute_async_v3(self, stream_handle: int) -> bool:
            if state.failing or (state.unrecorded and state.driver.recorded is not None):
                self._engine._logger.log(trt.ILogger.ERROR, "a kernel failed")
                return False
            # What a recording holds is where things lie now.
            addresses, shapes = dict(self._addresses), dict(self._inputs)
            state.driver.enqueue(lambda: self._run(addresses, shapes))
            return True

        def _run(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
            state.runs += 1
            engine = self._engine
            feeds = {}
            for name, shape in shapes.items():
                dtype = engine._dtypes[name]
                size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                feeds[name] = np.frombuffer(ctypes.string_at(addresses[name], size), dtype).reshape(
                    shape
                )
            results = engine._evaluate(feeds)
            for value, result in zip(engine._model.graph.output, results, strict=True):
                result = np.ascontiguousarray(result)
                address = addresses.get(value.name, 0)
                if (allocator := self._allocators.get(value.name)) is not None:
                    address = allocator.reallocate_output(value.name, None, result.nbytes, 256)
                    allocator.notify_shape(value.name, result.shape)
                ctypes.memmove(address, result.ctypes.data, result.nbytes)

    class ICudaEngine:
        def __init__(self, logger: ILogger, head: dict[str, Any], content: bytes) -> None:
            self._logger, self._head = logger, head
            self._model = onnx.load_from_string(content)
            self._evaluate = _evaluator(content)
            stored = {value.name for value in self._model.graph.initializer}
            inputs = [v for v in self._model.graph.input if v.name not in stored]
            self._values = {v.name: v for v in (*inputs, *self._model.graph.output)}
            self._names = [*self._values]
            self._inputs = {v.name for v in inputs}
            self._dtypes = {
                name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
                for name, v in self._values.items()
            }

        @property
        def num_io_tensors(self) -> int:
            return len(self._names)

        def get_tensor_name(self, index: int) -> str:
            return str(self._names[index])

        def get_tensor_dtype(self, name: str) -> Any:
            kind = _KINDS[self._values[name].type.tensor_type.elem_type]
            # TensorRT 8 has no integers of 64 bits.
            return getattr(trt.DataType, kind, trt.DataType.INT32)

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return _dims(self._values[name])

        def get_tensor_mode(self, name: str) -> Any:
            mode = trt.TensorIOMode
            return mode.INPUT if name in self._inputs else mode.OUTPUT

        def get_tensor_location(self, name: str) -> Any:
            place = trt.TensorLocation
            return place.HOST if name in state.on_host else place.DEVICE

        def create_execution_context(self) -> IExecutionContext:
            return IExecutionContext(self)

    class Runtime:
        __slots__ = ("DLA_core", "_logger")

        def __init__(self, logger: ILogger) -> None:
            self._logger, self.DLA_core = logger, -1

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
            line, _, content = serialized_engine.partition(b"\n")
            head = json.loads(line)
            if head["version"] != state.version or head["dla"] != self.DLA_core:
                said = f"engine of TensorRT {head['version']}"
                self._logger.log(trt.ILogger.ERROR, said)
                return None
            return ICudaEngine(self._logger, head, content)

    return {k: v for k, v in locals().items() if isinstance(v, type)}


def _evaluator(content: bytes) -> Callable[[dict[str, Any]], list[Any]]:
    """Return what computes a graph: quiet, on one thread."""
    graph = onnx.load_from_string(content).graph
    kinds = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    if onnx.TensorProto.BFLOAT16 in kinds:
        # Which ONNX Runtime does not take as arrays.
        reference = onnx.reference.ReferenceEvaluator(content)
        return lambda feeds: reference.run(None, feeds)
    onnxruntime = import_onnxruntime()
    settings, quiet = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    settings.log_severity_level = quiet.log_severity_level = 4
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds, quiet)


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(
        d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim
    )


def put(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    """Put the module of the state's version in the place of the package."""
    monkeypatch.setitem(sys.modules, "tensorrt", module(state))


@pytest.fixture
def trt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: Driver, request: pytest.FixtureRequest
) -> State:
    """A machine with a GPU, the package and an empty cache; its version may be a parameter."""
    state = State(getattr(request, "param", "10.3.0"), driver)
    put(monkeypatch, state)
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    gpu = (Device("gpu", "Orin"),)
    monkeypatch.setattr(backend, "cuda_devices", lambda: gpu)
    monkeypatch.setattr(library, "cuda_devices", lambda: gpu)
    for place in (library, cuda):
        monkeypatch.setattr(place, "compute_capability", lambda index=0: "8.7")
    return state
