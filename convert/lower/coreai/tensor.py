"""What lowerings handle: a value of the program, with what is known of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Shape = tuple[int | None, ...]
"""None is a dynamic size."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value of the program.

    Attributes:
        value: as the library has it.
        dtype: Element type of its elements.
        shape: Shape of the tensor.
        data: its elements, where they are known.
    """

    value: Any
    dtype: np.dtype[Any]
    shape: Shape
    data: Array | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, if all of it is known."""
        known = tuple(s for s in self.shape if s is not None)
        return known if len(known) == self.rank else None

    @property
    def is_float(self) -> bool:
        """Whether it holds floats."""
        return self.dtype.kind == "f"
