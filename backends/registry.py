"""Which backends there are: ours, and those that other packages register.

A package adds one with an entry point in the group ``edgeinfer.backends``::

    [project.entry-points."edgeinfer.backends"]
    acme = "acme_edgeinfer:AcmeBackend"

Ours are known without package metadata too, so a plain checkout on the path works.
"""

from __future__ import annotations

import importlib
from functools import cache

from edgeinfer.backends.base import Backend, Probe
from edgeinfer.backends.checks import one_line
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import BACKENDS, CONVERTER, RUNTIME

BUILT_IN = {
    "onnxruntime": "edgeinfer.backends.onnxruntime:OnnxRuntimeBackend",
    "openvino": "edgeinfer.backends.openvino:OpenVinoBackend",
    "litert": "edgeinfer.backends.litert:LitertBackend",
    "reference": "edgeinfer.backends.reference:ReferenceBackend",
    "coreml": "edgeinfer.backends.coreml:CoreMLBackend",
    "coreml-reference": "edgeinfer.backends.coreml_reference.backend:CoreMLReferenceBackend",
    "onnxruntime-coreml": "edgeinfer.backends.onnxruntime_coreml:OnnxRuntimeCoreMLBackend",
    "tensorrt": "edgeinfer.backends.tensorrt:TensorRTBackend",
    "onnxruntime-tensorrt": ("edgeinfer.backends.onnxruntime_tensorrt:OnnxRuntimeTensorRTBackend"),
    "coreai": "edgeinfer.backends.coreai:CoreAIBackend",
    "tvm": "edgeinfer.backends.tvm:TvmBackend",
    "llm": "edgeinfer.backends.llm.backend:LlmBackend",
}


MEANT = {
    **dict.fromkeys(("ort", "onnx"), "onnxruntime"),
    **dict.fromkeys(("tflite", "tensorflow-lite"), "litert"),
    "trt": "tensorrt",
    **dict.fromkeys(("mlprogram", "mlpackage", "core-ml"), "coreml"),
    **dict.fromkeys(("openvino_ir", "ov"), "openvino"),
    "aimodel": "coreai",
}
"""What people call a backend: its format, or a short form."""


def names() -> tuple[str, ...]:
    """Return every backend's name, ours first, then others' in alphabetical order."""
    return (*BUILT_IN, *_plugins())


def get(name: str) -> Backend:
    """Return a backend by its name; the same object each time.

    Raises:
        UsageError: no backend has that name.
        NotAvailableError: the plugin that provides it cannot be used; the message says why.
    """
    # Ours need no look at the package metadata, which costs tens of milliseconds.
    modules = (BUILT_IN[name],) if name in BUILT_IN else _plugins().get(name, ())
    if not modules:
        from difflib import get_close_matches

        known = names()
        close = MEANT.get(name.lower()) or next(iter(get_close_matches(name, known, n=1)), "")
        guess = f"did you mean {close!r}? " if close else ""
        raise UsageError(f"unknown backend {name!r}; {guess}there are {', '.join(known)}")
    if len(modules) > 1:
        claims = " and ".join(modules)
        raise NotAvailableError(f"backend {name!r} is registered twice: {claims}; uninstall one")
    return _load(name, modules[0])


def probe_all() -> tuple[Probe, ...]:
    """Probe every backend; one that cannot be used has the reason in its probe.

    A plugin that claims the name of one of ours is not used; it is listed under its place.
    """
    usurpers = tuple(
        Probe(place, None, reason=f"not used: the name {name!r} belongs to edgeinfer")
        for name, place in _entries()
        if name in BUILT_IN and place != BUILT_IN[name]
    )
    return tuple(_probe(name) for name in names()) + usurpers


def _probe(name: str) -> Probe:
    try:
        return get(name).probe()
    except Exception as error:  # a stranger's plugin may raise anything; the probe reports it
        return Probe(backend=name, version=None, reason=one_line(error))


def _entries() -> list[tuple[str, str]]:
    """Return name and place of each registered entry point, once each, sorted."""
    from importlib.metadata import entry_points

    return sorted({(entry.name, entry.value) for entry in entry_points(group=BACKENDS)})


def _plugins() -> dict[str, tuple[str, ...]]:
    """Map each name that is not ours to the entry points that claim it."""
    plugins: dict[str, tuple[str, ...]] = {}
    for name, place in _entries():
        if name not in BUILT_IN:
            plugins[name] = (*plugins.get(name, ()), place)
    return plugins


@cache
def _load(name: str, place: str) -> Backend:
    module, _, attribute = place.partition(":")
    try:
        backend = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        if getattr(error, "name", None) == module and name in BUILT_IN:
            raise NotAvailableError(f"{RUNTIME} is without it; {CONVERTER} has it") from error
        raise NotAvailableError(
            f"backend {name!r}: {place} cannot be imported: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from error
    if not isinstance(backend, Backend) or backend.name != name:
        raise NotAvailableError(f"backend {name!r}: {place} is no backend of that name")
    return backend
