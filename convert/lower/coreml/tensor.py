"""What a value of the ONNX graph has become."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Size = Any
"""An ``int``, or coremltools' symbol of a dynamic size."""

Shape = tuple[Size, ...]
Span = tuple[int, int]
"""Lowest and highest value that an integer tensor can have."""

Reach = tuple[float, float]
"""Likewise of floats; one of the two may be infinite."""

MAX_RANK = 5
INT32 = np.iinfo(np.int32)
WHOLE: Span = (int(INT32.min), int(INT32.max))
EXACT = 1 << 24
"""float32 holds every integer up to here."""


@dataclass(slots=True, eq=False)
class Tensor:
    """A variable of the program, or a constant that no operator has requested yet.

    Attributes:
        dtype: element type of the ONNX value; integers of all widths are int32 in the program.
        shape: Shape of the ONNX value. Above five axes the variable holds the same elements,
            flattened.
        variable: coremltools' ``Var``; None for a constant until it is needed.
        data: the values of a constant, in ``dtype``.
        span: what integers are proven to lie between.
        reach: what floats are.
        extents: Extents of more than five axes, sizes as integers or scalars that hold them in a
            run; None where all are known.
    """

    dtype: np.dtype[Any]
    shape: Shape
    variable: Any = None
    data: Array | None = None
    span: Span | None = None
    reach: Reach | None = None
    extents: tuple[Any, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return all(isinstance(s, int) for s in self.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.dtype.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers."""
        return self.dtype.kind in "iu"

    @property
    def bounds(self) -> Span:
        """What integers lie between: proven, or what int32 and the element type allow."""
        if self.span is not None:
            return self.span
        if self.data is not None and self.data.size and self.is_integer:
            self.span = (int(self.data.min()), int(self.data.max()))
            return self.span
        return limits(self.dtype)

    @property
    def between(self) -> Reach | None:
        """What floats lie between: proven, or a constant's own; None where nothing says it."""
        if self.reach is None and self.is_float and self.data is not None and self.data.size:
            low, high = float(self.data.min()), float(self.data.max())
            self.reach = None if np.isnan(low) or np.isnan(high) else (low, high)
        return self.reach


def limits(dtype: np.dtype[Any]) -> Span:
    """What integers of a type lie between, as far as int32 reaches."""
    if dtype.kind not in "iu":
        return WHOLE
    own = np.iinfo(dtype)
    return max(int(own.min), WHOLE[0]), min(int(own.max), WHOLE[1])


def sizes_of(variable: Any) -> Shape:
    """The shape of a variable, its known sizes as plain integers."""
    return tuple(int(s) if isinstance(s, (int, np.integer)) else s for s in variable.shape)
