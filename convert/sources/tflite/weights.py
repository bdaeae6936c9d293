"""Constants of a file: left there until they are read, rearranged while they are.

A constant may be stored as halves, as integers with scales, or sparse. What an operator wants of it
(another order of axes, another shape) is done to the stored elements, so that the scales stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources.tflite.file import (
    Damaged,
    FileModel,
    FileScale,
    FileTensor,
    Sparsity,
)
from edgeinfer.records import dataclass
from edgeinfer.types import Array

SMALL_BYTES = 4096
"""Smaller constants are read at once: passes read them anyway."""

TYPES: dict[str, ir.DataType] = {
    **{"FLOAT32": ir.DataType.FLOAT, "FLOAT16": ir.DataType.FLOAT16},
    **{"FLOAT64": ir.DataType.DOUBLE, "BFLOAT16": ir.DataType.BFLOAT16},
    **{k: ir.DataType[k] for k in ("INT4", "INT8", "INT16", "INT32", "INT64", "BOOL")},
    **{k: ir.DataType[k] for k in ("UINT4", "UINT8", "UINT16", "UINT32", "UINT64")},
}
"""Element types that ONNX has too."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredConstant:
    """A constant as it is stored, and what its elements mean.

    Attributes:
        tensor: the stored elements.
        scale: None for plain numbers.
        halves: the elements are halves that stand for floats.
    """

    tensor: ir.TensorProtocol
    scale: FileScale | None = None
    halves: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes."""
        return tuple(int(d) for d in self.tensor.shape.numpy())

    @property
    def is_small(self) -> bool:
        """Whether it is read freely."""
        return self.tensor.nbytes <= SMALL_BYTES

    def transposed(self, perm: Sequence[int]) -> StoredConstant:
        """Return it with its axes in another order."""
        perm = list(perm)
        if perm == list(range(len(perm))):
            return self
        shape = [self.shape[p] for p in perm]
        scale = self.scale
        if scale is not None and scale.scale.size > 1:
            scale = replace(scale, axis=perm.index(scale.axis))
        return StoredConstant(
            self._computed(shape, lambda a: a.transpose(perm)), scale, self.halves
        )

    def reshaped(self, shape: Sequence[int], axis: int = 0) -> StoredConstant:
        """Return it in another shape; ``axis`` is where the axis with the scales is then."""
        scale = self.scale
        if scale is not None and scale.scale.size > 1:
            scale = replace(scale, axis=axis)
        return StoredConstant(self._computed(shape, lambda a: a.reshape(shape)), scale, self.halves)

    def _computed(
        self, shape: Sequence[int], change: Callable[[Array], Array]
    ) -> ir.TensorProtocol:
        source = self.tensor
        return _tensor(
            lambda: change(np.asarray(source.numpy())), source.dtype, shape, source.nbytes
        )


MOST_EMPTY = 1 << 31
"""What the sizes of a constant without elements may give but for zeros; NumPy multiplies those."""


def weights_of(file: FileModel, tensor: FileTensor) -> StoredConstant:
    """Return a constant of a file.

    Raises:
        Damaged: its bytes do not fit its type and shape.
    """
    dtype = TYPES[tensor.kind]
    shape = [d or 0 for d in tensor.shape]
    if tensor.span is None:
        if math.prod(shape):
            raise Damaged(f"tensor {tensor.name!r} of {tensor.kind} {shape} has no bytes")
        if math.prod(d for d in shape if d) > MOST_EMPTY:
            raise Damaged(f"tensor {tensor.name!r} has the shape {shape}")
        return StoredConstant(ir.tensor(np.empty(shape, dtype.numpy()), dtype=dtype), tensor.scale)
    if tensor.sparsity is not None:
        return _dense(file, tensor, tensor.sparsity, dtype, shape)
    start, length = tensor.span
    wanted = -(-math.prod(shape) * dtype.bitwidth // 8)
    if wanted != length:
        raise Damaged(
            f"tensor {tensor.name!r} of {tensor.kind} {shape} has {length} bytes, {wanted} expected"
        )
    whole = file.path.resolve()
    # onnx_ir maps no file that has hard links.
    if length <= SMALL_BYTES or whole.stat().st_nlink > 1:
        return StoredConstant(_loaded(file.read(tensor.span), dtype, shape), tensor.scale)
    mapped = ir.ExternalTensor(
        whole.name,
        start,
        length,
        dtype,
        shape=ir.Shape(shape),
        name=tensor.name,
        base_dir=whole.parent,
    )
    return StoredConstant(mapped, tensor.scale)


def _loaded(raw: bytes, dtype: ir.DataType, shape: Sequence[int]) -> ir.TensorProtocol:
    if dtype.bitwidth < 8:
        return ir.PackedTensor(np.frombuffer(raw, np.uint8), dtype, shape=ir.Shape(shape))
    array = np.frombuffer(raw, dtype.numpy()).reshape(shape)
    return ir.tensor(array, dtype=dtype)


def _tensor(
    compute: Callable[[], Array], dtype: ir.DataType, shape: Sequence[int], nbytes: int
) -> ir.TensorProtocol:
    """Compute a small tensor now, a large one whenever it is read."""
    if nbytes <= SMALL_BYTES:
        return ir.tensor(np.ascontiguousarray(compute()).reshape(shape), dtype=dtype)
    return ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(compute()), dtype=dtype),
        dtype=dtype,
        shape=ir.Shape(shape),
    )


def _dense(
    file: FileModel, tensor: FileTensor, how: Sparsity, dtype: ir.DataType, shape: list[int]
) -> StoredConstant:
    span = tensor.span or (0, 0)
    if dtype.bitwidth < 8:
        raise Damaged(f"tensor {tensor.name!r} is sparse and packed")
    indices = _places(how, shape, tensor.name)
    if indices.size * dtype.itemsize > span[1]:
        raise Damaged(f"tensor {tensor.name!r} has fewer values than positions for them")

    def compute() -> Array:
        values = np.frombuffer(file.read(span), dtype.numpy(), indices.size)
        dense = np.zeros(math.prod(shape), dtype.numpy())
        dense[indices] = values
        return dense.reshape(shape)

    nbytes = math.prod(shape) * int(dtype.itemsize)
    return StoredConstant(_tensor(compute, dtype, shape, nbytes), tensor.scale)


def _places(how: Sparsity, shape: list[int], name: str) -> Array:
    """Where each stored value stands in the flat dense tensor, in the order of storage."""
    rank, depth = len(shape), len(how.levels)
    valid = sorted(how.order) == list(range(depth)) and depth == rank + len(how.blocks)
    if not valid or any(not 0 <= b < rank for b in how.blocks):
        raise Damaged(f"tensor {name!r} has an impossible sparse layout")
    parents, columns = np.zeros(1, np.int64), list[Array]()
    for level in how.levels:
        if level.segments is None or level.indices is None:
            if level.size * parents.size > 2 * math.prod(shape) + 1:
                raise Damaged(f"tensor {name!r} has more sparse positions than elements")
            own = np.tile(np.arange(level.size), parents.size)
            counts = np.full(parents.size, level.size)
            nodes = np.repeat(parents * level.size, counts) + own
        else:
            starts, counts = level.segments[parents], np.diff(level.segments)[parents]
            if (counts < 0).any() or counts.sum() > math.prod(shape):
                raise Damaged(f"tensor {name!r} has impossible sparse segments")
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            nodes = np.repeat(starts, counts) + offsets
            own = level.indices[nodes]
        columns = [np.repeat(c, counts) for c in columns] + [own]
        parents = nodes
    at = [np.zeros(parents.size, np.int64) for _ in range(rank)]
    for axis, column in zip(how.order, columns, strict=True):
        if axis < rank:
            at[axis] = at[axis] + column
        else:
            block = how.blocks[axis - rank]
            at[block] = at[block] * how.levels[how.order.index(axis)].size + column
    if any((a < 0).any() or (a >= n).any() for a, n in zip(at, shape, strict=True)):
        raise Damaged(f"tensor {name!r} has sparse values outside of its shape")
    return np.asarray(np.ravel_multi_index(tuple(at), tuple(shape)), np.int64)
