"""Graphs in the making as the installed ONNX Runtime reads them: it may be older than they are."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.onnxruntime.opset import choose, newest_format, write_as
from edgeinfer.convert.lower.onnxruntime.probe import OnnxRuntimeProbe, lacking
from edgeinfer.convert.passes.constants import takes


def readable(model: ir.Model) -> ir.Model:
    """Return the model, or a copy of an older version, new operators by their definitions."""
    version = model.opset_imports.get("", 0)
    if takes(version) and model.ir_version <= newest_format(version):
        return model
    copy = model.clone()
    if not takes(choose(copy)):
        expand(copy, lacking(copy, OnnxRuntimeProbe()))
    write_as(copy, choose(copy))
    return copy
