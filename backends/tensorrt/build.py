"""An engine built by TensorRT's own Python API from an ONNX file: network, options, progress.

Sources: NVIDIA's Python API reference of TensorRT 8.6, 10.3 and 11.4 (``Builder``,
``IBuilderConfig``, ``OnnxParser``, ``IProgressMonitor``, ``ITimingCache``), and the chapters on
strong types, DLA and dynamic shapes of its documentation. **Never run with TensorRT itself.**
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import LoadOptions, ShapeRange
from edgeinfer.backends.built_ahead import check_named
from edgeinfer.backends.checks import one_line
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

NAME = "tensorrt"

_STRONG_DLA_SINCE = (11,)
"""Before, a network with strong types could not be placed on a DLA."""

_FLAGS = {"fp16": "FP16", "bf16": "BF16", "static_wi8_ai8": "INT8", "fp8": "FP8"}
"""What a builder without strong types has to be allowed, by a part of an artifact's precision."""

_SHOWN = 8
_LINES = 20

_log = logging.getLogger("edgeinfer")


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """Options that a user names, by these very names.

    Attributes:
        workspace_mb: most memory that a layer may use while it runs; None for the whole device's.
        dla_core: which accelerator runs it; None for the GPU.
        gpu_fallback: 1 lets layers that the accelerator does not take run on the GPU.
        optimization_level: 0 builds fastest, 5 searches longest; None for TensorRT's own 3.
    """

    workspace_mb: int | None = None
    dla_core: int | None = None
    gpu_fallback: int = 0
    optimization_level: int | None = None


def settings_of(extra: Mapping[str, str]) -> BuilderSettings:
    """Read a user's options.

    Raises:
        LoadError: lists each that is unknown or no such number.
    """
    most = {"workspace_mb": 1 << 20, "dla_core": 15, "gpu_fallback": 1, "optimization_level": 5}
    problems, found = [], {}
    for name, text in extra.items():
        if name not in most:
            problems.append(f"there is no option {name!r}")
        elif not (text.isascii() and text.isdecimal() and int(text) <= most[name]):
            problems.append(f"{name}={text}: expected a number from 0 to {most[name]}")
        else:
            found[name] = int(text)
    if problems:
        known = ", ".join(field.name for field in fields(BuilderSettings))
        raise LoadError(f"backend {NAME!r}: {'; '.join(problems)}; options are {known}")
    return BuilderSettings(**found)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """All that decides what is built, besides the model.

    Attributes:
        settings: a user's.
        strong: whether the graph's types are binding.
        allowed: builder flags for precisions, where they are not.
        shapes: Shapes of inputs with open sizes.
        tf32: whether single precision may be computed in TF32.
        level: Level of optimisation; None for TensorRT's own.
    """

    settings: BuilderSettings
    strong: bool
    allowed: tuple[str, ...]
    shapes: Mapping[str, ShapeRange]
    tf32: bool
    level: int | None

    def to_key(self) -> dict[str, str]:
        """Spell it for the key of an engine."""
        named = {f.name: str(getattr(self.settings, f.name)) for f in fields(BuilderSettings)}
        found = {
            **named,
            "types": "strong" if self.strong else "weak",
            "allowed": "+".join(self.allowed),
            "tf32": str(self.tf32),
            "optimization_level": str(self.level),
        }
        for name, shapes in self.shapes.items():
            found[f"shape {name}"] = ":".join("x".join(map(str, shape)) for shape in shapes)
        return found


def plan_of(trt: Any, precision: str, names: list[str], options: LoadOptions) -> BuildPlan:
    """Decide how to build; nothing is asked of the device.

    Args:
        trt: the module.
        precision: Precision of the artifact, as in a manifest.
        names: Names of inputs with open sizes, whose shapes are known.
        options: Options of the load.

    Raises:
        LoadError: lists what cannot be.
    """
    settings = settings_of(options.extra)
    on_dla = settings.dla_core is not None
    strong = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    strong = strong and (not on_dla or version_of(trt) >= _STRONG_DLA_SINCE)
    parts = [p for p in precision.split("+") if p in _FLAGS]
    shapes = {name: options.shapes[name] for name in names}
    problems = []
    if on_dla and not {"fp16", "static_wi8_ai8"} & set(parts):
        problems.append(
            f"dla_core: a DLA computes in fp16 and int8, the artifact is in {precision}"
        )
    if moving := [n for n, (low, _, high) in shapes.items() if on_dla and low != high]:
        problems.append(
            f"dla_core: a DLA takes one shape; {', '.join(map(repr, moving))} has several"
        )
    allowed = () if strong else tuple(_FLAGS[p] for p in parts)
    if unknown := [flag for flag in allowed if not hasattr(trt.BuilderFlag, flag)]:
        problems.append(f"TensorRT {trt.__version__} does not know {', '.join(unknown)}")
    if problems:
        raise LoadError(f"backend {NAME!r}: {'; '.join(problems)}")
    level = settings.optimization_level if options.optimize else 0
    return BuildPlan(settings, strong, allowed, shapes, not options.precise, level)


def version_of(trt: Any) -> tuple[int, ...]:
    """Return e.g. ``(10, 3)``."""
    return tuple(int(p) for p in str(trt.__version__).split(".")[:2] if p.isdecimal())


@functools.cache
def log_of(trt: Any) -> Any:
    """Return the process's logger; the library keeps the first that it is given.

    What it says of an error is kept for the message of the call that failed.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=_LINES)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors.append(msg)
            _log.debug("TensorRT: %s", msg)

    return Log()


def reason_of(trt: Any, otherwise: str) -> str:
    """Return what the library said of errors since the last time, on one line."""
    errors = log_of(trt).errors
    lines = [*errors]
    errors.clear()
    return one_line(RuntimeError("; ".join(lines) or otherwise))


@dataclass(frozen=True, slots=True)
class Made:
    """What a build gives.

    Attributes:
        engine: its bytes.
        timing: times of kernels, for later builds; empty where there are none.
        notes: for whoever loads it.
    """

    engine: bytes
    timing: bytes
    notes: tuple[str, ...] = ()


def build(trt: Any, path: Path, plan: BuildPlan, timing: bytes, progress: Progress | None) -> Made:
    """Build an engine.

    Args:
        trt: the module.
        path: Path of the ONNX file; its weights may lie next to it.
        plan: how.
        timing: what earlier builds gave; empty for none.
        progress: Called with what is being done.

    Raises:
        LoadError: TensorRT refuses the model or an option; says all that it said.
    """
    monitor = _monitor_of(trt, progress)
    try:
        made = _build(trt, path, plan, timing, monitor)
    except LoadError:
        raise
    except Exception as error:
        why = reason_of(trt, one_line(error))
        raise LoadError(f"TensorRT cannot build an engine of {path}: {why}") from error
    finally:
        # An interrupt, or an error of the callback: it ended the build.
        if monitor is not None and monitor.error is not None:
            raise monitor.error
    return made


def _build(trt: Any, path: Path, plan: BuildPlan, timing: bytes, monitor: Any) -> Made:
    log = log_of(trt)
    log.errors.clear()
    trt.init_libnvinfer_plugins(log, "")
    builder = trt.Builder(log)
    kinds = trt.NetworkDefinitionCreationFlag
    # What neither has is always so: batches are explicit since TensorRT 10, types strong since 11.
    kind = getattr(kinds, "STRONGLY_TYPED" if plan.strong else "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if kind is None else 1 << int(kind))
    _parse(trt, network, path)
    config = builder.create_builder_config()
    _configure(trt, config, plan)
    _add_profile(builder, network, config, plan)
    notes = (
        _use_dla(trt, builder, network, config, plan) if plan.settings.dla_core is not None else ()
    )
    cache = config.create_timing_cache(timing)
    if not config.set_timing_cache(cache, False):
        # Of another device or driver: what it says is not true here.
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    if monitor is not None:
        config.progress_monitor = monitor
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        why = reason_of(trt, "it gives no reason")
        left = f"; {notes[0]}" if notes and not plan.settings.gpu_fallback else ""
        raise LoadError(f"TensorRT {trt.__version__} refuses {path}: {why}{left}")
    times = config.get_timing_cache()
    return Made(bytes(serialized), b"" if times is None else bytes(times.serialize()), notes)


def _parse(trt: Any, network: Any, path: Path) -> None:
    parser = trt.OnnxParser(network, log_of(trt))
    if parser.parse_from_file(str(path)):
        return
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    lines = [_spelt(error) for error in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    raised = (
        f"TensorRT {trt.__version__} cannot read {path}: {'; '.join(lines) or reason_of(trt, '')}"
    )
    reason_of(trt, "")
    raise LoadError(raised)


def _spelt(error: Any) -> str:
    """Spell what is wrong with a node; 8.6 knows only its number."""
    if hasattr(error, "node_operator"):
        where = f"{error.node_operator()} {error.node_name()!r}"
    else:
        where = f"node {error.node()}"
    return f"{where}: {one_line(RuntimeError(error.desc()))}"


def _configure(trt: Any, config: Any, plan: BuildPlan) -> None:
    if not plan.tf32:
        # On by default: ten bits of what single precision has.
        config.clear_flag(trt.BuilderFlag.TF32)
    for flag in plan.allowed:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    if plan.settings.workspace_mb is not None:
        size = plan.settings.workspace_mb << 20
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, size)
    if plan.level is not None:
        config.builder_optimization_level = plan.level


def _add_profile(builder: Any, network: Any, config: Any, plan: BuildPlan) -> None:
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    if sizes := [t.name for t in inputs if t.is_shape_tensor]:
        raise LoadError(
            f"backend {NAME!r}: values of {', '.join(map(repr, sizes))} are sizes of other "
            "tensors: no engine is built for that; load with backend='onnxruntime'"
        )
    names = [t.name for t in inputs if -1 in tuple(t.shape)]
    check_named(NAME, names, plan.shapes)
    if not names:
        return
    profile = builder.create_optimization_profile()
    for name in names:
        profile.set_shape(name, *plan.shapes[name])
    config.add_optimization_profile(profile)


def _use_dla(trt: Any, builder: Any, network: Any, config: Any, plan: BuildPlan) -> tuple[str, ...]:
    """Place the network on an accelerator; says which layers that does not take."""
    core, here = plan.settings.dla_core, int(builder.num_DLA_cores)
    if core is None or core >= here:
        raise LoadError(
            f"backend {NAME!r}: dla_core={core}: TensorRT {trt.__version__} has {here} DLA cores "
            "on this device; leave the option out for the GPU"
        )
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    if plan.settings.gpu_fallback:
        config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    left = [layer.name for layer in layers if not config.can_run_on_DLA(layer)]
    if not left:
        return ()
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    which = f"{len(left)} of {len(layers)} layers: {', '.join(left[:_SHOWN])}{more}"
    hint = (
        "they run on the GPU"
        if plan.settings.gpu_fallback
        else "gpu_fallback=1 lets them run on the GPU"
    )
    return (f"DLA {core} does not take {which}; {hint}",)


def _monitor_of(trt: Any, progress: Progress | None) -> Any:
    """Return what TensorRT tells how far it is; None before version 10, which has no such thing."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Told by any thread of the library; nothing may be raised into it."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.error: BaseException | None = None
            self._phases = Phases()
            self._lock = threading.Lock()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._phases.start(phase_name, parent_phase, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._phases.finish(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            try:
                with self._lock:
                    self._phases.step(phase_name, step)
                    name, part = self._phases.state
                if progress is not None:
                    progress(name, part)
            except BaseException as error:
                self.error = error
            return self.error is None

    return Monitor()


class Phases:
    """Where a build is: phases within phases, each of a number of steps."""

    def __init__(self) -> None:
        self._open: dict[str, list[Any]] = {}

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Open a phase."""
        self._open[name] = [parent, max(steps, 1), 0]

    def finish(self, name: str) -> None:
        """Close it."""
        self._open.pop(name, None)

    def step(self, name: str, step: int) -> None:
        """Note that a step, counted from 0, is done."""
        if name in self._open:
            self._open[name][2] = step + 1

    @property
    def state(self) -> tuple[str, float]:
        """Name of the outermost phase, and how much of it is done."""
        name = next((n for n, (p, _, _) in self._open.items() if p not in self._open), "")
        return name, self._part(name)

    def _part(self, name: str) -> float:
        if name not in self._open:
            return 0.0
        _, steps, done = self._open[name]
        inner = max(
            (self._part(n) for n, (p, _, _) in self._open.items() if p == name), default=0.0
        )
        return float(min(1.0, (done + inner) / steps))
