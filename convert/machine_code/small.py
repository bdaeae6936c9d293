"""Machine code beside the other artifacts: of whole models, where they are small, and of regions.

The target ``cpu`` is the machine that converts. Where TVM and a compiler driver are installed, a
model of few multiplications in float32 is written as code for it too, for the device to measure: a
call of an engine costs more. Of all models parts are tried as code inside ONNX Runtime. Both are
extras: what keeps one from being written, or from its accuracy budget, is told in the report.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from edgeinfer.convert.lower.regions.setting import machine_for, machine_here, seconds
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.profiles.schema import Profile

if TYPE_CHECKING:
    import onnx_ir as ir

SWITCH = "EDGEINFER_SMALL_CODE"
"""``off`` writes none."""

UP_TO = 10_000_000
"""Multiplications of a model that is small: up to about 300 microseconds of one core. In larger
nets the libraries' convolutions make the difference, and parts of these are tried instead."""

UP_TO_BYTES = 8 << 20
"""Weights of such a model: they lie in the bundle once more."""

MOST_BYTES = 128 << 20
"""Weights of a model whose parts are tried; each try opens it twice more."""

_TARGET = "cpu"
_NODES = 150


def profile_of(
    model: ir.Model, profiles: Sequence[Profile], options: LowerOptions
) -> Profile | None:
    """Return what to write machine code with; None where that is not asked for or does not pay."""
    asked = next((p for p in profiles if p.name == _TARGET), None)
    if asked is None or os.environ.get(SWITCH) == "off" or not _plain(options) or not _can():
        return None
    count = work(model)
    if count is None or count > UP_TO or _weights(model) > UP_TO_BYTES:
        return None
    return replace(asked, machine=machine_for(model))


def with_regions(
    model: ir.Model, profiles: Sequence[Profile], options: LowerOptions
) -> Profile | None:
    """Return what to try parts of a model as code with; None where nothing is to be tried."""
    asked = next((p for p in profiles if p.name == _TARGET), None)
    if asked is None or not seconds() or not _plain(options) or not _can():
        return None
    if _weights(model) > MOST_BYTES or any(n.op_type == "QuantizeLinear" for n in model.graph):
        return None
    return replace(asked, machine=machine_for(model))


def _weights(model: ir.Model) -> int:
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None)


def _plain(options: LowerOptions) -> bool:
    asked = options.recipe or options.precision
    return asked == options.precision == "fp32" and not options.compress_weights


def _can() -> bool:
    where = machine_here()
    return (
        sys.platform == "linux"
        and bool(where)
        and shutil.which(machine(where).linker) is not None
        and importlib.util.find_spec("tvm") is not None
    )


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
