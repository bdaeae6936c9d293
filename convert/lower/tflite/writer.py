"""From the graph in memory to the bytes of a ``.tflite`` file.

The schema classes are those LiteRT publishes; nothing here knows any ONNX.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, as shipped in ai-edge-litert.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.graph import (
    STABLEHLO,
    Graph,
    Op,
    Tensor,
    TensorQuantization,
    name_of,
)
from edgeinfer.convert.lower.tflite.versions import version_of
from edgeinfer.errors import NotAvailableError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

FILE_IDENTIFIER = b"TFL3"
ALIGNMENT = 16
"""Bytes; engines map constants in place and read them with vector instructions."""

INLINE_LIMIT = (1 << 31) - (64 << 20)
"""A flatbuffer's offsets are signed 32-bit; above this, constants follow it in the file."""

_COUNT = struct.Struct("<I")
_DATA_SLOT = 4
"""Offset of the field ``data`` in the vtable of ``Buffer``."""
_PLACEHOLDER = np.zeros(1, np.uint8)
_HEAD = 64

SIGNATURE = "serving_default"

# Names the schema spells in its own way; every other code is CamelCase + "Options".
_OPTIONS = {
    "ATAN2": "ATan2Options",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BATCH_TO_SPACE_ND": "BatchToSpaceNDOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "GATHER_ND": "GatherNdOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "PADV2": "PadV2Options",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "REDUCE_ALL": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "SPACE_TO_BATCH_ND": "SpaceToBatchNDOptions",
    "SUM": "ReducerOptions",
    "TOPK_V2": "TopKV2Options",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
}

# Operators without an options table.
_BARE = frozenset(
    {
        *("CEIL", "ELU", "FLOOR", "LOG", "LOGISTIC", "PRELU", "RELU", "RELU6", "RELU_0_TO_1"),
        *("RELU_N1_TO_1", "ROUND", "RSQRT", "SIN", "SQRT", "TANH", "BROADCAST_ARGS"),
        *STABLEHLO,
    }
)


def schema() -> Any:
    """Return the published schema's module.

    Raises:
        NotAvailableError: it is not installed.
    """
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as e:
        raise NotAvailableError(
            "writing .tflite needs LiteRT's schema: pip install 'edgeinfer[litert]'"
        ) from e
    return schema_py_generated


def _builder() -> Any:
    """Return a builder that writes equal vectors, such as zero points, once."""
    import flatbuffers

    class Sharing(flatbuffers.Builder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(1 << 16)
            self._vectors: dict[tuple[str, bytes], int] = {}

        def CreateNumpyVector(self, x: Array) -> int:  # noqa: N802 - flatbuffers' name
            key = (x.dtype.str, x.tobytes())
            if key not in self._vectors:
                self._vectors[key] = int(super().CreateNumpyVector(x))
            return self._vectors[key]

    return Sharing()


@dataclass(frozen=True, slots=True)
class Metadata:
    """A named buffer of the file, e.g. the TFLite metadata flatbuffer."""

    name: str
    data: bytes


def write(
    graph: Graph,
    path: Path,
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    others: Sequence[tuple[str, Graph]] = (),
    metadata: Sequence[Metadata] = (),
    description: str = "edgeinfer",
) -> None:
    """Write a model.

    Args:
        graph: the main graph; control flow refers to its bodies.
        path: the file.
        input_names: Input names of the signature, in the order of ``graph.inputs``.
        output_names: likewise.
        others: the same model at other sizes, by the key of its signature; constants that are
            equal are stored once.
        metadata: further named buffers.
        description: shown by viewers.

    Raises:
        NotAvailableError: the schema is not installed.
    """
    packer = _Packer(schema(), description)
    for key, one in ((SIGNATURE, graph), *others):
        index = packer.add_graph(one)
        packer.add_signature(key, index, one, input_names, output_names)
    for entry in metadata:
        packer.add_metadata(entry)
    packer.save(path)


class _Packer:
    """Fills the schema's object tree, each constant stored once."""

    def __init__(self, schema: Any, description: str) -> None:
        self.s = schema
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = description
        self.model.operatorCodes = []
        self.model.subgraphs = []
        self.model.signatureDefs = []
        self.model.metadata = []
        # The schema reserves buffer 0 for tensors without data.
        self.model.buffers = [schema.BufferT()]
        self._payloads: list[Array] = [np.empty(0, np.uint8)]
        self._known: dict[tuple[int, bytes], list[int]] = {}
        self._codes: dict[tuple[str, int], int] = {}
        self._tensors: dict[int, dict[int, int]] = {}
        self._held: list[Tensor] = []

    def add_graph(self, graph: Graph) -> int:
        """Add a subgraph and, after it, the bodies it refers to; return its index."""
        s = self.s
        sub = s.SubGraphT()
        index = len(self.model.subgraphs)
        self.model.subgraphs.append(sub)
        sub.name, sub.tensors, sub.operators = graph.name, [], []
        ids: dict[int, int] = {}
        self._tensors[id(graph)] = ids
        sub.inputs = [self._tensor(sub, ids, t) for t in graph.inputs]
        for op in graph.ops:
            sub.operators.append(self._operator(sub, ids, op))
        sub.outputs = [self._tensor(sub, ids, t) for t in graph.outputs]
        return index

    def add_signature(
        self,
        key: str,
        index: int,
        graph: Graph,
        input_names: Sequence[str],
        output_names: Sequence[str],
    ) -> None:
        """Name a graph's inputs and outputs."""
        ids = self._tensors[id(graph)]
        signature = self.s.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = key, index
        signature.inputs = [
            self._entry(n, ids[id(t)]) for n, t in zip(input_names, graph.inputs, strict=True)
        ]
        signature.outputs = [
            self._entry(n, ids[id(t)]) for n, t in zip(output_names, graph.outputs, strict=True)
        ]
        self.model.signatureDefs.append(signature)

    def add_metadata(self, entry: Metadata) -> None:
        """Attach a named buffer."""
        record = self.s.MetadataT()
        record.name = entry.name
        record.buffer = self._buffer(np.frombuffer(entry.data, np.uint8))
        self.model.metadata.append(record)

    def save(self, path: Path) -> None:
        """Write the file; constants follow the tables, each laid out only when it is written."""
        total = sum(p.nbytes for p in self._payloads)
        if total > INLINE_LIMIT:
            self._save_outside(path)
        else:
            self._save_inside(path)

    def _save_inside(self, path: Path) -> None:
        """Constants as vectors of the flatbuffer, behind everything else."""
        for buffer, payload in zip(self.model.buffers, self._payloads, strict=True):
            if payload.nbytes:
                buffer.data = _PLACEHOLDER
        tables = self._packed()
        model = self.s.Model.GetRootAs(tables, 0)
        end = len(tables)
        for index, payload in enumerate(self._payloads):
            if not payload.nbytes:
                continue
            # The elements are aligned, their count comes right before them.
            start = _aligned(end + _COUNT.size)
            field = _data_field(model.Buffers(index))
            _COUNT.pack_into(tables, field, start - _COUNT.size - field)
            end = start + payload.nbytes
        with path.open("wb") as out:
            out.write(tables)
            for payload in self._payloads:
                if payload.nbytes:
                    start = _aligned(out.tell() + _COUNT.size)
                    out.write(b"\0" * (start - _COUNT.size - out.tell()))
                    out.write(_COUNT.pack(payload.nbytes))
                    out.write(_stored(payload).data)

    def _save_outside(self, path: Path) -> None:
        """Constants behind the flatbuffer, found by 64-bit offsets."""
        for buffer, payload in zip(self.model.buffers, self._payloads, strict=True):
            if payload.nbytes:
                # Placeholders of full width: their values are known once the size is.
                buffer.offset = buffer.size = 1 << 62
        offset = _aligned(len(self._packed()))
        for buffer, payload in zip(self.model.buffers, self._payloads, strict=True):
            if payload.nbytes:
                buffer.offset, buffer.size = offset, payload.nbytes
                offset = _aligned(offset + payload.nbytes)
        with path.open("wb") as out:
            out.write(self._packed())
            for buffer, payload in zip(self.model.buffers, self._payloads, strict=True):
                if payload.nbytes:
                    out.write(b"\0" * (buffer.offset - out.tell()))
                    out.write(_stored(payload).data)

    def _packed(self) -> bytearray:
        builder = _builder()
        builder.Finish(self.model.Pack(builder), FILE_IDENTIFIER)
        return bytearray(builder.Output())

    def _entry(self, name: str, index: int) -> Any:
        entry = self.s.TensorMapT()
        entry.name, entry.tensorIndex = name, index
        return entry

    def _tensor(self, sub: Any, ids: dict[int, int], tensor: Tensor | None) -> int:
        if tensor is None:
            return -1
        if id(tensor) not in ids:
            ids[id(tensor)] = len(sub.tensors)
            table = self._tensor_table(tensor)
            sub.tensors.append(table)
            if tensor.quantization is not None:
                table.quantization = self._quantization(sub, ids, tensor, tensor.quantization)
        return ids[id(tensor)]

    def _tensor_table(self, tensor: Tensor) -> Any:
        table = self.s.TensorT()
        table.name = tensor.name
        table.type = self.tensor_type(tensor.dtype)
        # Engines allocate by `shape` until they are resized; 1 stands for unknown sizes.
        table.shape = [1 if size is None else size for size in tensor.shape]
        if not tensor.is_static:
            table.shapeSignature = [-1 if size is None else size for size in tensor.shape]
        table.hasRank = True
        table.isVariable = tensor.is_variable
        if tensor.data is None:
            table.buffer = 0
        else:
            table.buffer = self._buffer(_packed_4(tensor.data))
        return table

    def _quantization(
        self, sub: Any, ids: dict[int, int], tensor: Tensor, q: TensorQuantization
    ) -> Any:
        table = self.s.QuantizationParametersT()
        if q.block:
            scales = np.asarray(q.scale, np.float16)
            held = Tensor(f"{tensor.name}_scales", scales.shape, scales.dtype, scales)
            details = self.s.BlockwiseQuantizationT()
            details.scales, details.zeroPoints = self._tensor(sub, ids, held), -1
            details.blockSize = q.block
            table.detailsType = self.s.QuantizationDetails.BlockwiseQuantization
            table.details = details
            # Tensors are known by identity: this one lives as long as the others.
            self._held.append(held)
            return table
        table.scale = np.asarray(q.scale, np.float32).ravel()
        table.zeroPoint = np.asarray(q.zero_point, np.int64).ravel()
        table.quantizedDimension = q.axis
        return table

    def tensor_type(self, dtype: np.dtype[Any]) -> int:
        """Return the schema's number of an element type."""
        return int(getattr(self.s.TensorType, name_of(dtype).upper()))

    def _buffer(self, payload: Array) -> int:
        if not payload.nbytes:
            return 0
        # Few constants begin alike, so that hardly any is compared as a whole.
        key = (payload.nbytes, np.array(payload.flat[:_HEAD]).tobytes())
        for index in self._known.setdefault(key, []):
            if np.array_equal(_stored(self._payloads[index]), _stored(payload)):
                return index
        index = len(self.model.buffers)
        self._known[key].append(index)
        self.model.buffers.append(self.s.BufferT())
        self._payloads.append(payload)
        return index

    def _operator(self, sub: Any, ids: dict[int, int], op: Op) -> Any:
        table = self.s.OperatorT()
        table.opcodeIndex = self._code(op)
        table.inputs = [self._tensor(sub, ids, t) for t in op.inputs]
        table.outputs = [self._tensor(sub, ids, t) for t in op.outputs]
        options = dict(op.options)
        for name, body in op.bodies.items():
            options[name] = self.add_graph(body)
        if op.code in _BARE:
            return table
        name = _OPTIONS.get(op.code) or _camel(op.code) + "Options"
        built = getattr(self.s, name + "T")()
        for key, value in options.items():
            field = _lower_camel(key)
            if not hasattr(built, field):
                raise ValueError(f"{op.code}: the schema's {name} has no field {field!r}")
            known = isinstance(value, np.dtype)
            setattr(built, field, self.tensor_type(value) if known else value)
        if hasattr(self.s.BuiltinOptions, name):
            table.builtinOptionsType = getattr(self.s.BuiltinOptions, name)
            table.builtinOptions = built
        else:
            table.builtinOptions2Type = getattr(self.s.BuiltinOptions2, name)
            table.builtinOptions2 = built
        return table

    def _code(self, op: Op) -> int:
        key = (op.code, version_of(op))
        if key not in self._codes:
            table = self.s.OperatorCodeT()
            number = getattr(self.s.BuiltinOperator, op.code)
            table.builtinCode, table.version = number, key[1]
            # Readers older than 2020 know one byte only; 127 sends them to the new field.
            table.deprecatedBuiltinCode = min(number, 127)
            self._codes[key] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(table)
        return self._codes[key]


def _stored(array: Array) -> Array:
    """The bytes of a constant, without a copy where it is contiguous."""
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")
    return array.reshape(-1).view(np.uint8)


def _packed_4(array: Array) -> Array:
    """Two 4-bit elements a byte, the first in the lower half; other constants stay as they are."""
    if name_of(array.dtype) not in {"int4", "uint4"}:
        return array
    flat = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed: Array = flat[::2] | (flat[1::2] << 4)
    return packed


def _data_field(buffer: Any) -> int:
    """Where the offset of a buffer's data stands in the file."""
    table = buffer._tab
    return int(table.Pos + table.Offset(_DATA_SLOT))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _camel(code: str) -> str:
    return "".join(_words(code))


def _words(code: str) -> Iterator[str]:
    for word in code.split("_"):
        yield word if word[:1].isdigit() else word.capitalize()


def _lower_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
