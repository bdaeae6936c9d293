"""ONNX Runtime's TensorRT provider: whole graphs, as engines that are built before anything runs.

The provider of ONNX Runtime's own builds is used, or one that a package ``onnxruntime-ep-*``
brings. Engines and the times of kernels are kept by the provider's own means: it writes a *context
model* that stands for the engine, which is what is loaded afterwards. **Not run on TensorRT**: the
tests use a stand-in for the provider.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from edgeinfer.backends.base import (
    Artifact,
    Bound,
    Capabilities,
    LoadOptions,
    Probe,
    ShapeRange,
)
from edgeinfer.backends.checks import (
    check_device,
    check_file,
    check_signature,
    one_line,
    thread_count,
)
from edgeinfer.backends.cuda import check_bf16, cuda_devices
from edgeinfer.backends.engine_store import EngineKey, EngineStore, digest_of
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeExecutable, specs
from edgeinfer.backends.onnxruntime_cuda import load_libraries
from edgeinfer.backends.onnxruntime_operators import (
    CPU_REFUSED_OPTION,
    RECORD_OPTION,
    is_for_fallback,
    placement,
)
from edgeinfer.backends.onnxruntime_plugins import plugins
from edgeinfer.backends.tensorrt import library_version, machine_facts
from edgeinfer.bundle.cache import cache_root
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.installed import install
from edgeinfer.types import Array, Feeds, TensorSpec

NAME = "onnxruntime-tensorrt"

CONTEXT = "engine.onnx"
"""The context model, beside the files that it names."""

_PROVIDER = "TensorrtExecutionProvider"
_TIMING = "timing"
_LOG_FATAL = 4

_log = logging.getLogger("edgeinfer")


@dataclass(frozen=True, slots=True)
class _Maker:
    """A provider that builds engines.

    Attributes:
        provider: its name.
        version: of TensorRT, or of the plugin that has it inside.
        prefix: of its options.
        devices: of a plugin; empty for the provider of ONNX Runtime itself.
    """

    provider: str
    version: str
    prefix: str
    devices: tuple[Any, ...] = ()


class OnnxRuntimeTensorRTBackend:
    """Runs ONNX models as TensorRT engines."""

    name: ClassVar[str] = NAME

    @property
    def _store(self) -> EngineStore:
        return EngineStore(cache_root() / "engines")

    def probe(self) -> Probe:
        """Look for an NVIDIA device, a build with the provider or a plugin, and TensorRT itself."""
        try:
            version = str(import_onnxruntime().__version__).partition("+")[0]
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"onnxruntime {reason}; {install('onnxruntime')}")
        if not (found := cuda_devices()):
            return Probe(NAME, version, reason="no NVIDIA device or driver is here")
        try:
            maker = _maker()
        except NotAvailableError as error:
            return Probe(NAME, version, reason=str(error))
        return Probe(NAME, f"{version}+trt.{maker.version}", tuple(found))

    def capabilities(self) -> Capabilities:
        """ONNX files; open sizes within the shapes that an engine was built for."""
        plain = OnnxRuntimeBackend().capabilities()
        return Capabilities(formats=frozenset({"onnx"}), dtypes=plain.dtypes - {"string"})

    def load(self, artifact: Artifact, options: LoadOptions) -> OnnxRuntimeExecutable:
        """Open the engine of a model; builds it first where no current one is here.

        Raises:
            NotAvailableError: TensorRT or an NVIDIA device is not here.
            LoadError: TensorRT refuses the model or a part of it, or an option or a shape is wrong.
        """
        maker, key, path = self._asked(artifact, options)
        folder = self._current(maker, key, path, options)
        try:
            session = _open(folder / CONTEXT, maker, key, options)
        except LoadError as error:
            # Whole on the disk and yet refused: built anew, once.
            _log.warning("%s: its engine is refused and built anew: %s", path, error)
            self._store.drop(key)
            session = _open(self._current(maker, key, path, options) / CONTEXT, maker, key, options)
        inputs, outputs = specs(session)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        executable = _EngineExecutable(session, inputs, outputs, options.shapes)
        executable.notes = (f"engine of TensorRT {maker.version}: {folder}",)
        return executable

    def unbuilt(self, artifact: Artifact, options: LoadOptions) -> str:
        """Say why an engine has to be built now; empty when a current one is here."""
        _, key, _ = self._asked(artifact, options)
        return self._store.reason(key)

    def build(self, artifact: Artifact, options: LoadOptions) -> Path:
        """Return the folder of a current engine; builds it where there is none."""
        maker, key, path = self._asked(artifact, options)
        return self._built(maker, key, path, options)

    def _current(self, maker: _Maker, key: EngineKey, path: Path, options: LoadOptions) -> Path:
        if reason := self._store.reason(key):
            _log.warning(
                "%s: building its TensorRT engine, which can take minutes: %s "
                "(`edgeinfer build BUNDLE` does so ahead)",
                path,
                reason,
            )
            start = time.monotonic()
            folder = self._built(maker, key, path, options)
            _log.warning("%s: engine built in %.1f s", path, time.monotonic() - start)
            return folder
        return self._built(maker, key, path, options)

    def _built(self, maker: _Maker, key: EngineKey, path: Path, options: LoadOptions) -> Path:
        def make(folder: Path) -> None:
            _make(folder, maker, key, path, options)

        def waiting() -> None:
            _log.warning("%s: another process builds its engine; waiting for it", path)

        return self._store.build(key, make, waiting)

    def _asked(self, artifact: Artifact, options: LoadOptions) -> tuple[_Maker, EngineKey, Path]:
        check_device(self.probe(), options.device, "needs an NVIDIA device and TensorRT")
        path = check_file(NAME, artifact, ("onnx",))
        if is_in_memory(path):
            raise LoadError(
                f"backend {NAME!r}: the bundle is encrypted, and TensorRT's engine would lie in "
                "the cache in plain; load with backend='onnxruntime'"
            )
        _refuse_engines(path)
        check_bf16(NAME, artifact.precision)
        maker = _maker()
        onnxruntime = str(import_onnxruntime().__version__)
        wanted = {
            **_precision(maker, artifact.precision),
            **_profiles(maker, artifact, options),
            **options.extra,
            "optimize": str(options.optimize),
            "provider": maker.provider,
        }
        return (
            maker,
            EngineKey(digest_of(path), machine_facts(maker.version, onnxruntime), wanted),
            path,
        )


class _EngineExecutable(OnnxRuntimeExecutable):
    """An engine; sizes that it was not built for are refused, or the provider would build anew."""

    def __init__(
        self,
        session: Any,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        shapes: Mapping[str, ShapeRange],
    ) -> None:
        super().__init__(session, inputs, outputs)
        self._shapes = {s.name: shapes[s.name] for s in inputs if s.name in shapes}

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        self._check(feeds)
        return super().run(feeds)

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers; they are copied to the device and back by each call."""
        self._check(inputs)
        return super().bind(inputs, outputs)

    def _check(self, feeds: Feeds) -> None:
        for name, (low, _, high) in self._shapes.items():
            if name not in feeds:
                continue
            shape = feeds[name].shape
            sizes = zip(low, shape, high, strict=False)
            if len(shape) != len(low) or not all(a <= b <= c for a, b, c in sizes):
                raise RunError(
                    f"input {name!r}: expected a shape from {list(low)} to {list(high)}, for which "
                    f"its engine was built, received {list(shape)}; `edgeinfer build --shape` "
                    "builds it for others"
                )


def _refuse_engines(path: Path) -> None:
    """Refuse a graph that brings an engine of its own, which is as good as a program.

    Raises:
        LoadError: it has a node of the kind that holds one.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"EPContext") >= 0:
                raise LoadError(
                    f"backend {NAME!r}: {path} holds an engine that somebody else built "
                    "(EPContext), which is machine code; give the model that it was built from"
                )


def _maker() -> _Maker:
    """Return the provider to use: the engine's own, else a plugin's.

    Raises:
        NotAvailableError: there is none; says what is missing.
    """
    own = _PROVIDER in import_onnxruntime().get_available_providers()
    if own and (version := library_version()):
        return _Maker(_PROVIDER, version, "trt")
    problems = []
    for plugin in plugins():
        for name in plugin.providers:
            if "tensorrt" not in name.lower():
                continue
            if plugin.problem:
                problems.append(f"{plugin.module}: {plugin.problem}")
                continue
            devices = tuple(d for d in plugin.devices if d.ep_name == name)
            prefix = "trt" if name == _PROVIDER else "nv"
            return _Maker(name, plugin.version or "unknown", prefix, devices)
    missing = (
        "TensorRT's libraries (libnvinfer) cannot be loaded"
        if own
        else f"this build of onnxruntime has no {_PROVIDER}"
    )
    raise NotAvailableError("; ".join((missing, *problems, "`edgeinfer doctor` says what to do")))


def _precision(maker: _Maker, precision: str) -> dict[str, str]:
    """Allow what the artifact holds; plugins take it from the graph by themselves."""
    parts = precision.split("+")
    if maker.prefix != "trt":
        return {}
    # Builds before 1.23 do not know the option.
    more = {"trt_bf16_enable": "1"} if "bf16" in parts else {}
    return more | {
        "trt_fp16_enable": str(int("fp16" in parts)),
        "trt_int8_enable": str(int(any(p.startswith("static_wi8") for p in parts))),
        # Sums of squares leave the range of half precision.
        "trt_layer_norm_fp32_fallback": "1",
    }


def _profiles(maker: _Maker, artifact: Artifact, options: LoadOptions) -> dict[str, str]:
    """Spell the shapes of inputs with open sizes; an engine is built for them.

    Raises:
        LoadError: they are missing or no such shapes; nothing is ever built inside a run.
    """
    names = [spec.name for spec in artifact.inputs if not spec.is_static]
    missing = [name for name in names if name not in options.shapes]
    if missing:
        raise LoadError(
            f"backend {NAME!r}: the sizes of {', '.join(map(repr, missing))} are open: give the "
            "smallest, usual and largest shape, as `edgeinfer build --shape` does"
        )
    found = {}
    for place, which in enumerate(("min", "opt", "max")):
        shapes = [f"{n}:{'x'.join(map(str, options.shapes[n][place]))}" for n in names]
        if shapes:
            found[f"{maker.prefix}_profile_{which}_shapes"] = ",".join(shapes)
    for name in names:
        if re.search(r"[:,]", name):
            raise LoadError(f"backend {NAME!r}: input {name!r}: TensorRT's options cannot name it")
    return found


def _make(folder: Path, maker: _Maker, key: EngineKey, path: Path, options: LoadOptions) -> None:
    """Build an engine into an empty folder; the times of kernels come from earlier builds."""
    provider = dict(_provider_options(key))
    timing = cache_root() / "engines" / _TIMING
    if maker.prefix == "trt":
        _take_timing(timing, folder)
        provider |= {
            # Beside the context model, which names it by a relative path.
            "trt_engine_cache_enable": "1",
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(folder),
        }
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(folder / CONTEXT),
        "ep.context_embed_mode": "0",
    }
    session = _session(path, maker, provider, entries, options)
    del session
    if not (folder / CONTEXT).is_file():
        raise LoadError(
            f"onnxruntime built no engine of {path}: its {maker.provider} wrote no context model"
        )
    _give_timing(folder, timing)


def _open(path: Path, maker: _Maker, key: EngineKey, options: LoadOptions) -> Any:
    return _session(path, maker, _provider_options(key), {}, options)


def _provider_options(key: EngineKey) -> dict[str, str]:
    ours = ("optimize", "provider")
    return {"device_id": "0"} | {
        k: v for k, v in key.options.items() if "." not in k and k not in ours
    }


def _session(
    path: Path,
    maker: _Maker,
    provider: dict[str, str],
    entries: dict[str, str],
    options: LoadOptions,
) -> Any:
    onnxruntime = import_onnxruntime()
    load_libraries()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _LOG_FATAL
    settings.intra_op_num_threads = thread_count(NAME, options)
    if not options.optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    own = {k: v for k, v in options.extra.items() if "." in k}
    strict = {CPU_REFUSED_OPTION: "0" if options.fallback else "1", RECORD_OPTION: "1"}
    for name, value in {**strict, **own, **entries}.items():
        settings.add_session_config_entry(name, value)
    try:
        if maker.devices:
            # A plugin counts devices by itself.
            rest = {k: v for k, v in provider.items() if k != "device_id"}
            settings.add_provider_for_devices(list(maker.devices[:1]), rest)
            session = onnxruntime.InferenceSession(str(path), settings)
        else:
            session = onnxruntime.InferenceSession(
                str(path), settings, providers=[(maker.provider, provider)], enable_fallback=0
            )
    except Exception as error:
        why = ""
        if is_for_fallback(error):
            # An engine that is only looked at, so that the operators can be named.
            rest = {k: v for k, v in entries.items() if not k.startswith("ep.context")}
            allowed = replace(options, fallback=True)
            seen = _session(path, maker, _plain_provider(provider), rest, allowed)
            why = str(placement(seen, (maker.provider,)) or "")
        raise LoadError(f"onnxruntime refuses {path}: {why or one_line(error)}") from error
    got = session.get_providers()
    if got[0] != maker.provider:
        raise NotAvailableError(f"onnxruntime offers {', '.join(got)} instead of {maker.provider}")
    return session


def _plain_provider(provider: dict[str, str]) -> dict[str, str]:
    """Without what would write an engine."""
    return {k: v for k, v in provider.items() if "cache" not in k}


def _take_timing(timing: Path, folder: Path) -> None:
    """Copy what earlier builds have measured, so that a build that is killed cannot spoil it."""
    if timing.is_dir():
        for file in timing.glob("*.timing"):
            shutil.copyfile(file, folder / file.name)


def _give_timing(folder: Path, timing: Path) -> None:
    for file in folder.glob("*.timing"):
        timing.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = timing / f".{file.name}.{os.getpid()}"
        shutil.move(file, fresh)
        os.replace(fresh, timing / file.name)
