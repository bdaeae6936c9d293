"""Slices of tensors, read and written."""

from __future__ import annotations

from edgeinfer.backends.coreml_reference.registry import Bools, Ints, op
from edgeinfer.types import Array


@op("slice_by_index")
def slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Array:
    return x[_index(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)]


@op("slice_by_size")
def slice_by_size(x: Array, begin: Ints, size: Ints) -> Array:
    starts = [b + n if b < 0 else b for b, n in zip(begin, x.shape, strict=True)]
    for start, length, n in zip(starts, size, x.shape, strict=True):
        if not 0 <= start <= n or length < -1 or start + max(length, 0) > n:
            raise ValueError(f"{length} elements from {start} on are not in an axis of {n}")
    ends = [n if k == -1 else b + k for b, k, n in zip(starts, size, x.shape, strict=True)]
    return x[tuple(slice(b, e) for b, e in zip(starts, ends, strict=True))]


@op("slice_update")
def slice_update(
    x: Array,
    update: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Array:
    y = x.copy()
    place = _index(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    if y[place].shape != update.shape:
        raise ValueError(f"an update of {update.shape} does not fit a slice of {y[place].shape}")
    y[place] = update
    return y


def _index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None,
    begin_mask: Bools | None,
    end_mask: Bools | None,
    squeeze_mask: Bools | None,
) -> tuple[slice | int, ...]:
    rank = x.ndim
    off = (False,) * rank
    from_start, to_end, single = begin_mask or off, end_mask or off, squeeze_mask or off
    stride = stride or (1,) * rank
    if not len(begin) == len(end) == len(stride) == rank:
        raise ValueError(f"begin {begin}, end {end}, stride {stride} for a tensor of {x.shape}")
    place: list[slice | int] = []
    for axis in range(rank):
        if single[axis]:
            place.append(0 if from_start[axis] else begin[axis])
            continue
        first = None if from_start[axis] else begin[axis]
        last = None if to_end[axis] else end[axis]
        place.append(slice(first, last, stride[axis]))
    return tuple(place)
