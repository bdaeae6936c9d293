"""Optional values: a tensor is one that is there."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS


@OPS.lower("OptionalHasElement", since=18, dtypes=ANY)
def optional_has_element(g: Builder, input: Tensor | None = None) -> Tensor:
    """A constant."""
    return g.const(input is not None, np.bool_)


@OPS.lower("OptionalGetElement", since=18, dtypes=ANY)
def optional_get_element(g: Builder, input: Tensor) -> Tensor:
    """Nothing."""
    return input
