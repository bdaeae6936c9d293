"""Which node two oracles disagree about."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime
from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator
from edgeinfer.convert.verify.sums import ADDING
from edgeinfer.convert.verify.witness import Abstains, Numpy, OnnxRuntime, Witness
from edgeinfer.metrics import Budget, check, compare
from edgeinfer.types import Array, Feeds

_AT_MOST_BYTES, _ANY_BYTES, _TIMES = 1 << 30, 128 << 20, 20
"""Activations that are held at once just to name a node; fewer where the weights are small."""

_AT_MOST_SECONDS = 60.0
"""CPU time for them, where ONNX Runtime is not installed."""


_ORDERS = 4.0
"""Times as much as fixed noise that an engine's order of a sum may round off."""


def save_for_engines(model: ir.Model, folder: Path) -> Path:
    """Write a model with its weights next to it, so that no size is too large; return the path."""
    path = folder / "model.onnx"
    ir.save(model, path, external_data="weights.bin", size_threshold_bytes=1024)
    return path


def disputed_node(model: ir.Model, feeds: Feeds, budget: Budget) -> str | None:
    """Name the first node where oracle A and our evaluation differ on the same inputs.

    Each node is evaluated on what oracle A computed before it, so an error upstream does not
    blame the nodes below, and what another order of its sums gives is no difference. Returns an
    empty string when every node agrees, None when nobody can tell, as where none of those that can
    be evaluated differs and some cannot.
    """
    seen = all_values(model, feeds)
    if not seen:
        return None
    evaluator = Evaluator(model, wide=True)
    summed = Evaluator(model, wide=True, rounded=True, summed=True)
    unknown = False
    for index, node in enumerate(evaluator.graph):
        expected = {str(v.name): seen[str(v.name)] for v in node.outputs if str(v.name) in seen}
        try:
            results = evaluator.run_node(index, seen)
        except CannotEvaluate:
            unknown = True
            continue
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and isinstance(results.get(name), np.ndarray):
                result = results[name].astype(value.dtype)
                apart = compare(value, result)
                if not check(apart, budget):
                    continue
                off = result
                if node.op_type in ADDING:
                    off = summed.run_node(index, seen)[name].astype(value.dtype)
                if check(apart, budget.widened(compare(result, off), _ORDERS)):
                    return f"{node.op_type} {node.name!r}"
    return None if unknown else ""


def all_values(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
    """Return every value of the main graph as oracle A computes it; empty if it cannot.

    That is ONNX Runtime, and where it is not installed ONNX's own operators.
    """
    exposed = model.clone()
    known = {v.name for v in exposed.graph.outputs}
    for node in exposed.graph:
        for value in node.outputs:
            is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
            if value.name and value.name not in known and value.uses() and is_tensor:
                exposed.graph.outputs.append(value)
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    most = min(_AT_MOST_BYTES, max(_ANY_BYTES, _TIMES * weights))
    if _size(exposed) > most or _open_size(model, feeds, most) > most:
        return {}
    return _run(exposed, feeds)


def _run(exposed: ir.Model, feeds: Feeds) -> dict[str, Array]:
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        try:
            engine: Witness
            if has_onnxruntime():
                engine = OnnxRuntime(save_for_engines(exposed, Path(folder)))
            else:
                engine = Numpy(exposed, wide=False, own=False, seconds=_AT_MOST_SECONDS)
            results = engine.run(feeds)
            engine.close()
        except Abstains:
            return {}
    return {**results, **feeds}


def _open_size(model: ir.Model, feeds: Feeds, most: int) -> int:
    """Bytes of all values whose shapes only a run decides; counted a few at a time, not held.

    Args:
        model: as it is.
        feeds: inputs.
        most: bytes beyond which the rest is not counted.
    """
    waiting = [
        (node_at, place)
        for node_at, node in enumerate(model.graph)
        for place, value in enumerate(node.outputs)
        if value.name
        and value.uses()
        and (value.shape is None or not value.shape.is_static())
        and (value.type is None or isinstance(value.type, ir.TensorType))
    ]
    total, count = 0, 1
    while waiting and total <= most:
        sized = model.clone()
        nodes = list(sized.graph)
        bits = {}
        for node_at, place in waiting[:count]:
            value = nodes[node_at].outputs[place]
            size = ir.Node("", "Size", [value], num_outputs=1)
            name = f"edgeinfer_size_{node_at}_{place}"
            size.outputs[0].name, size.outputs[0].type = name, ir.TensorType(ir.DataType.INT64)
            bits[name] = _WIDEST if value.dtype is None else value.dtype.bitwidth
            sized.graph.append(size)
            sized.graph.outputs.append(size.outputs[0])
        found = _run(sized, feeds)
        if not found:
            break
        held = sum(int(found[name]) * max(1, wide // 8) for name, wide in bits.items())
        total, waiting = total + held, waiting[count:]
        # An engine holds them all until it has requested their sizes.
        count = 2 * count if 4 * held < _ANY_BYTES else max(1, count // 2)
    return total


_WIDEST = 64
"""Bits of an element whose type is not known."""


def _size(model: ir.Model) -> int:
    """Bytes of all outputs whose shapes are known."""
    total = 0
    for value in model.graph.outputs:
        if value.shape is not None and value.dtype is not None and value.shape.is_static():
            total += int(np.prod(value.shape.numpy())) * max(1, int(value.dtype.itemsize))
    return total
