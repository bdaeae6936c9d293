"""IR files that are to be computed in bfloat16, and processors that do so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edgeinfer.errors import LoadError, NotAvailableError

COMPUTED = ("edgeinfer", "computed_in")
"""Where a model says which floats it is computed in; nothing is said of the usual ones."""

BF16 = "bf16"


def computed_in(model: Any) -> str:
    """Return what a model says of itself; empty for the usual floats."""
    path = [*COMPUTED]
    return str(model.get_rt_info(path).astype(str)) if model.has_rt_info(path) else ""


def has_bf16(core: Any, device: str = "CPU") -> bool:
    """Whether a device multiplies bfloat16 itself: x86 with AVX512-BF16 or AMX-BF16, some Arm.

    The plugin would also take the hint without such instructions, and convert each operand: slower
    than single precision, and no more exact.
    """
    return "BF16" in core.get_property(device, "OPTIMIZATION_CAPABILITIES")


def config_of(core: Any, model: Any, device: str) -> dict[str, Any]:
    """Return the options that a model asks for.

    Raises:
        NotAvailableError: the device has no such arithmetic.
        LoadError: nobody knows what the model asks for.
    """
    wanted = computed_in(model)
    if not wanted:
        return {}
    if wanted != BF16:
        raise LoadError(f"openvino: the file is to be computed in {wanted!r}, which is unknown")
    if not has_bf16(core, device):
        raise NotAvailableError(
            f"openvino: the file is to be computed in bf16, and {device} here has no such "
            "arithmetic (x86 has it with AVX512-BF16 or AMX-BF16); take a variant in fp32"
        )
    return {"INFERENCE_PRECISION_HINT": BF16}


def steps(compiled: Any) -> Counter[str]:
    """Count the steps of a compiled model by the type they compute in."""
    found: Counter[str] = Counter()
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if "runtimePrecision" in info:
            found[str(info["runtimePrecision"].astype(str))] += 1
    return found


def check(model: Any, compiled: Any) -> None:
    """Refuse a plan without a step in the floats that the model is to be computed in.

    Raises:
        LoadError: there is none.
    """
    wanted = computed_in(model)
    if wanted and not steps(compiled)[wanted]:
        raise LoadError(f"openvino: no step of the plan is computed in {wanted}")
