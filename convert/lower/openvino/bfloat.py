"""Weights in bfloat16, and a mark that asks the plugin to compute so.

bfloat16 has the range of single precision and eight of its 24 digits: nothing overflows that did
not, except the last numbers before infinity, which are what masks are often made of.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import import_openvino
from edgeinfer.backends.openvino import floats
from edgeinfer.backends.openvino.floats import BF16, COMPUTED, steps
from edgeinfer.convert.lower.mask_inputs import clamp_mask_inputs
from edgeinfer.errors import Remarks, UsageError
from edgeinfer.types import Array

LARGEST = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)  # type: ignore[no-untyped-call]
MASKED = -1e38
"""What a mask's "minus infinity" becomes: a score that is added to it stays finite."""

_LEAST = 64
"""Elements from which a matrix is stored in two bytes each; vectors are added in single precision,
and stay as they are."""


def clamp_masks(model: ir.Model, notes: Remarks) -> None:
    """Let masks that come in as inputs stay finite, in place."""
    for name in clamp_mask_inputs(model, MASKED):
        notes.add(f"bf16: mask {name!r}: what is below {MASKED:.0e} becomes {MASKED:.0e}")


def store(written: Any) -> int:
    """Store weights in bfloat16 and mark the model, in place; return how many were stored."""
    openvino = import_openvino()
    count = 0
    for node in written.get_ordered_ops():
        if node.get_type_name() != "Constant":
            continue
        if str(node.get_element_type().get_type_name()) != "f32":
            continue
        values = np.asarray(node.data)
        kept = _kept(values)
        if kept is values and (values.ndim < 2 or values.size < _LEAST):
            continue
        if values.ndim < 2 or values.size < _LEAST:
            made = openvino.opset13.constant(kept)
        else:
            made = _narrow(openvino, kept)
            count += 1
        readers = list(node.output(0).get_target_inputs())
        made.set_friendly_name(f"{node.get_friendly_name()}/{BF16}")
        for target in readers:
            target.replace_source_output(made.output(0))
    written.set_rt_info(BF16, [*COMPUTED])
    written.validate_nodes_and_infer_types()
    return count


def _kept(values: Array) -> Array:
    """Return values that bfloat16 holds: finite ones must not become infinite."""
    beyond = np.isfinite(values) & (np.abs(values) > LARGEST)
    return (
        np.where(beyond, np.sign(values) * np.float32(-MASKED), values) if beyond.any() else values
    )


def _narrow(openvino: Any, values: Array) -> Any:
    bits = np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)).view(np.uint16)
    tensor = openvino.Tensor(bits, list(values.shape), openvino.Type.bf16)
    constant = openvino.op.Constant(tensor, shared_memory=False)
    return openvino.opset13.convert(constant, "f32")


def check_plan(core: Any, written: Any, profile: str) -> str:
    """Compile the model as a device will, where this machine can; return a line for the report.

    Raises:
        UsageError: the plan has no step in bfloat16.
    """
    if not floats.has_bf16(core):
        return "bf16: the processor at hand has no such arithmetic: the plan was not looked at"
    compiled = core.compile_model(written, "CPU", {"INFERENCE_PRECISION_HINT": BF16})
    found = steps(compiled)
    if not found[BF16]:
        raise UsageError(
            f"target {profile!r}: precision 'bf16': the engine computes no operator of this model "
            "in bf16; take fp32"
        )
    rest = ", ".join(f"{n} in {kind}" for kind, n in sorted(found.items()) if kind != BF16)
    return f"bf16: {found[BF16]} steps of the plan compute in bf16, {rest}"
