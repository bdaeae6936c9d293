"""Read back from a written file in which precision each operator computes."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from edgeinfer.convert.lower.tflite.readback import operator_codes
from edgeinfer.convert.lower.tflite.writer import schema
from edgeinfer.records import dataclass

_NAMES = {
    **{"FLOAT16": "fp16", "BFLOAT16": "bf16", "FLOAT32": "fp32", "FLOAT64": "fp64"},
    **{"INT4": "int4", "INT8": "int8", "UINT8": "uint8", "INT16": "int16"},
}

_WEIGHTED = {
    **{"CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "FULLY_CONNECTED": 1, "TRANSPOSE_CONV": 1},
    **{"CONV_3D": 1, "CONV_3D_TRANSPOSE": 1, "BATCH_MATMUL": 1},
    "UNIDIRECTIONAL_SEQUENCE_LSTM": 2,
}
"""Operators with weights, and the operand they are."""


@dataclass(frozen=True, slots=True)
class OperatorPrecision:
    """One operator of a file.

    Attributes:
        graph: name of its subgraph.
        op: the operator.
        name: Name of its first result.
        activations: element type it computes in, e.g. ``int8``; ``dynamic`` where floats get a
            scale in each run and meet stored integers; empty for integers without a scale.
        weights: element type its weights are stored in; empty without weights.
        channels: number of scales of the weights; 0 for floats.
    """

    graph: str
    op: str
    name: str
    activations: str
    weights: str = ""
    channels: int = 0


def layers(path: Path, *, with_weights: bool = False) -> tuple[OperatorPrecision, ...]:
    """List every operator of a file, or those that may have weights, in the order of execution.

    Raises:
        NotAvailableError: LiteRT's schema is not installed.
    """
    s = schema()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = s.Model.GetRootAs(data, 0)
        found = tuple(_layers(s, model, _WEIGHTED if with_weights else None))
        # Views into the map must be gone before it closes.
        del model
    return found


def summary(found: tuple[OperatorPrecision, ...]) -> dict[str, int]:
    """Count the operators with weights by ``activations/weights``, e.g. ``{"int8/int8": 53}``."""
    return dict(sorted(Counter(f"{y.activations}/{y.weights}" for y in found if y.weights).items()))


def _layers(s: Any, model: Any, wanted: Container[str] | None) -> Iterator[OperatorPrecision]:
    known = operator_codes(s, model)
    kinds = {v: k for k, v in vars(s.TensorType).items() if not k.startswith("_")}
    for graph in (model.Subgraphs(i) for i in range(model.SubgraphsLength())):
        ops = [graph.Operators(i) for i in range(graph.OperatorsLength())]
        codes = [known[o.OpcodeIndex()] for o in ops]
        # Weights behind DEQUANTIZE are stored as what it reads.
        behind = {
            o.Outputs(0): o.Inputs(0)
            for o, code in zip(ops, codes, strict=True)
            if code == "DEQUANTIZE" and graph.Tensors(o.Inputs(0)).Buffer()
        }
        for op, code in zip(ops, codes, strict=True):
            if wanted is not None and code not in wanted:
                continue
            if op.Outputs(0) in behind or not op.OutputsLength():
                continue
            result = graph.Tensors(op.Outputs(0))
            stored, channels = _weights(graph, op, code, behind, kinds)
            kind = kinds[result.Type()]
            scaled = kind.startswith("FLOAT") or kind == "BFLOAT16" or _scales(result) > 0
            computed = _NAMES.get(kind, "") if scaled else ""
            if stored in ("int8", "int4") and computed == "fp32":
                # What reads stored integers itself multiplies them with rounded activations.
                computed = computed if op.Inputs(_WEIGHTED[code]) in behind else "dynamic"
            label, name = (graph.Name() or b"").decode(), (result.Name() or b"").decode()
            yield OperatorPrecision(label, code, name, computed, stored, channels)


def _weights(
    graph: Any, op: Any, code: str, behind: dict[int, int], kinds: dict[int, str]
) -> tuple[str, int]:
    at = _WEIGHTED.get(code)
    if at is None or at >= op.InputsLength():
        return "", 0
    index = behind.get(op.Inputs(at), op.Inputs(at))
    tensor = graph.Tensors(index)
    if not tensor.Buffer():
        return "", 0
    kind = kinds[tensor.Type()]
    return _NAMES.get(kind, kind.lower()), _scales(tensor)


def _scales(tensor: Any) -> int:
    table = tensor.Quantization()
    return 0 if table is None else int(table.ScaleLength())
