"""How near evaluations of a model come to each other, as plain functions of their answers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import rounds_to_integers
from edgeinfer.convert.sources.original import Original
from edgeinfer.metrics import BUDGETS, SLACK, Budget, OutputMetrics, compare
from edgeinfer.types import Array

STEPPED = (BUDGETS["static_wi8_ai16"], BUDGETS["static_wi8_ai8"])
"""How near evaluations of a model come that rounds to integers inside."""


HALF_ULP, HALF_STEP = 2.0**-11, 2.0**-9
"""Shares of a number that half precision, and eight bits of a range, may round it by."""


_NEAR = 8.0
"""How much nearer to float64 than sums of float32 an engine's kernels may be."""


def may_widen(plain: Budget, apart: OutputMetrics) -> bool:
    """Whether two evaluations of a model are far enough apart to widen a budget."""
    wide = plain.widened(apart, _NEAR * SLACK)
    bounds = ("max_rel", "sqnr_db", "channel_sqnr_db", "mismatch")
    return any(getattr(plain, name) != getattr(wide, name) for name in bounds)


def unlike(apart: dict[str, OutputMetrics]) -> bool:
    """Whether answers differ by more than rounding can: shapes, types, what is no number."""
    return any(m.problem or m.nonfinite for m in apart.values())


def one_rounding(output: Array, share: float) -> list[OutputMetrics]:
    """Return how far an output is from itself a rounding away."""
    if isinstance(output, list) or output.dtype.kind != "f" or not output.size:
        return []
    away = output.astype(np.float64) * (1.0 + share)
    return [compare(output.astype(np.float64), away)]


def leaves_float32(ours: Array, wide: Array) -> Array | None:
    """Say which elements are finite in float64 alone; None for what has none to compare."""
    if isinstance(ours, list) or np.asarray(ours).dtype.kind != "f" or ours.shape != wide.shape:
        return None
    return np.asarray(np.isfinite(wide) & ~np.isfinite(ours))


def as_real(steps: bool, array: Array) -> Array:
    """Return integers that stand for real numbers as such; others stay."""
    return array.astype("float32") if steps else array


def distances(expected: dict[str, Array], actual: dict[str, Array]) -> dict[str, OutputMetrics]:
    """Measure each output; one that is missing has that for a problem."""
    missing = OutputMetrics(problem="output is missing")
    return {n: compare(e, actual[n]) if n in actual else missing for n, e in expected.items()}


def quantized_outputs(model: ir.Model) -> frozenset[str]:
    """Outputs whose integers stand for real numbers."""
    return frozenset(
        str(v.name)
        for v in model.graph.outputs
        if (node := v.producer()) is not None and node.op_type == "QuantizeLinear"
    )


def agreement(model: ir.Model, original: Original | None) -> Budget:
    """How far two evaluations of a model may lie apart and still mean the same."""
    graph = model.graph
    dtypes = {v.dtype for v in [*graph.inputs, *graph.outputs, *graph.initializers.values()]}
    if any(map(rounds_to_integers, graph.all_nodes())):
        # What is near the middle of two steps goes either way, and kernels of integers round apart.
        return BUDGETS["static_wi8_ai16" if original is None else "static_wi8_ai8"]
    if ir.DataType.BFLOAT16 in dtypes:
        return BUDGETS["bf16"]
    return BUDGETS["fp16" if ir.DataType.FLOAT16 in dtypes else "fp32"]
