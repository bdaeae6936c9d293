"""edgeinfer: one trained model in, the fastest right artifact on every edge device.

>>> import edgeinfer
>>> edgeinfer.export("model.onnx", "model.edge", targets=["cpu"])     # doctest: +SKIP
>>> session = edgeinfer.load("model.edge")                            # doctest: +SKIP
>>> y = session(x)                                                    # doctest: +SKIP

Nothing heavy is imported until it is used: names below are resolved on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgeinfer._version import __version__

if TYPE_CHECKING:
    from edgeinfer import errors as errors
    from edgeinfer import heads as heads
    from edgeinfer import media as media
    from edgeinfer import results as results
    from edgeinfer import tasks as tasks
    from edgeinfer import types as types
    from edgeinfer.bundle.archive import Bundle as Bundle
    from edgeinfer.comparisons import compare as compare
    from edgeinfer.convert.model_info import inspect as inspect
    from edgeinfer.convert.pipeline.entry import check as check
    from edgeinfer.convert.pipeline.entry import export as export
    from edgeinfer.profiles import targets as targets
    from edgeinfer.runtime.batches import Batching as Batching
    from edgeinfer.runtime.comparison import bench as bench
    from edgeinfer.runtime.evaluation import evaluate as evaluate
    from edgeinfer.runtime.fleet import Runtime as Runtime
    from edgeinfer.runtime.here import devices as devices
    from edgeinfer.runtime.llm.images import ImagePrompt as ImagePrompt
    from edgeinfer.runtime.llm.images import LocalImage as LocalImage
    from edgeinfer.runtime.llm.llm import LLM as LLM
    from edgeinfer.runtime.llm.params import SamplingParams as SamplingParams
    from edgeinfer.runtime.pipelines import pipeline as pipeline
    from edgeinfer.runtime.session import Session as Session
    from edgeinfer.runtime.session import load as load
    from edgeinfer.runtime.verification import verify as verify

_MODULES = ("errors", "heads", "media", "results", "tasks", "types")

_LAZY = {
    **{name: f"edgeinfer.{name}" for name in _MODULES},
    "Batching": "edgeinfer.runtime.batches",
    "Bundle": "edgeinfer.bundle.archive",
    "ImagePrompt": "edgeinfer.runtime.llm.images",
    "LLM": "edgeinfer.runtime.llm.llm",
    "LocalImage": "edgeinfer.runtime.llm.images",
    "Runtime": "edgeinfer.runtime.fleet",
    "SamplingParams": "edgeinfer.runtime.llm.params",
    "Session": "edgeinfer.runtime.session",
    "bench": "edgeinfer.runtime.comparison",
    "check": "edgeinfer.convert.pipeline.entry",
    "compare": "edgeinfer.comparisons",
    "devices": "edgeinfer.runtime.here",
    "evaluate": "edgeinfer.runtime.evaluation",
    "export": "edgeinfer.convert.pipeline.entry",
    "inspect": "edgeinfer.convert.model_info",
    "load": "edgeinfer.runtime.session",
    "pipeline": "edgeinfer.runtime.pipelines",
    "targets": "edgeinfer.profiles",
    "verify": "edgeinfer.runtime.verification",
}

__all__ = [
    "LLM",
    "Batching",
    "Bundle",
    "ImagePrompt",
    "LocalImage",
    "Runtime",
    "SamplingParams",
    "Session",
    "__version__",
    "bench",
    "check",
    "compare",
    "devices",
    "errors",
    "evaluate",
    "export",
    "heads",
    "inspect",
    "load",
    "media",
    "pipeline",
    "results",
    "targets",
    "tasks",
    "types",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        instead = "; it is edgeinfer.export" if name == "convert" else ""
        raise AttributeError(f"module 'edgeinfer' has no attribute {name!r}{instead}")
    from edgeinfer.garbage import collector_paused

    try:
        with collector_paused():
            module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        from edgeinfer.errors import NotAvailableError
        from edgeinfer.installed import without_converter

        if reason := without_converter(error):
            raise NotAvailableError(f"edgeinfer.{name}: {reason}") from error
        raise
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
