"""Differences of floats, written so that TVM's simplifier leaves their rounding.

It takes floats for integers where a sum and a difference meet: ``(x + y) - x`` becomes ``y``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from edgeinfer.kernels.defs.math import constant, element_type


def keep_roundings(module: tvm.IRModule) -> tvm.IRModule:
    """Write every difference of floats as the sum with the opposite, which is the same number."""
    made = tvm.IRModule(attrs=module.attrs)
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, (tirx.Sub, _as_sum))
            made[name] = function.with_body(body)
        else:
            made[name] = function
    return made


def _as_sum(difference: Any) -> Any:
    a, b = difference.a, difference.b
    if not element_type(difference).startswith("float") or _is_zero(a):
        return difference
    return tirx.Add(a, b * constant(-1.0, b))


def _is_zero(x: Any) -> bool:
    # Zero and the opposite of zero are zero with the other sign.
    x = x.value if isinstance(x, tirx.Broadcast) else x
    return isinstance(x, tirx.FloatImm) and x.value == 0
