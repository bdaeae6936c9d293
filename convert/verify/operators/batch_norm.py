"""BatchNormalization with given statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array


def batch_normalization(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """BatchNormalization as in inference.

    Before opset 14 there is no attribute that says so: one output means inference. The reference
    (onnx 1.23) takes the momentum for a sign of training there, and normalises by the batch.
    """
    if attrs.get("training_mode") or attrs.get("#outputs", 1) > 1:
        raise Unhandled
    x, *statistics = inputs
    if x is None or attrs.get("spatial", 1) != 1:
        raise Unhandled
    form = (1, -1, *(1,) * (x.ndim - 2))
    scale, bias, mean, variance = (s.reshape(form) for s in statistics if s is not None)
    factor = scale / np.sqrt(variance + attrs.get("epsilon", 1e-5))
    return ((x * factor + (bias - mean * factor)).astype(x.dtype),)
