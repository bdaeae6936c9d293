"""Read back which floating-point types a written ONNX file holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from edgeinfer.convert.lower.single import op_name, walk

_NAMES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
}
_ORDER = ("fp16", "bf16", "fp32", "fp64")


def read_back(path: Path) -> tuple[str, dict[str, int]]:
    """Return the precision and the operator counts of a file.

    The precision joins every float type found in weights and between nodes, e.g. ``fp16+fp32``.
    Casts at the model's own inputs and outputs do not count: those types are the source's. Nor do
    weights that are only stored in a type and cast before they are used: nothing is computed in
    it. A file without floats reads ``fp32``: nothing in it is below.
    """
    model = ir.load(path)
    found: set[str] = set()
    ops: Counter[str] = Counter()
    for _, node in walk(model):
        ops[op_name(node)] += 1
        at_border = node.op_type == "Cast" and any(v.is_graph_output() for v in node.outputs)
        if not at_border:
            found |= {_NAMES[v.dtype] for v in node.outputs if v.dtype in _NAMES}
    for graph in model.graphs():
        values = [v for v in graph.initializers.values() if not _is_stored_only(v)]
        found |= {_NAMES[v.dtype] for v in values if v.dtype in _NAMES}
    return "+".join(n for n in _ORDER if n in found) or "fp32", dict(sorted(ops.items()))


def _is_stored_only(weight: ir.Value) -> bool:
    readers = [node.op_type for node, _ in weight.uses()]
    return bool(readers) and set(readers) == {"Cast"} and not weight.is_graph_output()
