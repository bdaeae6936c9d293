"""Writing a model as one ``.onnx`` file without holding its weights in memory."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from edgeinfer.wire import varint

STREAMED_BYTES = 4096
"""Smaller tensors are written with the graph."""

# Field numbers of onnx.proto, with wire type 2 (length-delimited).
_MODEL_GRAPH = 7 << 3 | 2
_GRAPH_INITIALIZER = 5 << 3 | 2
_TENSOR_RAW_DATA = 9 << 3 | 2


def save(model: ir.Model, path: Path) -> None:
    """Write a model with all its weights inside.

    Weights are read one at a time, so those that are mapped from a file or computed when they are
    read are never in memory together. The model is not modified.

    Raises:
        OSError: the file cannot be written.
    """
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and _is_streamed(value.const_value)
    }
    proto = ir.to_proto(_hollow(model, large))
    heads = []
    for tensor in proto.graph.initializer:
        if tensor.name in large:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
        heads.append((tensor.name, tensor.SerializeToString(deterministic=True)))
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    with path.open("wb") as out:
        out.write(proto.SerializeToString(deterministic=True))
        sizes = [_body_size(head, large.get(name)) for name, head in heads]
        total = len(graph) + sum(len(_tag(_GRAPH_INITIALIZER, size)) + size for size in sizes)
        out.write(_tag(_MODEL_GRAPH, total))
        out.write(graph)
        for (name, head), size in zip(heads, sizes, strict=True):
            out.write(_tag(_GRAPH_INITIALIZER, size))
            out.write(head)
            if name in large:
                _write_data(out, large[name])


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False
    # A tensor in another file, however small, would be written as a reference to that file.
    return tensor.nbytes >= STREAMED_BYTES or isinstance(tensor, ir.ExternalTensor)


def _hollow(model: ir.Model, large: dict[str, ir.TensorProtocol]) -> ir.Model:
    """Return a copy whose large weights are stand-ins that nothing reads."""
    copy = model.clone()
    for name, tensor in large.items():
        copy.graph.initializers[name].const_value = ir.ExternalTensor(
            "-", 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name, base_dir=""
        )
    return copy


def _body_size(head: bytes, tensor: ir.TensorProtocol | None) -> int:
    if tensor is None:
        return len(head)
    return len(head) + len(_tag(_TENSOR_RAW_DATA, tensor.nbytes)) + tensor.nbytes


def _write_data(out: BinaryIO, tensor: ir.TensorProtocol) -> None:
    data = tensor.tobytes()
    if len(data) != tensor.nbytes:
        raise ValueError(f"tensor {tensor.name!r}: {len(data)} bytes instead of {tensor.nbytes}")
    out.write(_tag(_TENSOR_RAW_DATA, len(data)))
    out.write(data)


def _tag(tag: int, length: int) -> bytes:
    return varint(tag) + varint(length)
