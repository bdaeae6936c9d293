"""bfloat16 on NVIDIA's GPUs: TensorRT and ONNX Runtime's CUDA provider.

ONNX Runtime's CPU provider has no kernels for it, so nothing that is written here runs without a
GPU, and the gate evaluates the file itself, every result rounded to bfloat16. TensorRT computes
nearly all operators in it (onnx-tensorrt's ``docs/operators.md``, TensorRT 10.15); what the CUDA
provider has kernels for is data of its profile.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import onnx_ir as ir

from edgeinfer.convert.lower import halve as anywhere
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.onnxruntime.fp16 import ISLANDS
from edgeinfer.convert.lower.rules import given
from edgeinfer.convert.passes.infra import is_op
from edgeinfer.errors import Remarks

_ISLANDS = ISLANDS | {"DeformConv"}
"""TensorRT takes this one in single and half precision only."""


def halve(model: ir.Model, keep: AbstractSet[str], notes: Remarks, ops: AbstractSet[str]) -> None:
    """Convert the main graph, in place; nodes named in ``keep`` stay in single precision.

    Args:
        model: normalised.
        keep: names of nodes.
        notes: gets what stayed.
        ops: operators that the engine computes so; empty for all that the standard allows.
    """
    islands = _ISLANDS
    if ops:
        _split_clips(model, ops - _ISLANDS, keep)
        islands |= {n.op_type for n in model.graph if n.op_type not in ops}
    anywhere.halve(model, islands, keep, notes, kind=anywhere.BF16)


def is_computed(model: ir.Model) -> bool:
    """Whether an operator gives bfloat16 that is no cast."""
    dtypes = (v.dtype for n in model.graph if n.op_type != "Cast" for v in n.outputs)
    return ir.DataType.BFLOAT16 in dtypes


def _split_clips(model: ir.Model, ops: AbstractSet[str], keep: AbstractSet[str]) -> None:
    """Write a ``Clip`` in other operators where the engine has no kernel for it, in place.

    Given::

        y = Clip(x, low, high)

    Result::

        y = Min(Max(x, low), high)
    """
    if "Clip" in ops or not {"Min", "Max"} <= ops:
        return
    for node in list(model.graph):
        source = given(node, 0)
        maker = source.producer() if source is not None else None
        if not is_op(node, "Clip") or source is None or source.dtype != ir.DataType.FLOAT:
            continue
        if maker is None or maker.op_type not in ops or node.name in keep:
            # In single precision one operator is less than two.
            continue
        low, high = given(node, 1), given(node, 2)
        build = builder(model, node)
        value = source if low is None else build.op("Max", source, low)
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), source.shape
        if high is not None or value is source:
            build.op(*(("Identity", value) if high is None else ("Min", value, high)))
        build.commit(model.graph, node)
