"""ResNet-50 with random weights, as ONNX (He et al. 2015, table 1; stride in the 3x3 convolution).

    python -m benchmarks.resnet50 out.onnx

Written by hand so that a benchmark of conversion needs no training framework. He-initialised
weights keep activations in a range that real ones have.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


class Builder:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def op(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv_bn(self, x: str, name: str, cin: int, cout: int, k: int, stride: int) -> str:
        scale = np.sqrt(2.0 / (cin * k * k))
        w = self.weight(f"{name}.w", self.rng.normal(0, scale, (cout, cin, k, k)))
        pads = [k // 2] * 4
        y = self.op(
            "Conv", [x, w], f"{name}.conv", kernel_shape=[k, k], strides=[stride] * 2, pads=pads
        )
        bn = [
            self.weight(f"{name}.gamma", self.rng.uniform(0.5, 1.0, cout)),
            self.weight(f"{name}.beta", self.rng.normal(0, 0.1, cout)),
            self.weight(f"{name}.mean", self.rng.normal(0, 0.1, cout)),
            self.weight(f"{name}.var", self.rng.uniform(0.5, 1.5, cout)),
        ]
        return self.op("BatchNormalization", [y, *bn], f"{name}.bn")

    def bottleneck(self, x: str, name: str, cin: int, width: int, stride: int) -> str:
        y = self.op("Relu", [self.conv_bn(x, f"{name}.1", cin, width, 1, 1)], f"{name}.r1")
        y = self.op("Relu", [self.conv_bn(y, f"{name}.2", width, width, 3, stride)], f"{name}.r2")
        y = self.conv_bn(y, f"{name}.3", width, width * 4, 1, 1)
        if stride != 1 or cin != width * 4:
            x = self.conv_bn(x, f"{name}.down", cin, width * 4, 1, stride)
        return self.op("Relu", [self.op("Add", [x, y], f"{name}.add")], f"{name}.out")


def resnet50() -> onnx.ModelProto:
    """Return the model: ``x`` (batch, 3, 224, 224) float32 to ``y`` (batch, 1000) float32."""
    b = Builder()
    x = b.op("Relu", [b.conv_bn("x", "stem", 3, 64, 7, 2)], "stem.relu")
    x = b.op("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    cin = 64
    for stage, (width, count, stride) in enumerate(BLOCKS):
        for i in range(count):
            x = b.bottleneck(x, f"layer{stage}.{i}", cin, width, stride if i == 0 else 1)
            cin = width * 4
    x = b.op("Flatten", [b.op("GlobalAveragePool", [x], "pool")], "flat")
    w = b.weight("fc.w", b.rng.normal(0, 0.02, (1000, cin)))
    b.op("Gemm", [x, w, b.weight("fc.b", np.zeros(1000))], "y", transB=1)
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1000])],
        b.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(resnet50(), sys.argv[1])
