"""Read back which floating-point types and operators a written file holds."""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import Path
from typing import Any

from edgeinfer.convert.lower.tflite.writer import schema

_FLOATS = {"FLOAT16": "fp16", "BFLOAT16": "bf16", "FLOAT32": "fp32", "FLOAT64": "fp64"}


def read_back(path: Path) -> tuple[str, dict[str, int]]:
    """Return the precision and the operator counts of a file.

    The precision is that of the weights: the float types of constants with more than one element,
    e.g. ``fp16+fp32``; without any, that of the computed tensors, else ``fp32``.
    """
    s = schema()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = s.Model.GetRootAs(data, 0)
        known = operator_codes(s, model)
        kinds = {v: k for k, v in vars(s.TensorType).items() if not k.startswith("_")}
        ops: Counter[str] = Counter()
        found: set[str] = set()
        for graph in (model.Subgraphs(i) for i in range(model.SubgraphsLength())):
            for op in (graph.Operators(i) for i in range(graph.OperatorsLength())):
                ops[known[op.OpcodeIndex()]] += 1
            for tensor in (graph.Tensors(i) for i in range(graph.TensorsLength())):
                kind = _FLOATS.get(kinds[tensor.Type()])
                if kind is not None and _is_weight(tensor):
                    found.add(kind)
        # Views into the map must be gone before it closes.
        del model
    return "+".join(k for k in _FLOATS.values() if k in found) or "fp32", dict(sorted(ops.items()))


def operator_codes(s: Any, model: Any) -> list[str]:
    """Return the names of the operators that a file lists, in its order."""
    names = {v: k for k, v in vars(s.BuiltinOperator).items() if not k.startswith("_")}
    listed = (model.OperatorCodes(i) for i in range(model.OperatorCodesLength()))
    return [names[code.BuiltinCode()] for code in listed]


def _is_weight(tensor: Any) -> bool:
    return bool(tensor.Buffer() != 0 and tensor.ShapeLength() > 0)
