"""What a reader of an operator gets: its operands and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.file import FileOp, FileTensor
from edgeinfer.convert.sources.tflite.weights import TYPES, StoredConstant
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.sources.tflite.importer import Importer


class Operand:
    """A tensor of the file in the graph that is being built.

    Args:
        g: the graph.
        tensor: as the file describes it.
        weights: Weights of a constant.
        value: Value of what is computed, with the element type that the file stores.
    """

    __slots__ = ("_g", "_real", "_stored", "tensor", "weights")

    def __init__(
        self,
        g: Importer,
        tensor: FileTensor,
        weights: StoredConstant | None = None,
        value: ir.Value | None = None,
    ) -> None:
        self._g, self.tensor, self.weights = g, tensor, weights
        self._stored, self._real = value, None if self.is_scaled else value

    @property
    def name(self) -> str:
        """As in the file."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes; None where a run decides."""
        return self.tensor.shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.tensor.shape)

    @property
    def dtype(self) -> ir.DataType:
        """Element type as stored."""
        if self.tensor.kind not in TYPES:
            raise Refusal(f"elements of type {self.tensor.kind}", "unsupported_dtype")
        return TYPES[self.tensor.kind]

    @property
    def is_float(self) -> bool:
        """Whether its real numbers are floats."""
        return self.is_scaled or self.dtype.is_floating_point()

    @property
    def real(self) -> ir.Value:
        """Its numbers: dequantized where it has scales."""
        if self._real is None:
            self._real = self._make_real()
        return self._real

    @property
    def stored(self) -> ir.Value:
        """Its elements as the file stores them."""
        if self._stored is None:
            if self.weights is None:
                raise Refusal(
                    f"{self.name!r} keeps its value from one run to the next",
                    "unsupported_op",
                    "make the state an input and an output of the model",
                )
            self._stored = self._g.initializer(self.weights.tensor, self.name)
        return self._stored

    @property
    def const(self) -> Array | None:
        """The numbers of a constant without scales; None for anything else."""
        if self.weights is None or self.weights.scale is not None:
            return None
        array = np.asarray(self.weights.tensor.numpy())
        return array.astype(np.float32) if self.weights.halves else array

    def ints(self) -> list[int] | None:
        """The numbers of a constant of integers, flattened; None for anything else."""
        array = self.const
        if array is None or array.dtype.kind not in "iu":
            return None
        return [int(v) for v in array.ravel()]

    def known(self, what: str) -> list[int]:
        """The integers of a constant.

        Raises:
            Refusal: it is computed.
        """
        values = self.ints()
        if values is None:
            raise Refusal(f"{what} must be constant", "requires_constant")
        return values

    def int64(self, shape: Sequence[int] | None = None) -> ir.Value:
        """Its integers as int64, as ONNX wants shapes and axes."""
        array = self.const
        if array is not None:
            wide = array.astype(np.int64)
            return self._g.const(wide if shape is None else wide.reshape(shape))
        value = self.real
        if self.dtype != ir.DataType.INT64:
            value = self._g.emit("Cast", value, to=ir.DataType.INT64)
        return value if shape is None else self._g.emit("Reshape", value, self._g.shape(shape))

    def transposed(self, perm: Sequence[int]) -> ir.Value:
        """Its numbers with the axes in another order; constants are rearranged as stored."""
        if self.weights is not None:
            return self._g.real(self.weights.transposed(perm), self.name)
        return self._g.emit("Transpose", self.real, perm=list(perm))

    def renamed(self, tensor: FileTensor, *, halves: bool = False) -> Operand:
        """Return the same numbers as another tensor of the file; halves may stand for floats."""
        if self.weights is None:
            return Operand(self._g, tensor, value=self._stored)
        kept = self.weights.halves or halves
        return Operand(self._g, tensor, replace(self.weights, halves=kept))

    @property
    def is_scaled(self) -> bool:
        """Whether it is stored as integers that stand for real numbers."""
        return self.tensor.scale is not None and self.tensor.kind.startswith(("INT", "UINT"))

    def _make_real(self) -> ir.Value:
        if self.weights is not None:
            return self._g.real(self.weights, self.name)
        scale = self.tensor.scale
        if scale is None or self._stored is None:
            return self.stored
        factors, zero = self._g.scales(scale, self.dtype)
        return self._g.emit("DequantizeLinear", self.stored, factors, zero, axis=scale.axis)


class Options:
    """Fields of an operator's options table; those that are not in the file are zero.

    Attributes:
        code: the operator.
        outputs: what the file says of the results.
        raw: what a custom operator has in place of a table.
        version: Version of the operator.
    """

    __slots__ = ("_fields", "code", "outputs", "raw", "version")

    def __init__(self, op: FileOp, outputs: tuple[FileTensor | None, ...]) -> None:
        self.code, self._fields, self.outputs = op.code, op.options, outputs
        self.raw, self.version = op.raw, op.version

    def __getattr__(self, name: str) -> Any:
        first, *rest = name.split("_")
        value = self._fields.get(first + "".join(w.capitalize() for w in rest), 0)
        return value.item() if isinstance(value, np.generic) else value

    @property
    def out(self) -> FileTensor:
        """What the file says of the first result."""
        tensor = self.outputs[0]
        if tensor is None:
            raise Refusal("its result is left out")
        return tensor

    @property
    def dtype(self) -> ir.DataType:
        """Element type of the first result."""
        return TYPES[self.out.kind]
