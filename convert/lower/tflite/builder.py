"""The builder that lowerings write with: the graph, and the moves every family needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite import compose, unbounded, unsigned
from edgeinfer.convert.lower.tflite.graph import Graph, Op, QuantizedBlocks, Shape, Size, Tensor
from edgeinfer.convert.lower.tflite.graph import broadcast as broadcast
from edgeinfer.types import Array

Extent = int | Tensor
"""A size that is known, or an int32 scalar that holds it when the model runs."""

ARITHMETIC = frozenset({"ADD", "SUB", "MUL", "DIV"})
"""Binary operators with a fused activation field; it must be present in the file."""

_FLAGS = frozenset({*unsigned.COMPARISONS, "LOGICAL_AND", "LOGICAL_OR"})

_SLICE_RANK = 5
_SLICED = frozenset(
    {
        *("float32", "int32", "int64", "int8", "uint8", "int16", "bool"),
        *("float64", "float16", "bfloat16", "uint16", "uint32", "uint64"),
    }
)


class Builder(Graph):
    """A graph with the moves that lowerings share.

    Attributes:
        scales: symmetric scales that constants were stored with, one vector a constant.
        blocks: constants that were stored in 4 bits.
        dynamic: scales of weights that kernels are to multiply with as they are stored, and floats.
        apart: Those of them that are stored apart, and weights that floats are multiplied with.
    """

    def __init__(self, name: str = "main", prefix: str = "") -> None:
        super().__init__(name, prefix)
        self.scales: list[Array] = []
        self.blocks: list[QuantizedBlocks] = []
        self.dynamic: list[Array] = []
        self.apart: list[Array] = []

    @property
    def arithmetic(self) -> str:
        """How the weights that are being lowered are multiplied; empty where it is not said."""
        return ""

    def wants(self, output: int) -> bool:
        """Whether anyone reads an output of the node that is being lowered."""
        return output == 0

    def add(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        **options: Any,
    ) -> Op:
        """Append an operator, or those it is composed of where no kernel takes the types.

        Raises:
            Refusal: it cannot be composed.
        """
        if compose.is_needed(code, inputs, outputs):
            start = len(self.ops)
            result = compose.composed(self, code, inputs, outputs, options)
            return self._give(result, outputs[0], start)
        unbounded.spread(code, inputs, outputs)
        if unbounded.is_clamped(code, inputs, options):
            start, keepdims = len(self.ops), bool(options.get("keep_dims", False))
            result = unbounded.kept(self, code, inputs, outputs[0], keepdims)
            return self._give(result, outputs[0], start)
        return super().add(code, inputs, outputs, **options)

    def _give(self, made: Tensor, wanted: Tensor, start: int) -> Op:
        """Let the operators from ``start`` on write what they have made to ``wanted``."""
        for op in self.ops[start:]:
            op.outputs = [wanted if t is made else t for t in op.outputs]
            op.inputs = [wanted if t is made else t for t in op.inputs]
        return self.ops[-1]

    def unary(self, code: str, x: Tensor, dtype: Any = None, **options: Any) -> Tensor:
        """Elementwise operator of one operand."""
        return self.emit(code, [x], x.shape, dtype, **options)

    def binary(self, code: str, a: Tensor | Any, b: Tensor | Any) -> Tensor:
        """Elementwise operator of two operands; a plain number takes the other one's dtype."""
        if not isinstance(a, Tensor):
            a = self.const(a, b.dtype)
        if not isinstance(b, Tensor):
            b = self.const(b, a.dtype)
        if code in ("MAXIMUM", "MINIMUM") and b.data is not None and a.dtype.kind == "f":
            # NaN behind a constant stays; LiteRT's own kernels drop one before it (2.3.0).
            a, b = b, a
        options = {"fused_activation_function": 0} if code in ARITHMETIC else {}
        dtype = np.bool_ if code in _FLAGS else a.dtype
        return self.emit(code, [a, b], broadcast(a.shape, b.shape), dtype, **options)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        """Convert the element type; nothing is written where it is the same."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.data is not None:
            return self.const(x.data.astype(dtype))
        return self.emit("CAST", [x], x.shape, dtype, in_data_type=x.dtype, out_data_type=dtype)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Permute the axes; constants are permuted here."""
        perm = list(perm)
        if perm == list(range(x.rank)):
            return x
        if x.data is not None and x.quantization is None:
            return self.const(x.data.transpose(perm))
        shape = [x.shape[p] for p in perm]
        kept = [p for p in perm if x.shape[p] != 1]
        if kept == sorted(kept) and shape.count(None) <= 1:
            # Only axes of size 1 move.
            return self.reshape(x, [-1 if s is None else s for s in shape])
        out = self.emit("TRANSPOSE", [x, self.const(perm, np.int32)], shape)
        out.quantization = x.quantization
        return out

    def copy(self, x: Tensor) -> Tensor:
        """Return another tensor of the same values, computed when the model runs."""
        if 1 <= x.rank <= _SLICE_RANK and x.dtype.name in _SLICED:
            # RESHAPE may hand on its operand's memory, which is freed twice in a body (2.3.0).
            bounds = [self.const([v] * x.rank, np.int32) for v in (0, -1)]
            return self._quantized_as(x, self.emit("SLICE", [x, *bounds], x.shape))
        shape = self.shape_vector([self.extent(x, axis) for axis in range(x.rank)])
        options = {} if shape.data is None else {"new_shape": shape.data.tolist()}
        return self._quantized_as(x, self.emit("RESHAPE", [x, shape], x.shape, **options))

    def extent(self, x: Tensor, axis: int) -> Extent:
        """Return the size of an axis, read at run time where it is not known."""
        size = x.shape[axis]
        if size is not None:
            return size
        shape = self.emit("SHAPE", [x], (x.rank,), np.int32, out_type=np.dtype(np.int32))
        index = self.const(axis, np.int32)
        return self.emit("GATHER", [shape, index], (), axis=0, batch_dims=0)

    def shape_vector(self, sizes: Sequence[Extent]) -> Tensor:
        """Return sizes as one int32 vector."""
        if all(isinstance(s, int) for s in sizes):
            return self.const(list(sizes), np.int32)
        parts = [s if isinstance(s, Tensor) else self.const(s, np.int32) for s in sizes]
        return self.emit("PACK", parts, (len(parts),), np.int32, values_count=len(parts), axis=0)

    def reshape(self, x: Tensor, sizes: Sequence[Extent], shape: Sequence[Size] = ()) -> Tensor:
        """Give another shape.

        Args:
            x: any tensor.
            sizes: one may be -1; those only known at run time are scalars.
            shape: what is known of the result; default the integers of ``sizes``.
        """
        sizes = _with_minus_one(sizes)
        known = tuple(shape) or tuple(s if isinstance(s, int) and s >= 0 else None for s in sizes)
        known = _infer_minus_one(x.shape, known)
        if x.shape == known and None not in known:
            return x
        if x.data is not None and None not in known:
            return self.const(x.data.reshape([s for s in known if s is not None]))
        if all(isinstance(s, int) for s in sizes):
            plain = [s for s in sizes if isinstance(s, int)]
            target = [p if k is None else k for p, k in zip(plain, known, strict=True)]
            vector = self.const(target, np.int32)
            return self._quantized_as(x, self.emit("RESHAPE", [x, vector], known, new_shape=target))
        return self._quantized_as(x, self.emit("RESHAPE", [x, self.shape_vector(sizes)], known))

    def insert_axis(self, x: Tensor, axis: int) -> Tensor:
        """Add an axis of size 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        if shape.count(None) <= 1:
            return self.reshape(x, [-1 if s is None else s for s in shape])
        operands = [x, self.const(axis, np.int32)]
        return self._quantized_as(x, self.emit("EXPAND_DIMS", operands, shape))

    def drop_axis(self, x: Tensor, axis: int) -> Tensor:
        """Remove an axis of size 1."""
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        if shape.count(None) <= 1:
            return self.reshape(x, [-1 if s is None else s for s in shape])
        return self._quantized_as(x, self.emit("SQUEEZE", [x], shape, squeeze_dims=[axis]))

    def split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        """Cut into parts of known sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        parts = [self._quantized_as(x, self.tensor(shape, x.dtype)) for shape in shapes]
        where = self.const(axis, np.int32)
        if len(set(sizes)) == 1:
            self.add("SPLIT", [where, x], parts, num_splits=len(sizes))
        else:
            lengths = self.const(list(sizes), np.int32)
            self.add("SPLIT_V", [x, lengths, where], parts, num_splits=len(sizes))
        return parts

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join along an axis."""
        if len(parts) == 1:
            return parts[0]
        sizes = [p.shape[axis] for p in parts]
        shape = list(_common(parts))
        shape[axis] = None if None in sizes else sum(s for s in sizes if s is not None)
        return self.emit("CONCATENATION", parts, shape, axis=axis, fused_activation_function=0)

    def reduce(self, code: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
        """Reduce over axes; no axis leaves the tensor as it is."""
        axes = sorted({a % x.rank for a in axes}) if x.rank else []
        if not axes:
            return x
        if keepdims:
            shape = [1 if i in axes else s for i, s in enumerate(x.shape)]
        else:
            shape = [s for i, s in enumerate(x.shape) if i not in axes]
        return self.emit(code, [x, self.const(axes, np.int32)], shape, keep_dims=keepdims)

    def pad(self, x: Tensor, pads: Sequence[tuple[int, int]], value: float | None = None) -> Tensor:
        """Pad with a constant; zero unless a value is given."""
        if not any(any(p) for p in pads):
            return x
        shape = [
            None if s is None else s + lo + hi for s, (lo, hi) in zip(x.shape, pads, strict=True)
        ]
        amounts = self.const([list(p) for p in pads], np.int32)
        if value is None:
            return self._quantized_as(x, self.emit("PAD", [x, amounts], shape))
        return self.emit("PADV2", [x, amounts, self.const(value, x.dtype)], shape)

    def slice(
        self, x: Tensor, begin: Sequence[int], end: Sequence[int | None], step: Sequence[int]
    ) -> Tensor:
        """Take a strided part; ``end`` None runs to the end of the axis in the step's direction."""
        mask = sum(1 << i for i, e in enumerate(end) if e is None)
        stop = self.const([0 if e is None else e for e in end], np.int32)
        shape = [_length(s, b, e, t) for s, b, e, t in zip(x.shape, begin, end, step, strict=True)]
        operands = [x, self.const(list(begin), np.int32), stop, self.const(list(step), np.int32)]
        zero = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0, "offset": False}
        out = self.emit("STRIDED_SLICE", operands, shape, begin_mask=0, end_mask=mask, **zero)
        return self._quantized_as(x, out)

    def gather(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Take slices by non-negative index."""
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return self.emit("GATHER", [x, indices], shape, axis=axis, batch_dims=0)

    def _quantized_as(self, x: Tensor, y: Tensor) -> Tensor:
        """Operators that move values keep their scale."""
        y.quantization = x.quantization
        return y


def _with_minus_one(sizes: Sequence[Extent]) -> Sequence[Extent]:
    """Let the one dynamic size follow from the others."""
    unknown = [s for s in sizes if not isinstance(s, int) or s < 0]
    if len(unknown) != 1 or 0 in [s for s in sizes if isinstance(s, int)]:
        return sizes
    return [s if isinstance(s, int) else -1 for s in sizes]


def _infer_minus_one(source: Shape, target: Shape) -> Shape:
    """Fill in the one unknown size where all others and the source are known."""
    if target.count(None) != 1 or None in source:
        return target
    known = [s for s in target if s is not None]
    rest = int(np.prod(known, dtype=np.int64))
    total = int(np.prod([s for s in source if s is not None], dtype=np.int64))
    if rest == 0 or total % rest:
        return target
    return tuple(total // rest if s is None else s for s in target)


def _common(parts: Sequence[Tensor]) -> Shape:
    """The known size of each axis in any of the parts."""
    columns = zip(*(p.shape for p in parts), strict=True)
    return tuple(next((s for s in column if s is not None), None) for column in columns)


def _length(size: Size, begin: int, end: int | None, step: int) -> Size:
    if size is None:
        return None
    return len(range(*slice(begin, end, step).indices(size)))
