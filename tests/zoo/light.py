"""The classic nets that the ``onnx`` package ships without weights, with random ones instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgeinfer.types import Array

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet"),
    *("squeezenet", "vgg19", "zfnet512"),
)


def light(name: str) -> onnx.ModelProto:
    """Load a net; each weight keeps activations in a range that real ones have."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    graph, rng = model.graph, np.random.default_rng(0)
    sizes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    roles = {n: (node.op_type, i) for node in graph.node for i, n in enumerate(node.input)}
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            value = _weight(rng, tuple(sizes[node.input[0]]), *roles[node.output[0]])
            graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _weight(rng: np.random.Generator, shape: tuple[int, ...], op: str, operand: int) -> Array:
    if len(shape) > 1 and operand == 1:
        fan_in = shape[0] if op == "MatMul" else int(np.prod(shape[1:]))
        return rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
    if operand in (1, 4):
        # A scale or a variance must not be near nothing.
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.normal(0, 0.1, shape).astype(np.float32)
