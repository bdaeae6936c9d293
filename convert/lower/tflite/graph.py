"""A TFLite graph in memory: tensors, operators and subgraphs, before it becomes a flatbuffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cache
from typing import Any

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Size = int | None
"""A static size, or None where it is only known when the model runs."""

Shape = tuple[Size, ...]

STABLEHLO = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
"""Operators of StableHLO that are written; they compute what the plain ones lack types for."""


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type; NumPy puts it together anew each time."""
    return dtype.name


@dataclass(frozen=True, slots=True, eq=False)
class TensorQuantization:
    """``real = scale * (stored - zero_point)``.

    Attributes:
        scale: one float32 value, or one per slice along ``axis``.
        zero_point: as many integers.
        axis: the quantized dimension; 0 for per-tensor scales.
        block: elements of the last axis that share a scale: ``scale`` is (rows, blocks) then, as
            float16, and nothing is shifted. 0 without blocks.
    """

    scale: Array
    zero_point: Array
    axis: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedBlocks:
    """A matrix (K, N) that was stored in 4 bits with scales for blocks along K.

    Attributes:
        values: the floats.
        stored: (K, N), 4-bit integers.
        scale: (blocks, N).
        size: rows of a block.
    """

    values: Array
    stored: Array
    scale: Array
    size: int


@dataclass(slots=True, eq=False)
class Tensor:
    """A value of the graph; compared by identity.

    Attributes:
        name: as written to the file.
        shape: one entry per axis.
        dtype: Element type of the stored elements.
        data: the values of a constant; None for anything computed.
        quantization: None for plain tensors.
        is_variable: keeps its value from one run to the next (state of fused recurrent operators).
        unbounded: may be infinite whatever the inputs are, because a constant is.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    data: Array | None = None
    quantization: TensorQuantization | None = None
    is_variable: bool = False
    unbounded: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return None not in self.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of a tensor that ``is_static``.

        Raises:
            ValueError: a size is not known.
        """
        sizes = tuple(s for s in self.shape if s is not None)
        if len(sizes) != len(self.shape):
            raise ValueError(f"tensor {self.name!r} has dynamic sizes: {self.shape}")
        return sizes

    @property
    def value(self) -> Array:
        """The values of a constant.

        Raises:
            ValueError: it is computed.
        """
        if self.data is None:
            raise ValueError(f"tensor {self.name!r} is not a constant")
        return self.data


@dataclass(slots=True, eq=False)
class Op:
    """One operator.

    Attributes:
        code: name in the schema's ``BuiltinOperator``.
        inputs: None where an optional input is left out.
        outputs: at least one.
        options: fields of the operator's options table, by the schema's names in snake_case.
        bodies: subgraphs of control flow, by the option that refers to them.
    """

    code: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, Graph] = field(default_factory=dict)


def broadcast(*shapes: Shape) -> Shape:
    """Broadcast shapes; None wins over 1 and loses to any other known size."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_join(sizes) for sizes in zip(*padded, strict=True))


def _join(sizes: tuple[Size, ...]) -> Size:
    known = {s for s in sizes if s is not None and s != 1}
    if len(known) > 1:
        raise Refusal(f"sizes {sorted(known)} do not broadcast", hint="export the model again")
    if known:
        return known.pop()
    return None if None in sizes else 1


class Graph:
    """One subgraph of the model, in the order of execution.

    Attributes:
        name: as written to the file.
        inputs: in the model's order.
        outputs: in the model's order.
        ops: sorted topologically.
    """

    def __init__(self, name: str = "main", prefix: str = "") -> None:
        self.name = name
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.ops: list[Op] = []
        self._prefix = prefix
        self._count = 0

    def fresh_name(self, base: str) -> str:
        """Return a name no other tensor of the graph was given by this method."""
        self._count += 1
        return f"{self._prefix}{base}_{self._count}"

    def tensor(self, shape: Sequence[Size], dtype: Any, name: str = "") -> Tensor:
        """Make a computed tensor, not yet the output of any operator."""
        return Tensor(name or self.fresh_name("t"), tuple(shape), np.dtype(dtype))

    def const(self, value: Any, dtype: Any = None, name: str = "") -> Tensor:
        """Make a constant; its dtype is the array's unless another is given."""
        # Views are kept as views: a transposed weight is laid out when it is written.
        array = np.asarray(value, dtype=dtype)
        return Tensor(name or self.fresh_name("c"), array.shape, array.dtype, array)

    def add(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        **options: Any,
    ) -> Op:
        """Append an operator with outputs that were made before."""
        op = Op(code, list(inputs), list(outputs), options)
        self.ops.append(op)
        return op

    def emit(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        shape: Sequence[Size],
        dtype: Any = None,
        **options: Any,
    ) -> Tensor:
        """Append an operator with one output.

        Args:
            code: name in the schema's ``BuiltinOperator``.
            inputs: operands.
            shape: Shape of the output.
            dtype: Element type of the output; default that of the first operand.
            **options: fields of the options table.
        """
        if dtype is None:
            first = next(i for i in inputs if i is not None)
            dtype = first.dtype
        output = self.tensor(shape, dtype)
        self.add(code, inputs, [output], **options)
        return output

    def readers(self) -> dict[int, list[Op]]:
        """Map ``id(tensor)`` to the operators that read it, once per operand."""
        found: dict[int, list[Op]] = {}
        for op in self.ops:
            for operand in op.inputs:
                if operand is not None:
                    found.setdefault(id(operand), []).append(op)
        return found

    def producers(self) -> dict[int, Op]:
        """Map ``id(tensor)`` to the operator that computes it."""
        return {id(out): op for op in self.ops for out in op.outputs}

    def drop_dead(self) -> None:
        """Remove operators whose results nobody reads."""
        live = {id(t) for t in self.outputs}
        kept: list[Op] = []
        for op in reversed(self.ops):
            if any(id(o) in live for o in op.outputs):
                kept.append(op)
                live.update(id(i) for i in op.inputs if i is not None)
        self.ops = kept[::-1]
