"""For which CPU parts of a model are compiled."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from edgeinfer.backends.tvm.library import cpu_features
from edgeinfer.convert.lower.tvm.machines import machine

if TYPE_CHECKING:
    import onnx_ir as ir

_MACHINES = ("x86-64-v4", "x86-64-v3")
_NARROW = ("x86-64-v4-vnni", "x86-64-v3-vnni", *_MACHINES)


def machine_for(model: ir.Model) -> str:
    """The instruction set that code for a model is best made for here; empty if there is none."""
    return machine_here(narrow=any(_is_narrow(node) for node in model.graph))


def _is_narrow(node: ir.Node) -> bool:
    """Whether it has weights that are multiplied as integers of a few bits."""
    if node.op_type == "DequantizeLinear":
        return node.inputs[0] is not None and node.inputs[0].is_initializer()
    return node.op_type == "MatMulNBits"


def machine_here(*, narrow: bool = False) -> str:
    """The newest instruction set that this CPU has and code is made for; empty if none.

    Args:
        narrow: one with products of bytes, for models that have them: kernels that were tuned are
            known by the instruction set's name, and others gain nothing by another one.
    """
    known = cpu_features()
    for name in _NARROW if narrow else _MACHINES:
        found = machine(name)
        if found.arch == platform.machine() and set(found.features) <= known:
            return name
    return ""
