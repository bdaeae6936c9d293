"""Lists of tensors, and the states that live between predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.backends.coreml_reference.program import ListType, MilType
from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array


@op("make_list")
def make_list(
    elem_shape: Any,
    init_length: int = 1,
    dynamic_length: bool = True,
    dtype: str = "fp32",
    *,
    out: tuple[MilType, ...],
) -> list[Array | None]:
    kind = out[0]
    if not isinstance(kind, ListType) or kind.element.shape is None or None in kind.element.shape:
        return [None] * init_length
    return [np.zeros(_lengths(kind.element.shape), np.float32)] * init_length


@op("list_write")
def list_write(ls: Any, index: int, value: Array) -> list[Array | None]:
    return _written(ls, [(index, value)])


@op("list_scatter")
def list_scatter(ls: Any, indices: Array, value: Array) -> list[Array | None]:
    return _written(ls, list(zip(indices.tolist(), value, strict=True)))


@op("list_read")
def list_read(ls: Any, index: int) -> Array:
    return _item(ls, index)


@op("list_gather")
def list_gather(ls: Any, indices: Array) -> Array:
    return np.stack([_item(ls, i) for i in indices.tolist()])


@op("list_length")
def list_length(ls: Any) -> Array:
    return np.array(len(ls), np.int32)


@op("read_state")
def read_state(input: Any) -> Array:
    value: Array = input.value
    return value


@op("write_state")
def write_state(input: Any, data: Array) -> tuple[()]:
    input.value = data
    return ()


@op("coreml_update_state")
def coreml_update_state(state: Any, value: Array) -> Array:
    state.value = value
    return value


def _lengths(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n is not None)


def _written(ls: list[Array | None], changes: list[tuple[int, Array]]) -> list[Array | None]:
    """Return the list with its changes; what was never written is zero."""
    longer = [*ls, *[None] * (max((i for i, _ in changes), default=-1) + 1 - len(ls))]
    for index, value in changes:
        longer[index] = value
    blank = next((np.zeros_like(v) for v in longer if v is not None), None)
    return [blank if v is None else v for v in longer]


def _item(ls: list[Array | None], index: int) -> Array:
    if not 0 <= index < len(ls):
        raise IndexError(f"index {index} of a list of {len(ls)}")
    item = ls[index]
    if item is None:
        raise IndexError(f"element {index} of the list was never written")
    return item
