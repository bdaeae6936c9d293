"""What a ``.tflite`` file holds, as plain records; every offset and count in it is checked.

Constants stay in the file: a record says where they are. Nothing here knows any operator or ONNX.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, as shipped in ai-edge-litert.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgeinfer.bounded import open_file
from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema
from edgeinfer.errors import SourceError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_WORD = 4
_SLACK = 4096
"""Tables beyond one for each four bytes of the file: small files share some."""

_READINGS = 4
_SLACK_BYTES = 1 << 20
"""How often vectors and texts may be read on average, and bytes beyond: tables may share them, and
as many tables as fit, each with a vector as long as fits, are the square of the file."""

_SPREAD, _SLACK_SPREAD = 20, 1 << 24
"""Elements of sparse tensors for each word of the file, and besides."""

_DATA_SLOT = 4
_MAX_RANK = 64

_CUSTOM = "CUSTOM"


class Damaged(Exception):  # noqa: N818  (becomes a SourceError that names the file)
    """The file contradicts itself, and how."""


@dataclass(frozen=True, slots=True, eq=False)
class FileScale:
    """``real = scale * (stored - zero_point)``, for the whole tensor or along ``axis``."""

    scale: Array
    zero_point: Array
    axis: int


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a sparse tensor: dense with a size, or compressed with two index vectors."""

    size: int
    segments: Array | None = None
    indices: Array | None = None


@dataclass(frozen=True, slots=True)
class Sparsity:
    """How the stored values are spread over a dense tensor."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FileTensor:
    """One tensor of a subgraph.

    Attributes:
        name: as in the file; may be empty, and several may have the same.
        kind: name in the schema's ``TensorType``.
        shape: None for sizes that a run decides.
        span: offset and length of a constant in the file; None for what is computed.
        scale: None for plain numbers.
        is_variable: keeps its value between runs.
        sparsity: None for dense constants.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    span: tuple[int, int] | None
    scale: FileScale | None
    is_variable: bool
    sparsity: Sparsity | None


@dataclass(frozen=True, slots=True, eq=False)
class FileOp:
    """One operator: indices of tensors, -1 where an operand is left out.

    Attributes:
        code: name in the schema's ``BuiltinOperator``.
        custom: the name of a custom operator, else empty.
        options: the options table by the schema's field names; empty where there is none.
        raw: what a custom operator has instead, in a form of its own.
        version: Version of the operator.
    """

    code: str
    custom: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Any]
    raw: bytes = b""
    version: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class FileGraph:
    """One subgraph."""

    name: str
    tensors: tuple[FileTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[FileOp, ...]


@dataclass(frozen=True, slots=True)
class FileSignature:
    """Names for the inputs and outputs of a subgraph, with the tensors they mean."""

    key: str
    graph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FileModel:
    """The whole file.

    Attributes:
        metadata: name to offset and length of named buffers.
    """

    path: Path
    graphs: tuple[FileGraph, ...]
    signatures: tuple[FileSignature, ...]
    metadata: dict[str, tuple[int, int]]

    def read(self, span: tuple[int, int]) -> bytes:
        """Return bytes of the file."""
        with open_file(self.path) as file:
            file.seek(span[0])
            return file.read(span[1])


def load(path: Path) -> FileModel:
    """Read a file.

    Raises:
        SourceError: it is damaged or cut off, and how.
        NotAvailableError: LiteRT's schema is not installed.
    """
    s = schema()
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(s, data, path).model()
        # The accessors follow whatever offsets stand in the file, so a wrong one raises anything.
        except (Damaged, struct.error, LookupError, TypeError, ValueError, OverflowError) as error:
            is_told = isinstance(error, Damaged)
            what = str(error) if is_told else "its tables point outside of the file"
    # Not sooner: the error's frames hold views, and a map with views cannot be closed.
    raise SourceError(
        f"{path}: a damaged or truncated .tflite file ({what}); write or download it again"
    )


class _Code(NamedTuple):
    """An entry of the table of operators."""

    code: str
    custom: str
    version: int


class _Reader:
    """Walks the tables; the number visited is bounded by the size of the file."""

    def __init__(self, s: Any, data: mmap.mmap, path: Path) -> None:
        self._s, self._data, self._path = s, data, path
        self._left = len(data) // _WORD + _SLACK
        self._left_bytes = len(data) * _READINGS + _SLACK_BYTES
        self._left_spread = len(data) * _SPREAD // _WORD + _SLACK_SPREAD
        self._codes = _names(s.BuiltinOperator)
        self._kinds = _names(s.TensorType)
        self._formats = _names(s.BuiltinOptions)
        self._formats_2 = _names(s.BuiltinOptions2)

    def model(self) -> FileModel:
        """Read everything but the constants."""
        if self._data[_WORD : 2 * _WORD] != FILE_IDENTIFIER:
            raise Damaged("it has no mark of a .tflite file")
        model = self._s.Model.GetRootAs(self._data, 0)
        if model.Version() != 3:
            raise Damaged(f"schema version {model.Version()}, known is 3")
        buffers = list(self._each(model.BuffersLength(), model.Buffers))
        codes = list(self._each(model.OperatorCodesLength(), model.OperatorCodes))
        names = [self._code(c) for c in codes]
        graphs = tuple(
            self._graph(g, buffers, names)
            for g in self._each(model.SubgraphsLength(), model.Subgraphs)
        )
        if not graphs:
            raise Damaged("it has no graph")
        signatures = tuple(
            self._signature(d, graphs)
            for d in self._each(model.SignatureDefsLength(), model.SignatureDefs)
        )
        metadata: dict[str, tuple[int, int]] = {}
        for entry in self._each(model.MetadataLength(), model.Metadata):
            index = int(entry.Buffer())
            span = self._span(buffers[index]) if index < len(buffers) else None
            if span is not None:
                metadata[self._text(entry.Name())] = span
        return FileModel(self._path, graphs, signatures, metadata)

    def _each(self, count: int, item: Callable[[int], Any]) -> Iterator[Any]:
        self._left -= count
        if self._left < 0:
            raise Damaged("it lists more tables than fit into it")
        for index in range(count):
            yield item(index)

    def _vector(self, vector: Any) -> Array:
        # Missing vectors come as the number 0, in objects as None.
        if vector is None or isinstance(vector, int):
            return np.zeros(0, np.int64)
        found = np.asarray(vector)
        self._charge(found.nbytes)
        return found.copy()

    def _ints(self, vector: Any) -> tuple[int, ...]:
        return tuple(self._vector(vector).tolist())

    def _text(self, raw: bytes | None) -> str:
        self._charge(len(raw or b""))
        return (raw or b"").decode("utf-8", "replace")

    def _charge(self, size: int) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise Damaged("its tables share vectors that are longer than the file")

    def _code(self, code: Any) -> _Code:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = self._codes.get(number)
        if name is None:
            raise Damaged(f"operator code {number} is unknown to this version of LiteRT's schema")
        custom = self._text(code.CustomCode()) if name == _CUSTOM else ""
        return _Code(name, custom, int(code.Version()))

    def _graph(self, graph: Any, buffers: list[Any], codes: list[_Code]) -> FileGraph:
        tensors = tuple(
            self._tensor(t, buffers) for t in self._each(graph.TensorsLength(), graph.Tensors)
        )
        inputs, outputs = self._ints(graph.InputsAsNumpy()), self._ints(graph.OutputsAsNumpy())
        ops = tuple(
            self._op(o, codes, len(tensors))
            for o in self._each(graph.OperatorsLength(), graph.Operators)
        )
        if any(not 0 <= i < len(tensors) for i in (*inputs, *outputs)):
            raise Damaged("an input or output of a graph is no tensor of it")
        return FileGraph(self._text(graph.Name()), tensors, inputs, outputs, ops)

    def _tensor(self, tensor: Any, buffers: list[Any]) -> FileTensor:
        shape = self._ints(tensor.ShapeAsNumpy())
        signature = self._ints(tensor.ShapeSignatureAsNumpy())
        name = self._text(tensor.Name())
        kind = self._kinds.get(tensor.Type())
        if kind is None or len(shape) > _MAX_RANK or any(d < 0 for d in shape):
            raise Damaged(f"tensor {name!r} has no possible type and shape")
        if signature and len(signature) != len(shape):
            raise Damaged(f"tensor {name!r} has two ranks")
        index = tensor.Buffer()
        if index >= max(len(buffers), 1):
            raise Damaged(f"tensor {name!r} has no buffer")
        span = self._span(buffers[index]) if index else None
        sizes = signature if signature and span is None else shape
        return FileTensor(
            name,
            kind,
            tuple(None if d < 0 else d for d in sizes),
            span,
            self._scale(tensor.Quantization(), name, shape),
            bool(tensor.IsVariable()),
            self._sparsity(tensor.Sparsity(), shape),
        )

    def _span(self, buffer: Any) -> tuple[int, int] | None:
        """Where a constant's bytes are; None for a buffer without any."""
        start, length = 0, 0
        if buffer.Offset() > 1:
            start, length = int(buffer.Offset()), int(buffer.Size())
        elif not buffer.DataIsNone():
            start = int(buffer._tab.Vector(buffer._tab.Offset(_DATA_SLOT)))
            length = int(buffer.DataLength())
        if start + length > len(self._data):
            raise Damaged(f"a constant ends {start + length - len(self._data)} bytes after it")
        return (start, length) if length else None

    def _scale(self, table: Any, name: str, shape: tuple[int, ...]) -> FileScale | None:
        if table is None or not table.ScaleLength():
            return None
        scale = self._vector(table.ScaleAsNumpy()).astype(np.float32)
        zero = np.zeros(scale.size, np.int64)
        if table.ZeroPointLength():
            zero = self._vector(table.ZeroPointAsNumpy()).astype(np.int64)
        axis = int(table.QuantizedDimension())
        if zero.size == 1 < scale.size:
            zero = np.repeat(zero, scale.size)
        if zero.size != scale.size:
            raise Damaged(f"tensor {name!r} has {scale.size} scales and {zero.size} zero points")
        if scale.size > 1 and not (axis < len(shape) and shape[axis] == scale.size):
            raise Damaged(f"tensor {name!r} has {scale.size} scales along axis {axis} of {shape}")
        return FileScale(scale, zero, axis if scale.size > 1 else 0)

    def _sparsity(self, table: Any, shape: tuple[int, ...]) -> Sparsity | None:
        if table is None:
            return None
        self._left_spread -= math.prod(abs(size) for size in shape)
        if self._left_spread < 0:
            raise Damaged("its sparse tensors have far more elements than a file of its size")
        levels = []
        for dim in self._each(table.DimMetadataLength(), table.DimMetadata):
            part = self._s.DimensionMetadataT.InitFromObj(dim)
            if part.format == self._s.DimensionType.DENSE:
                levels.append(Level(int(part.denseSize)))
                continue
            if part.arraySegments is None or part.arrayIndices is None:
                raise Damaged("a sparse tensor without its indices")
            segments = self._vector(part.arraySegments.values).astype(np.int64)
            indices = self._vector(part.arrayIndices.values).astype(np.int64)
            levels.append(Level(0, segments, indices))
        order = self._ints(table.TraversalOrderAsNumpy())
        return Sparsity(order, self._ints(table.BlockMapAsNumpy()), tuple(levels))

    def _op(self, op: Any, codes: list[_Code], count: int) -> FileOp:
        if op.OpcodeIndex() >= len(codes):
            raise Damaged("an operator without a code")
        code, custom, version = codes[op.OpcodeIndex()]
        inputs, outputs = self._ints(op.InputsAsNumpy()), self._ints(op.OutputsAsNumpy())
        if any(not -1 <= i < count for i in (*inputs, *outputs)):
            raise Damaged(f"{code} names a tensor that is not there")
        has_raw = custom and op.CustomOptionsLength()
        raw = self._vector(op.CustomOptionsAsNumpy()).tobytes() if has_raw else b""
        return FileOp(code, custom, inputs, outputs, self._options(op), raw, version)

    def _options(self, op: Any) -> dict[str, Any]:
        for kind, names, table in (
            (op.BuiltinOptionsType(), self._formats, op.BuiltinOptions()),
            (op.BuiltinOptions2Type(), self._formats_2, op.BuiltinOptions2()),
        ):
            if kind == 0 or table is None:
                continue
            if kind not in names:
                raise Damaged(f"an operator has options of kind {kind}")
            built = getattr(self._s, names[kind] + "T").InitFromBuf(table.Bytes, table.Pos)
            return {k: self._vector(v) if _is_view(v) else v for k, v in vars(built).items()}
        return {}

    def _signature(self, table: Any, graphs: tuple[FileGraph, ...]) -> FileSignature:
        index = table.SubgraphIndex()
        if index >= len(graphs):
            raise Damaged("a signature of a graph that is not there")
        graph = graphs[index]
        sides = []
        for count, item, known in (
            (table.InputsLength(), table.Inputs, graph.inputs),
            (table.OutputsLength(), table.Outputs, graph.outputs),
        ):
            pairs = [(self._text(m.Name()), int(m.TensorIndex())) for m in self._each(count, item)]
            if any(tensor not in known for _, tensor in pairs):
                raise Damaged("a signature names a tensor that is no input or output")
            sides.append(tuple(pairs))
        return FileSignature(self._text(table.SignatureKey()), index, sides[0], sides[1])


def _names(enum: type) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if not k.startswith("_")}


def _is_view(value: object) -> bool:
    return isinstance(value, np.ndarray)
