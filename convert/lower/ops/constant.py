"""Constants inside bodies; all others are initializers by now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.portable import Tensors, Value
from edgeinfer.convert.lower.core.table import whole
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array


@whole("Constant")
def constant(
    g: Tensors,
    *,
    value: Array | None,
    value_float: float | None,
    value_floats: Sequence[float] | None,
    value_int: int | None,
    value_ints: Sequence[int] | None,
) -> Value:
    """Return a constant of whichever attribute there is."""
    if value is not None:
        return g.const(value)
    for one, many, dtype in (
        (value_float, value_floats, np.float32),
        (value_int, value_ints, np.int64),
    ):
        if one is not None or many is not None:
            return g.const(many if one is None else one, dtype)
    raise Refusal("strings and sparse values have no tensor", "unsupported_dtype")
