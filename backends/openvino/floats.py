"""Files that are to be computed in floats of two bytes, and processors that do so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edgeinfer.errors import LoadError, NotAvailableError

COMPUTED = ("edgeinfer", "computed_in")
"""Where a model says which floats it is computed in; nothing is said of the usual ones."""

BF16, FP16 = "bf16", "fp16"

HINTS = {BF16: "bf16", FP16: "f16"}
"""Names that the engine has for them."""


def wanted(model: Any, asked: str = "") -> str:
    """Return what a model is to be computed in; empty for the usual floats.

    Args:
        model: may say so of itself.
        asked: what the caller asks for instead.
    """
    path = [*COMPUTED]
    own = str(model.get_rt_info(path).astype(str)) if model.has_rt_info(path) else ""
    return asked or own


def has_bf16(core: Any, device: str = "CPU") -> bool:
    """Whether a device multiplies bfloat16 itself: x86 with AVX512-BF16 or AMX-BF16, some Arm.

    The plugin would also take the hint without such instructions, and convert each operand: slower
    than single precision, and no more exact.
    """
    return "BF16" in core.get_property(device, "OPTIMIZATION_CAPABILITIES")


def config_of(core: Any, kind: str, device: str) -> dict[str, Any]:
    """Return the options that make the engine compute in a type; none for the usual floats.

    Raises:
        NotAvailableError: the device has no such arithmetic.
        LoadError: nobody knows the type.
    """
    if not kind:
        return {}
    if kind not in HINTS:
        raise LoadError(f"openvino: the file is to be computed in {kind!r}, which is unknown")
    if kind == BF16 and not has_bf16(core, device):
        raise NotAvailableError(
            f"openvino: the file is to be computed in bf16, and {device} here has no such "
            "arithmetic (x86 has it with AVX512-BF16 or AMX-BF16); take a variant in fp32"
        )
    return {"INFERENCE_PRECISION_HINT": HINTS[kind]}


def steps(compiled: Any) -> Counter[str]:
    """Count the steps of a compiled model by the type they compute in."""
    found: Counter[str] = Counter()
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if "runtimePrecision" in info:
            found[str(info["runtimePrecision"].astype(str))] += 1
    return found


def check(kind: str, compiled: Any) -> None:
    """Refuse a plan without a step in the floats that the model is to be computed in.

    Raises:
        NotAvailableError: there is none.
    """
    if kind and not steps(compiled)[HINTS[kind]]:
        raise NotAvailableError(
            f"openvino: no step of the plan is computed in {kind}: the model or the processor here "
            "has nothing for it; take a variant in fp32"
        )
