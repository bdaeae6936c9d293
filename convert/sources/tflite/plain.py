"""The same file with the weights of float operators dequantized beforehand.

LiteRT's kernels for 8-bit weights round the data to 8 bits in each run, to be faster. What the
model means is its weights; the file that this writes computes just that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema

_DATA_BYTES = 1 << 30
_VERSION = 6
"""Of DEQUANTIZE: the one that knows every type of weights."""


def write_plain(path: Path, target: Path) -> None:
    """Write it.

    Raises:
        ValueError: the file is too large to be written as one flatbuffer.
    """
    import flatbuffers

    if path.stat().st_size > _DATA_BYTES:
        raise ValueError(f"weights of {path.stat().st_size} bytes cannot be rewritten")
    s = schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(path.read_bytes(), 0))
    code = s.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = s.BuiltinOperator.DEQUANTIZE
    code.version = _VERSION
    model.operatorCodes.append(code)
    for graph in model.subgraphs:
        _rewrite(s, graph, model)
    builder = flatbuffers.Builder(path.stat().st_size + (1 << 16))
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    target.write_bytes(builder.Output())


def _rewrite(s: Any, graph: Any, model: Any) -> None:
    made: dict[int, int] = {}
    ops: list[Any] = []
    for op in graph.operators or []:
        inputs = [int(i) for i in op.inputs] if op.inputs is not None else []
        floats = bool(inputs) and inputs[0] >= 0
        if floats and graph.tensors[inputs[0]].type == s.TensorType.FLOAT32:
            for place, index in enumerate(inputs):
                if index < 0 or not _is_hybrid(s, graph.tensors[index], model):
                    continue
                if index not in made:
                    made[index] = _dequantized(s, graph, index, ops, len(model.operatorCodes) - 1)
                inputs[place] = made[index]
            op.inputs = inputs
        ops.append(op)
    graph.operators = ops


def _is_hybrid(s: Any, tensor: Any, model: Any) -> bool:
    kinds = (s.TensorType.INT8, s.TensorType.INT4, s.TensorType.UINT8)
    stored = model.buffers[tensor.buffer]
    constant = stored.data is not None or stored.size > 1
    q = tensor.quantization
    return tensor.type in kinds and constant and q is not None and q.scale is not None


def _dequantized(s: Any, graph: Any, index: int, ops: list[Any], code: int) -> int:
    """Add an operator that dequantizes a tensor; returns the new tensor."""
    source, result = graph.tensors[index], s.TensorT()
    result.name, result.shape, result.type = source.name, source.shape, s.TensorType.FLOAT32
    result.hasRank = True
    graph.tensors.append(result)
    op = s.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = code, [index], [len(graph.tensors) - 1]
    op.builtinOptionsType = s.BuiltinOptions.DequantizeOptions
    op.builtinOptions = s.DequantizeOptionsT()
    ops.append(op)
    return len(graph.tensors) - 1
