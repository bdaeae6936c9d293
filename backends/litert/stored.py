"""Integers that a file takes or gives for floats, converted both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.errors import InputError
from edgeinfer.types import Array, Stored

KINDS = frozenset({"int8", "uint8", "int16"})


def stored_of(detail: Mapping[str, Any]) -> Stored | None:
    """What an engine's tensor stores floats as; None for plain ones and for one scale a channel."""
    kind = np.dtype(detail["dtype"]).name
    scale, zero = detail.get("quantization", (0.0, 0))
    if kind not in KINDS or not scale:
        return None
    return Stored(kind, float(scale), int(zero))


def to_integers(name: str, floats: Array, stored: Stored) -> Array:
    """Round to the nearest step, half to even as QuantizeLinear does, and saturate.

    Raises:
        InputError: a value is NaN, for which there is no integer.
    """
    # In float32 with a division, as the model does it.
    steps = np.rint(floats / np.float32(stored.scale))
    if np.isnan(steps).any():
        what = f"no NaN, for which the file's {stored.dtype} has no value"
        raise InputError(name, what, "NaN")
    limits = np.iinfo(stored.dtype)
    low, high = limits.min - stored.zero_point, limits.max - stored.zero_point
    integers: Array = (np.clip(steps, low, high) + stored.zero_point).astype(stored.dtype)
    return integers


def to_floats(integers: Array, stored: Stored) -> Array:
    """The floats that integers stand for."""
    steps = integers.astype(np.int32) - stored.zero_point
    floats: Array = steps.astype(np.float32) * np.float32(stored.scale)
    return floats


def note(name: str, stored: Stored, is_input: bool) -> str:
    """Say what happens to a tensor."""
    what = "floats are rounded to it" if is_input else "floats are made of it"
    return f"{name!r} is stored as {stored}: {what}"
