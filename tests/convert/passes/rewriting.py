"""What the tests of clean-up passes share: bit-equal numbers before and after a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from edgeinfer.types import Array

Feeds = Mapping[str, Array]


def f32(values: Any) -> Array:
    """An array of float32."""
    return np.asarray(values, np.float32)


def parse(text: str, opset: int = 24) -> ir.Model:
    """Parse a graph; its shapes are what the text declares."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "local": 1]>\n'
    model: ir.Model = ir.from_proto(onnx.parser.parse_model(head + text))
    return model


def run(model: ir.Model, feeds: Feeds) -> list[Array]:
    """Run in ONNX Runtime without any optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return list(session.run(None, {k: v for k, v in feeds.items() if k in names}))


def ops(model: ir.Model) -> dict[str, int]:
    """Count the operators, subgraphs included."""
    return dict(Counter(n.op_type for g in model.graphs() for n in g))


def interface(model: ir.Model) -> list[tuple[str | None, ir.DataType | None]]:
    """Names and element types of inputs and outputs, in order."""
    return [(v.name, v.dtype) for v in (*model.graph.inputs, *model.graph.outputs)]


def check(
    model: ir.Model,
    passes: Sequence[ir.passes.PassBase],
    remaining: Mapping[str, int],
    feeds: Feeds,
) -> ir.Model:
    """Check the operators that remain, the checker, the interface and, bit for bit, the numbers."""
    before, face = run(model, feeds), interface(model)
    for step in passes:
        step(model)
    assert ops(model) == dict(remaining)
    onnx.checker.check_model(ir.to_proto(model))
    assert interface(model) == face
    for old, new in zip(before, run(model, feeds), strict=True):
        assert_same_bits(old, new)
    return model


def check_left_alone(model: ir.Model, *passes: ir.passes.PassBase) -> None:
    """Check that passes neither change a graph nor say that they did."""
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    for step in passes:
        assert not step(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def assert_same_bits(old: Array, new: Array) -> None:
    """Equal types, shapes and bytes: -0.0 is not 0.0, and NaN is NaN."""
    assert old.dtype == new.dtype
    assert old.shape == new.shape
    if old.dtype.kind in "OSU":
        assert old.tolist() == new.tolist()
    else:
        np.testing.assert_array_equal(
            np.ascontiguousarray(old).reshape(-1).view(np.uint8),
            np.ascontiguousarray(new).reshape(-1).view(np.uint8),
        )
