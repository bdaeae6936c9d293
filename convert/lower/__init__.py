"""Lowering: one normalised graph to the artifact of one target format."""

from __future__ import annotations

import importlib

from edgeinfer.convert.lower.target import Lowered, LowerOptions, Target
from edgeinfer.errors import UsageError

__all__ = ["FORMATS", "LowerOptions", "Lowered", "Target", "target_for"]

_TARGETS = {
    "onnx": ("edgeinfer.convert.lower.onnxruntime.target", "OnnxTarget"),
    "openvino_ir": ("edgeinfer.convert.lower.openvino.target", "OpenVinoTarget"),
    "aimodel": ("edgeinfer.convert.lower.coreai.target", "CoreAITarget"),
    "mlprogram": ("edgeinfer.convert.lower.coreml.target", "CoreMLTarget"),
    "tflite": ("edgeinfer.convert.lower.tflite.target", "TfliteTarget"),
    "onnx_tvm": ("edgeinfer.convert.lower.regions.target", "RegionsTarget"),
    "tvm": ("edgeinfer.convert.lower.tvm.target", "TvmTarget"),
}

FORMATS = tuple(_TARGETS)
"""Formats that can be written; the profiles name them."""


def target_for(format: str) -> Target:
    """Return the writer of a format; its module is imported only now.

    Raises:
        UsageError: nothing here writes the format.
    """
    if format not in _TARGETS:
        raise UsageError(f"format {format!r} cannot be written; known: {', '.join(FORMATS)}")
    module, name = _TARGETS[format]
    target: Target = getattr(importlib.import_module(module), name)()
    return target
