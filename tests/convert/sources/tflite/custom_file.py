"""Write a ``.tflite`` file of one custom operator, which no target of ours writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema
from tests.convert.sources.tflite.reading import Array

Shape = tuple[int, ...]


def flexbuffer(fields: Mapping[str, Any]) -> bytes:
    """A map as custom operators hold it."""
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in sorted(fields.items()):
            builder.Key(name)
            if isinstance(value, (tuple, list)):
                builder.TypedVectorFromElements(list(value))
            else:
                builder.Add(value)
    return bytes(builder.Finish())


def write_custom(
    path: Path,
    name: str,
    raw: bytes,
    inputs: Mapping[str, Array],
    outputs: Sequence[Shape],
    *,
    version: int = 1,
    constants: Sequence[Array] = (),
    kind: str = "FLOAT32",
    signature: Mapping[str, Shape] | None = None,
) -> Path:
    """Write it.

    Args:
        path: where to.
        name: of the operator.
        raw: its options.
        inputs: its first operands, which are the model's inputs.
        outputs: shapes of its results.
        version: of the operator.
        constants: further operands.
        kind: element type of all tensors.
        signature: sizes of inputs with -1 for those that a run decides.
    """
    import flatbuffers

    s = schema()
    model, graph, op, code = s.ModelT(), s.SubGraphT(), s.OperatorT(), s.OperatorCodeT()
    model.version, model.buffers, graph.tensors = 3, [s.BufferT()], []

    def tensor(label: str, shape: Shape, data: Array | None = None) -> int:
        made = s.TensorT()
        made.name, made.shape, made.type = label, list(shape), getattr(s.TensorType, kind)
        made.buffer = 0
        if signature and label in signature:
            made.shapeSignature = list(signature[label])
        if data is not None:
            buffer = s.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            model.buffers.append(buffer)
            made.buffer = len(model.buffers) - 1
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    graph.inputs = [tensor(n, a.shape) for n, a in inputs.items()]
    op.inputs = graph.inputs + [tensor(f"c{i}", a.shape, a) for i, a in enumerate(constants)]
    graph.outputs = op.outputs = [tensor(f"y{i}", shape) for i, shape in enumerate(outputs)]
    op.opcodeIndex, op.customOptions = 0, np.frombuffer(raw, np.uint8)
    graph.operators, model.subgraphs = [op], [graph]
    code.builtinCode = code.deprecatedBuiltinCode = s.BuiltinOperator.CUSTOM
    code.customCode, code.version = name, version
    model.operatorCodes = [code]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    path.write_bytes(builder.Output())
    return path
