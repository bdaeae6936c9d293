"""Write ``.tflite`` files with custom operators, which no target of ours writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema
from tests.convert.sources.tflite.reading import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One operator.

    Attributes:
        name: in capitals of a builtin one that has no options, else of a custom one.
        operands: names of tensors.
        results: shapes by the tensors' names.
        raw: options of a custom one.
        version: of the operator.
    """

    name: str
    operands: Sequence[str]
    results: Mapping[str, Shape]
    raw: bytes = b""
    version: int = 1


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


def write_steps(
    path: Path,
    inputs: Mapping[str, Array],
    steps: Sequence[Step],
    *,
    outputs: Sequence[str] = (),
    constants: Mapping[str, Array] | None = None,
    kind: str = "FLOAT32",
    sizes: Mapping[str, Shape] | None = None,
) -> Path:
    """Write a file.

    Args:
        path: where to.
        inputs: like those that it will be run on.
        steps: its operators, in order.
        outputs: names of tensors; the last operator's results unless told.
        constants: by name.
        kind: element type of all tensors.
        sizes: of tensors, with -1 for those that a run decides.
    """
    import flatbuffers

    s = schema()
    model, graph = s.ModelT(), s.SubGraphT()
    model.version, model.buffers, model.operatorCodes = 3, [s.BufferT()], []
    graph.tensors, graph.operators, numbers = [], [], dict[str, int]()

    def tensor(name: str, shape: Shape, data: Array | None = None) -> None:
        made = s.TensorT()
        made.name, made.shape, made.type = name, list(shape), getattr(s.TensorType, kind)
        made.buffer, made.shapeSignature = 0, list((sizes or {}).get(name, ())) or None
        if data is not None:
            made.buffer, buffer = len(model.buffers), s.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            model.buffers.append(buffer)
        numbers[name] = len(graph.tensors)
        graph.tensors.append(made)

    for name, value in inputs.items():
        tensor(name, value.shape)
    for name, value in (constants or {}).items():
        tensor(name, value.shape, value)
    for step in steps:
        for name, shape in step.results.items():
            tensor(name, shape)
        op, code = s.OperatorT(), s.OperatorCodeT()
        op.opcodeIndex = len(model.operatorCodes)
        op.inputs, op.outputs = ([numbers[n] for n in m] for m in (step.operands, step.results))
        code.builtinCode = getattr(s.BuiltinOperator, step.name, s.BuiltinOperator.CUSTOM)
        if code.builtinCode == s.BuiltinOperator.CUSTOM:
            code.customCode, op.customOptions = step.name, np.frombuffer(step.raw, np.uint8)
        code.deprecatedBuiltinCode, code.version = code.builtinCode, step.version
        graph.operators.append(op)
        model.operatorCodes.append(code)
    graph.inputs = [numbers[n] for n in inputs]
    graph.outputs = [numbers[n] for n in outputs or steps[-1].results]
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    path.write_bytes(builder.Output())
    return path
