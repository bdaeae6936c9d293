"""ONNX Runtime's TensorRT provider: whole graphs, as engines that are built before anything runs.

The provider of ONNX Runtime's own builds is used, or one that a package ``onnxruntime-ep-*``
brings. Engines and the times of kernels are kept by the provider's own means: it writes a *context
model* that stands for the engine, which is what is loaded afterwards. **Not run on TensorRT**: the
tests use a stand-in for the provider.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from edgeinfer.backends.base import (
    Artifact,
    Bound,
    Capabilities,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.built_ahead import (
    EngineBuilder,
    SizeRanges,
    WantedEngine,
    give_timing,
    open_inputs,
    plain_model,
    take_timing,
)
from edgeinfer.backends.checks import check_device, check_signature, one_line, thread_count
from edgeinfer.backends.engine_store import EngineKey, digest_of
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeExecutable, specs
from edgeinfer.backends.onnxruntime.cuda import load_libraries
from edgeinfer.backends.onnxruntime.operators import (
    CPU_REFUSED_OPTION,
    RECORD_OPTION,
    is_for_fallback,
    placement,
)
from edgeinfer.backends.onnxruntime.plugins import plugins
from edgeinfer.backends.tensorrt.library import library_version, machine_facts
from edgeinfer.errors import LoadError, NotAvailableError
from edgeinfer.installed import install
from edgeinfer.machine.cuda import check_bf16, cuda_devices
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, Progress, TensorSpec

NAME = "onnxruntime-tensorrt"

CONTEXT = "engine.onnx"
"""The context model, next to the files that it names."""

_PROVIDER = "TensorrtExecutionProvider"
_LOG_FATAL = 4


@dataclass(frozen=True, slots=True)
class _Maker:
    """A provider that builds engines.

    Attributes:
        provider: its name.
        version: Version of TensorRT, or of the plugin that has it inside.
        prefix: Prefix of its options.
        devices: Devices of a plugin; empty for the provider of ONNX Runtime itself.
    """

    provider: str
    version: str
    prefix: str
    devices: tuple[Any, ...] = ()


class OnnxRuntimeTensorRTBackend(EngineBuilder[_Maker]):
    """Runs ONNX models as TensorRT engines."""

    name: ClassVar[str] = NAME

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
        asked = self._asked(artifact, options)

        def opened(folder: Path) -> tuple[Path, Any]:
            provider = _provider_options(asked.key)
            return folder, _session(folder / CONTEXT, asked.maker, provider, {}, options)

        folder, session = self._opened(asked, opened)
        inputs, outputs = specs(session)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        executable = _EngineExecutable(session, inputs, outputs, SizeRanges(inputs, options.shapes))
        executable.notes = (f"engine of TensorRT {asked.maker.version}: {folder}",)
        return executable

    def _make(
        self, folder: Path, asked: WantedEngine[_Maker], progress: Progress | None = None
    ) -> None:
        """Build an engine; the times of kernels come from earlier builds."""
        maker, path = asked.maker, asked.path
        provider = dict(_provider_options(asked.key))
        if maker.prefix == "trt":
            take_timing(folder)
            provider |= {
                # Next to the context model, which names it by a relative path.
                "trt_engine_cache_enable": "1",
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": str(folder),
            }
        entries = {
            "ep.context_enable": "1",
            "ep.context_file_path": str(folder / CONTEXT),
            "ep.context_embed_mode": "0",
        }
        session = _session(path, maker, provider, entries, asked.options)
        del session
        if not (folder / CONTEXT).is_file():
            raise LoadError(
                f"onnxruntime built no engine of {path}: its {maker.provider} wrote no context "
                "model"
            )
        give_timing(folder)

    def _asked(self, artifact: Artifact, options: LoadOptions) -> WantedEngine[_Maker]:
        check_device(self.probe(), options.device, "needs an NVIDIA device and TensorRT")
        path = plain_model(NAME, artifact)
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
        facts = machine_facts(maker.version, onnxruntime)
        return WantedEngine(
            maker, EngineKey(digest_of(path), facts, wanted), path, artifact, options
        )


class _EngineExecutable(OnnxRuntimeExecutable):
    """An engine; sizes that it was not built for are refused, or the provider would build anew."""

    def __init__(
        self,
        session: Any,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        ranges: SizeRanges,
    ) -> None:
        super().__init__(session, inputs, outputs)
        self._ranges = ranges

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        self._ranges.check(feeds)
        return super().run(feeds)

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers; they are copied to the device and back by each call."""
        self._ranges.check(inputs)
        return super().bind(inputs, outputs)


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
        LoadError: they are missing or no such shapes.
    """
    names = open_inputs(NAME, artifact, options)
    found = {}
    for place, which in enumerate(("min", "opt", "max")):
        shapes = [f"{n}:{'x'.join(map(str, options.shapes[n][place]))}" for n in names]
        if shapes:
            found[f"{maker.prefix}_profile_{which}_shapes"] = ",".join(shapes)
    for name in names:
        if re.search(r"[:,]", name):
            raise LoadError(f"backend {NAME!r}: input {name!r}: TensorRT's options cannot name it")
    return found


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
