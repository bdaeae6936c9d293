"""A Core ML program as plain objects: functions, blocks, operations and the values written in them.

It is read from the specification once; nothing later sees protobuf.

Source: coremltools, mlmodel/format/MIL.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

# MIL.proto, enum DataType. Types narrower than a byte are held in a byte each.
DTYPES = {
    1: "bool",
    2: "string",
    10: "float16",
    11: "float32",
    12: "float64",
    21: "int8",
    22: "int16",
    23: "int32",
    24: "int64",
    25: "int4",
    31: "uint8",
    32: "uint16",
    33: "uint32",
    34: "uint64",
    35: "uint4",
    36: "uint2",
    37: "uint1",
    38: "uint6",
    39: "uint3",
}

_SUB_BYTE = {"int4": 4, "uint6": 6, "uint4": 4, "uint3": 3, "uint2": 2, "uint1": 1}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; None for an axis of any length, or for a shape of any rank."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def container(self) -> np.dtype[Any]:
        """The array type that holds the elements."""
        return container(self.dtype)


@dataclass(frozen=True, slots=True)
class ListType:
    """A list of tensors of one type."""

    element: TensorType


@dataclass(frozen=True, slots=True)
class StateType:
    """A tensor that lives between predictions."""

    tensor: TensorType


@dataclass(frozen=True, slots=True)
class DictType:
    """A dictionary, which only a classifier returns."""


MilType: TypeAlias = TensorType | ListType | StateType | DictType


@dataclass(frozen=True, slots=True)
class Variable:
    """A named value and its type."""

    name: str
    type: MilType


@dataclass(frozen=True, slots=True)
class Constant:
    """A value written in the program: an array, a list of them, or None if it cannot be read."""

    value: Array | list[Array]
    dtype: str


Argument: TypeAlias = tuple[str | Constant, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; each input is bound to one value, or to several for a list of tensors."""

    type: str
    name: str
    inputs: dict[str, Argument]
    outputs: tuple[Variable, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in order, with the names they take and give."""

    inputs: tuple[Variable, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramFunction:
    """An entry point of the program."""

    name: str
    inputs: tuple[Variable, ...]
    block: Block
    opset: str


@dataclass(slots=True)
class SpecificationReader:
    """Turns the messages of a specification into objects.

    Attributes:
        blob: reads ``count`` elements of a type from an offset of a weights file.
        problems: what could not be read, in words.
    """

    blob: Callable[[str, int, str, int], Array]
    problems: list[str] = field(default_factory=list)

    def function(self, name: str, message: Any) -> ProgramFunction:
        """Read a function, in the specialization for its own opset."""
        blocks = message.block_specializations
        opset = message.opset if message.opset in blocks else next(iter(blocks), "")
        if not opset:
            raise LoadError(f"function {name!r} of the program has no block")
        inputs = tuple(_variable(v) for v in message.inputs)
        return ProgramFunction(name, inputs, self._block(blocks[opset]), opset)

    def _block(self, message: Any) -> Block:
        return Block(
            inputs=tuple(_variable(v) for v in message.inputs),
            operations=tuple(self._operation(op) for op in message.operations),
            outputs=tuple(message.outputs),
        )

    def _operation(self, message: Any) -> Operation:
        attributes = message.attributes
        kind = message.type
        inputs = {key: self._argument(value) for key, value in message.inputs.items()}
        # A constant's value, and older constexpr operands, are attributes.
        if kind == "const" or kind.startswith("constexpr_"):
            inputs |= {k: (self.constant(v),) for k, v in attributes.items() if k != "name"}
        outputs = tuple(_variable(v) for v in message.outputs)
        name = "".join(attributes["name"].immediateValue.tensor.strings.values)[:200] or (
            outputs[0].name if outputs else kind
        )
        blocks = tuple(self._block(b) for b in message.blocks)
        return Operation(kind, name, inputs, outputs, blocks)

    def _argument(self, message: Any) -> Argument:
        return tuple(
            b.name if b.WhichOneof("binding") == "name" else self.constant(b.value)
            for b in message.arguments
        )

    def constant(self, message: Any) -> Constant:
        """Read a value that stands in the program or in a weights file."""
        kind = message.type.WhichOneof("type")
        if kind == "listType":
            items = [self.constant(v) for v in message.immediateValue.list.values]
            dtype = items[0].dtype if items else "string"
            return Constant([i.value for i in items if isinstance(i.value, np.ndarray)], dtype)
        if kind != "tensorType":
            raise LoadError(f"the program holds a constant of the type {kind}, which is not known")
        tensor = _tensor(message.type.tensorType)
        if tensor.shape is None or None in tensor.shape:
            raise LoadError("the program holds a constant without a shape")
        shape = tuple(int(d) for d in tensor.shape if d is not None)
        if message.WhichOneof("value") == "blobFileValue":
            place = message.blobFileValue
            array = self.blob(place.fileName, place.offset, tensor.dtype, count(shape))
        else:
            array = _immediate(message.immediateValue.tensor, tensor.dtype, count(shape))
        if array.size != count(shape):
            raise LoadError(f"a constant of shape {shape} holds {array.size} values")
        return Constant(array.reshape(shape), tensor.dtype)


def count(shape: tuple[int, ...]) -> int:
    """Return how many elements a shape has."""
    number = 1
    for length in shape:
        number *= length
    return number


def container(dtype: str) -> np.dtype[Any]:
    """Return the array type that holds elements of a type of the program."""
    if dtype in _SUB_BYTE:
        return np.dtype(np.int8 if dtype == "int4" else np.uint8)
    return np.dtype(object) if dtype == "string" else np.dtype(dtype)


def unpack(data: bytes | memoryview, dtype: str, number: int) -> Array:
    """Return ``number`` elements of little-endian data; narrow ones lie lowest bit first."""
    bits = _SUB_BYTE.get(dtype)
    if bits is None:
        array = np.frombuffer(data, container(dtype).newbyteorder("<"), number)
        return array.astype(container(dtype), copy=False)
    stream = np.unpackbits(np.frombuffer(data, np.uint8), count=number * bits, bitorder="little")
    weights = (1 << np.arange(bits)).astype(np.uint8)
    values: Array = (stream.reshape(number, bits) * weights).sum(axis=1, dtype=np.uint8)
    if dtype == "int4":
        return ((values ^ 8).astype(np.int8) - 8).astype(np.int8)
    return values


def packed_size(dtype: str, number: int) -> int:
    """Return the bytes that ``number`` elements take in a file."""
    bits = _SUB_BYTE.get(dtype)
    return container(dtype).itemsize * number if bits is None else -(-bits * number // 8)


def _immediate(tensor: Any, dtype: str, number: int) -> Array:
    kind = tensor.WhichOneof("value")
    if kind is None or number == 0:
        return np.zeros(0, container(dtype))
    values = getattr(tensor, kind).values
    if kind == "bytes":
        if len(values) < packed_size(dtype, number):
            raise LoadError(f"a constant of {number} {dtype} has {len(values)} bytes only")
        return unpack(values, dtype, number)
    array = np.array(list(values), object if kind == "strings" else None)
    array = array.astype(container(dtype))
    # One value may stand for all, as in the programs of Apple's own tools.
    return np.broadcast_to(array, (number,)) if array.size == 1 else array


def _variable(message: Any) -> Variable:
    return Variable(message.name, _type(message.type))


def _type(message: Any) -> MilType:
    kind = message.WhichOneof("type")
    if kind == "tensorType":
        return _tensor(message.tensorType)
    if kind == "listType":
        return ListType(_tensor(message.listType.type.tensorType))
    if kind == "stateType":
        return StateType(_tensor(message.stateType.wrappedType.tensorType))
    if kind == "dictionaryType":
        return DictType()
    raise LoadError(f"the program has a value of the type {kind}, which is not known")


def _tensor(message: Any) -> TensorType:
    dtype = DTYPES.get(message.dataType)
    if dtype is None:
        raise LoadError(f"the program has the element type {message.dataType}, which is not known")
    if message.rank < 0 or any(d.unknown.variadic for d in message.dimensions):
        return TensorType(dtype, None)
    return TensorType(
        dtype,
        tuple(
            int(d.constant.size) if d.WhichOneof("dimension") == "constant" else None
            for d in message.dimensions
        ),
    )
