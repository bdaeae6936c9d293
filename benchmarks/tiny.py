"""Bundles of small models made on the spot, for benchmarks that need no download."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.types import Array, TensorSpec

MLP = """
<ir_version: 10, opset_import: ["": 20]>
mlp (float[1,16] x, float[16,16] w1, float[16,8] w2) => (float[1,8] y) {
    h = MatMul(x, w1)
    r = Relu(h)
    y = MatMul(r, w2)
}
"""

# A text model in small: every length gives new shapes of every activation.
SEQUENCE = """
<ir_version: 10, opset_import: ["": 20]>
sequence (float[1,N,64] x, float[64,64] w1, float[64,64] w2) => (float[1,N,64] y) {
    q = MatMul(x, w1)
    k = Transpose<perm=[0,2,1]>(q)
    s = MatMul(q, k)
    p = Softmax<axis=-1>(s)
    v = MatMul(p, x)
    y = MatMul(v, w2)
}
"""


def save(text: str, path: Path) -> None:
    """Write a model; inputs after the first become weights, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
        shape = value.shape.numpy() if value.shape else ()
        weights = np.float32(0.1) * rng.standard_normal(shape, np.float32)
        value.const_value = ir.tensor(weights, name=value.name)
        model.graph.register_initializer(value)
    ir.save(model, path)


def bundle(text: str, output: Path, feeds: dict[str, Array], engine: str = "onnxruntime") -> Path:
    """Write a bundle of one variant, with one vector whose outputs ONNX Runtime gave."""
    model = output.with_suffix(".onnx")
    save(text, model)
    session = import_onnxruntime().InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    inputs, outputs = (
        tuple(TensorSpec(a.name, "float32", tuple(a.shape)) for a in side)
        for side in (session.get_inputs(), session.get_outputs())
    )
    with BundleWriter(output, overwrite=True) as writer:
        file = writer.add_file("variants/cpu-onnx-fp32/model.onnx", model)
        engines = (EngineRequirement(engine),)
        variant = Variant("cpu-onnx-fp32", "cpu", "onnx", "fp32", (file,), engines)
        vector = writer.add_vector(inputs, outputs, feeds, expected, "synthetic:normal")
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        source = SourceRecord("onnx", model.name, digest)
        writer.finish(Manifest(model.stem, inputs, outputs, (variant,), (vector,), source))
    return output
