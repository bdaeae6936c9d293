"""What the tests of fusions share: run a graph before and after a pass, and count what remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["": 24]>\n'


def graph(text: str) -> ir.Model:
    """Parse a graph of opset 24 and infer its shapes, as a pass would find it."""
    return ir.serde.deserialize_model(
        onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + text), strict_mode=True)
    )


def run(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    """Run in onnxruntime without any optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def ops(model: ir.Model) -> dict[str, int]:
    """Count the operators, subgraphs included."""
    return dict(Counter(n.op_type for n in model.graph.all_nodes()))


def check_fused(
    text: str,
    passes: Sequence[ir.passes.PassBase],
    remaining: dict[str, int],
    feeds: Mapping[str, Array],
    expected: Array | None = None,
    atol: float = 0.0,
) -> ir.Model:
    """Check the operators that remain, the checker, the names and the numbers.

    Args:
        text: the graph before.
        passes: what is run on it.
        remaining: operators after, with their count.
        feeds: inputs.
        expected: the first output in float64, when the test knows it.
        atol: absolute error allowed next to those of ``check_close``.
    """
    model = graph(text)
    names = [o.name for o in model.graph.outputs]
    before = run(model, feeds)
    for step in passes:
        assert step(model).model is model
    assert ops(model) == remaining
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [o.name for o in model.graph.outputs] == names
    after = run(model, feeds)
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype
        assert old.shape == new.shape
        check_close(new, old, atol)
    if expected is not None:
        check_close(after[0], expected, atol)
    assert not any(step(model).modified for step in passes)
    return model


def check_close(found: Array, wanted: Array, atol: float = 0.0) -> None:
    """Check to 1e-5 of each value, or to the rounding of the largest; NaN where NaN is wanted."""
    wanted = wanted.astype(np.float64)
    finite = wanted[np.isfinite(wanted)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    floor = max(1e-6 * min(largest, 1.0), float(np.finfo(np.float32).eps) * largest) + atol
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=1e-5, atol=floor)


def check_left_alone(text: str, *passes: ir.passes.PassBase) -> None:
    """Check that the passes neither change the graph nor say that they did."""
    model = graph(text)
    before = ir.to_proto(model).SerializeToString()
    for step in passes:
        assert not step(model).modified
    assert ir.to_proto(model).SerializeToString() == before
