"""The engines' modules, imported without their telemetry.

onnxruntime 1.32 sends usage events to Microsoft and openvino 2026.4 to Google Analytics, both on by
default, both from the import on, and both leave files in the user's home. Nothing in edgeinfer
imports them in any other way.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

from edgeinfer.garbage import collector_paused
from edgeinfer.machine.pages import loading_code
from edgeinfer.records import dataclass

_OPENVINO_TELEMETRY = "openvino_telemetry"
_OPENVINO_CONVERTER = "openvino.tools.ovc"
_SPEC_PACKAGE = "_edgeinfer_coreml_spec"
_COREMLTOOLS_OPTIONAL = ("torch", "tensorflow", "sklearn", "xgboost", "transformers", "scipy")


def import_onnxruntime() -> ModuleType:
    """Import ``onnxruntime``; a user's own ``ORT_DISABLE_TELEMETRY`` is left as it is.

    Source: onnxruntime/Privacy.md of 1.32, "Disabling Telemetry".
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return _imported("onnxruntime")


def has_onnxruntime() -> bool:
    """Whether ``onnxruntime`` is installed; it is not imported."""
    return importlib.util.find_spec("onnxruntime") is not None


def import_openvino() -> ModuleType:
    """Import ``openvino`` as if its telemetry package were not installed, which it copes with.

    Its own switch is a file in the user's home, which is not ours to write. Its converter, half of
    the time that the import takes, is imported by the first call of ``convert_model``.
    """
    if "openvino" in sys.modules:
        return _imported("openvino")
    with _absent(_OPENVINO_TELEMETRY, _OPENVINO_CONVERTER):
        openvino = _imported("openvino")
    if not hasattr(openvino, "convert_model"):
        openvino.convert_model = _convert_model  # type: ignore[attr-defined]
    return openvino


def _convert_model(*args: Any, **kwargs: Any) -> Any:
    """Call OpenVINO's own function of this name, which takes this one's place."""
    with _absent(_OPENVINO_TELEMETRY):
        own: Any = _imported(_OPENVINO_CONVERTER)
    sys.modules["openvino"].convert_model = own.convert_model  # type: ignore[attr-defined]
    return own.convert_model(*args, **kwargs)


def import_litert() -> ModuleType:
    """Import LiteRT's interpreter: ``ai-edge-litert``, else ``tflite-runtime`` of older boards.

    Neither sends anything.
    """
    try:
        return _imported("ai_edge_litert.interpreter")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("ai_edge_litert"):
            raise
        try:
            return _imported("tflite_runtime.interpreter")
        except ModuleNotFoundError:
            raise error from None


def know_bfloat16() -> None:
    """Let NumPy know bfloat16, of which LiteRT describes and hands out arrays only then.

    The package that brings the type takes a tenth of the time of a load, so that who meets such an
    array imports it.
    """
    with suppress(ModuleNotFoundError):
        _imported("ml_dtypes")


@dataclass(frozen=True, slots=True)
class CoreAI:
    """The modules of ``coreai-core`` that are used; their order of import matters to them."""

    authoring: ModuleType
    dialect: ModuleType
    ir: ModuleType
    runtime: ModuleType


def import_coreai() -> CoreAI:
    """Import Apple's ``coreai-core``: building, saving and, off a Mac on the CPU, running assets.

    The dialect is named as private; it is what Apple's own coreai-torch builds with.
    """
    names = ("authoring", "_compiler.dialects.coreai", "_compiler.ir", "runtime")
    return CoreAI(*(_imported(f"coreai.{name}") for name in names))


def import_coremltools() -> ModuleType:
    """Import ``coremltools`` without PyTorch, and without its lines on what is missing off a Mac.

    It imports PyTorch where that is installed, for a frontend that is not used here: 340 MB and
    three seconds (coremltools 9.0 with torch 2.13), and others likewise. It sends nothing.
    """
    if "coremltools" in sys.modules:
        return _imported("coremltools")
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with _absent(*_COREMLTOOLS_OPTIONAL):
            return _imported("coremltools")
    finally:
        logging.disable(before)


def import_tensorrt() -> ModuleType:
    """Import ``tensorrt``, NVIDIA's own package; it sends nothing."""
    return _imported("tensorrt")


def import_tvm() -> ModuleType:
    """Import TVM's compiler without PyTorch; the runtime alone is ``import_tvm_runtime``.

    Its module for several machines finds out by an exception of C++ that its library is not there
    yet, and leaves itself out: a fifth of a second, in which the symbols of all libraries are read.
    """
    return _without_torch("tvm", "tvm.runtime.disco")


def leave_out_gpus_of_tvm() -> None:
    """Have TVM's compiler imported in this process without its packages for GPUs, half of its time.

    A process of a user's may want them; ``load_cuda_of_tvm`` adds the one that is used here.
    """
    os.environ.setdefault("TVM_DEVICE_BACKEND_AUTOLOAD", "0")


def load_cuda_of_tvm() -> None:
    """Load what TVM's compiler knows of CUDA, where it was left out."""
    import_tvm()
    _imported("tvm.backend").load("cuda")


def _without_torch(name: str, *others: str) -> ModuleType:
    """Import a module of TVM, which imports PyTorch where it is installed, and without others.

    What it does so for is an exchange of tensors and a frontend, neither of which is used here: two
    seconds and 240 MB (TVM 0.27 with torch 2.13).
    """
    if name in sys.modules:
        return _imported(name)
    with _absent("torch", *others), loading_code():
        return _imported(name)


def import_tvm_runtime() -> ModuleType:
    """Import ``tvm_ffi`` and load TVM's small runtime next to it; the compiler stays out.

    ``import tvm`` would load 260 MB of compiler. Worker threads neither spin between runs nor bind
    themselves to CPUs, unless the environment says otherwise.
    """
    module = _without_torch("tvm_ffi")
    # Read when a pool is made. A compiler that was loaded before would bind the calling thread too.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    if module.get_global_func("runtime.config_threadpool", allow_missing=True) is None:
        found = importlib.util.find_spec("tvm")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
        folder = os.path.join(found.submodule_search_locations[0], "lib")
        ending = "dylib" if sys.platform == "darwin" else "so"
        for name in (f"libtvm_runtime.{ending}", f"libtvm_runtime_cuda.{ending}"):
            path = os.path.join(folder, name)
            # The part for GPUs needs a driver, and is not needed without one.
            with suppress(OSError) if "cuda" in name else nullcontext():
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    return module


def import_coreml_spec() -> tuple[ModuleType, ModuleType]:
    """Import the protobuf modules ``Model_pb2`` and ``MIL_pb2`` that come with coremltools.

    Alone they take a twentieth of a second and no memory to speak of; all of coremltools takes one
    second and 90 MB. Protobuf gives both imports the same classes.
    """
    if "coremltools" in sys.modules:
        package = "coremltools.proto"
    else:
        package = _SPEC_PACKAGE
        if package not in sys.modules:
            sys.modules[package] = _spec_package()
    model = _imported(f"{package}.Model_pb2")
    return model, _imported(f"{package}.MIL_pb2")


def _spec_package() -> ModuleType:
    found = importlib.util.find_spec("coremltools")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")
    folder = os.path.join(found.submodule_search_locations[0], "proto")
    spec = importlib.util.spec_from_file_location(
        _SPEC_PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None:
        raise ModuleNotFoundError("coremltools comes without its protobuf modules")
    return importlib.util.module_from_spec(spec)


@contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Make packages that are not loaded yet look as if they were not installed."""
    added = [name for name in names if name not in sys.modules]
    # None makes an import raise ModuleNotFoundError (Python reference, "The module cache").
    sys.modules.update(dict.fromkeys(added))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


def _imported(name: str) -> ModuleType:
    """Import a module; Ctrl-C meanwhile is Ctrl-C, not an engine that is missing.

    Extensions written in C++ tell whatever is raised in their initialisation as an ImportError.
    """
    if name in sys.modules:
        # Waits where another thread still imports it. Counting what is frozen takes a while.
        return importlib.import_module(name)
    try:
        with collector_paused():
            return importlib.import_module(name)
    except ImportError as error:
        cause = error.__cause__
        while cause is not None:
            if not isinstance(cause, Exception):
                raise cause from None
            cause = cause.__cause__
        raise
