"""Which machine code a conversion makes where it was requested, and why not the rest.

``model`` is a variant of the whole model, where that is small in float32: a call of an engine costs
more. ``regions`` are parts of any model as code inside ONNX Runtime. Both are extras of the targets
whose profile names them: the report says what keeps one from being written, or
from its accuracy budget, and the device measures what it runs.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from edgeinfer.convert.lower.regions.setting import machine_for, machine_here
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import install
from edgeinfer.profiles.schema import Profile

if TYPE_CHECKING:
    import onnx_ir as ir

UP_TO = 10_000_000
"""Multiplications of a model that is small: up to about 300 microseconds of one core. In larger
nets the libraries' convolutions make the difference, and parts of these are tried instead."""

UP_TO_BYTES = 8 << 20
"""Weights of such a model: they lie in the bundle once more."""

MOST_BYTES = 128 << 20
"""Weights of a model whose parts are tried; each try opens it twice more."""

_NODES = 150

Made = tuple[Profile | None, str]
"""What to write machine code with; or None, and why not, where it was requested."""


def whole(model: ir.Model, profiles: Sequence[Profile], options: LowerOptions) -> Made:
    """Return what to write the whole model with."""
    asked = _asked("model", profiles, options)
    if asked is None:
        return None, ""
    count = work(model)
    if not _plain(options):
        return None, "it is made for fp32 only"
    if count is None:
        return None, f"the model has dynamic sizes, subgraphs or more than {_NODES} nodes"
    if count > UP_TO or _weights(model) > UP_TO_BYTES:
        most = f"{UP_TO // 1_000_000} million multiplications or {UP_TO_BYTES >> 20} MiB of weights"
        return None, f"the model has more than {most}"
    return replace(asked, machine=machine_for(model)), ""


def regions(model: ir.Model, profiles: Sequence[Profile], options: LowerOptions) -> Made:
    """Return what to try parts of a model with."""
    asked = _asked("regions", profiles, options)
    if asked is None:
        return None, ""
    if not _plain(options) or any(n.op_type == "QuantizeLinear" for n in model.graph):
        return None, "they are made for fp32 only"
    if _weights(model) > MOST_BYTES:
        return None, f"the model has more than {MOST_BYTES >> 20} MiB of weights"
    return replace(asked, machine=machine_for(model)), ""


def _asked(kind: str, profiles: Sequence[Profile], options: LowerOptions) -> Profile | None:
    if kind not in options.machine_code:
        return None
    return next((p for p in profiles if kind in p.machine_code), None)


def check_able() -> None:
    """Refuse to make code for this machine where that cannot be done.

    Raises:
        NotAvailableError: TVM or a compiler driver is missing, or no code is made for this CPU.
    """
    where = machine_here() if sys.platform == "linux" else ""
    if not where:
        raise NotAvailableError("machine code is made on Linux on x86-64 with AVX2, not here")
    if importlib.util.find_spec("tvm") is None:
        raise NotAvailableError(f"machine code needs TVM: {install('tvm')}")
    if shutil.which(linker := machine(where).linker) is None:
        raise NotAvailableError(f"machine code needs {linker}: apt-get install {linker}")


def _weights(model: ir.Model) -> int:
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None)


def _plain(options: LowerOptions) -> bool:
    asked = options.recipe or options.precision
    return asked == options.precision == "fp32" and not options.compress_weights


def work(model: ir.Model) -> int | None:
    """Return about how many multiplications a run takes; None where that is not known before."""
    graph = model.graph
    if len(graph) > _NODES:
        return None
    total = 0
    for node in graph:
        if any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in _attributes(node)):
            return None
        count = _of(node)
        if count is None:
            return None
        total += count
    return total


def _attributes(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _of(node: ir.Node) -> int | None:
    made = [v for v in node.outputs if v.uses() or v.is_graph_output()]
    sizes = [_sizes(v) for v in (*node.inputs, *made) if v is not None and v.name]
    if any(s is None for s in sizes):
        return None
    known = [s for s in sizes if s is not None]
    results = [s for v in made if v.name and (s := _sizes(v)) is not None]
    largest = max((prod(s) for s in results), default=0)
    if len(known) < 2:
        return largest
    first, second = known[0], known[1]
    match node.op_type:
        case "Conv":
            return largest * prod(second[1:])
        case "ConvTranspose":
            return prod(first) * prod(second[1:])
        case "MatMul" | "Gemm" | "MatMulInteger" | "MatMulNBits":
            return largest * max(prod(first[-1:]), 1)
        case "LSTM" | "GRU" | "RNN":
            return prod(first[:2]) * (prod(second) + prod(known[2]))
    return largest


def _sizes(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is None:
        return None
    found = tuple(d for d in value.shape if isinstance(d, int))
    return found if len(found) == len(value.shape) else None
