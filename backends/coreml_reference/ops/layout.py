"""Operations that move or repeat elements without computing with them."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.backends.coreml_reference.registry import Arrays, Ints, op
from edgeinfer.types import Array

_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "symmetric": "symmetric"}


@op("shape")
def shape(x: Array) -> Array:
    return np.array(x.shape, np.int32)


@op("reshape")
def reshape(x: Array, shape: Ints) -> Array:
    """A 0 copies the length at its place, counted from the last axis; there may be none: 1."""
    if not x.size:
        return x.reshape(shape)
    ahead = len(shape) - x.ndim
    own = [1] * max(0, ahead) + list(x.shape[max(0, -ahead) :])
    return x.reshape([own[i] if n == 0 else n for i, n in enumerate(shape)])


@op("reshape_like")
def reshape_like(
    x: Array, ref_tensors: Arrays, begins: Arrays, ends: Arrays, end_masks: Arrays
) -> Array:
    lengths: list[int] = []
    for tensor, begin, end, to_end in zip(ref_tensors, begins, ends, end_masks, strict=True):
        lengths.extend(tensor.shape[int(begin) : None if bool(to_end) else int(end)])
    return x.reshape(lengths)


@op("flatten2d")
def flatten2d(x: Array, axis: int = 1) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@op("expand_dims")
def expand_dims(x: Array, axes: Ints) -> Array:
    return np.expand_dims(x, axes)


@op("squeeze")
def squeeze(x: Array, axes: Ints | None = None) -> Array:
    return np.squeeze(x, axes)


@op("transpose")
def transpose(x: Array, perm: Ints) -> Array:
    return x.transpose(perm)


@op("concat")
def concat(values: Arrays, axis: int, interleave: bool = False) -> Array:
    if not interleave:
        return np.concatenate([np.atleast_1d(v) for v in values], axis)
    axis %= values[0].ndim
    lengths = list(values[0].shape)
    lengths[axis] *= len(values)
    return np.stack(values, axis + 1).reshape(lengths)


@op("stack")
def stack(values: Arrays, axis: int) -> Array:
    return np.stack(values, axis)


@op("split")
def split(
    x: Array, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None
) -> tuple[Array, ...]:
    if split_sizes is None:
        return tuple(np.split(x, num_splits or 1, axis))
    if sum(split_sizes) != x.shape[axis]:
        raise ValueError(f"parts of {split_sizes} do not make up {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(split_sizes)[:-1], axis))


@op("tile")
def tile(x: Array, reps: Ints) -> Array:
    return np.tile(x, reps)


@op("pad")
def pad(x: Array, pad: Ints, mode: str = "constant", constant_val: Array | None = None) -> Array:
    given = len(pad) // 2
    pairs = [(0, 0)] * (x.ndim - given) + [(pad[2 * i], pad[2 * i + 1]) for i in range(given)]
    if mode == "constant":
        value = 0 if constant_val is None else constant_val.astype(x.dtype)
        return np.pad(x, pairs, constant_values=value)
    if mode not in _PAD_MODES:
        raise ValueError(f"the mode {mode!r} is not known")
    return np.pad(x, pairs, mode=_PAD_MODES[mode])  # type: ignore[call-overload, no-any-return]


@op("reverse")
def reverse(x: Array, axes: Ints | None = None) -> Array:
    return np.flip(x, axes)


@op("reverse_sequence")
def reverse_sequence(x: Array, lengths: Ints, seq_axis: int = 0, batch_axis: int = 0) -> Array:
    y = np.moveaxis(x.copy(), (batch_axis, seq_axis), (0, 1))
    for row, length in zip(y, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(y, (0, 1), (batch_axis, seq_axis))


@op("depth_to_space")
def depth_to_space(x: Array, block_size: int) -> Array:
    n, c, h, w = x.shape
    b = block_size
    y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // (b * b), h * b, w * b)


@op("space_to_depth")
def space_to_depth(x: Array, block_size: int) -> Array:
    n, c, h, w = x.shape
    b = block_size
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


@op("pixel_shuffle")
def pixel_shuffle(x: Array, upscale_factor: int) -> Array:
    n, c, h, w = x.shape
    b = upscale_factor
    y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (b * b), h * b, w * b)


@op("pixel_unshuffle")
def pixel_unshuffle(x: Array, downscale_factor: int) -> Array:
    n, c, h, w = x.shape
    b = downscale_factor
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


@op("batch_to_space")
def batch_to_space(x: Array, block_shape: Ints, crops: Array) -> Array:
    rank = len(block_shape)
    batch = x.shape[0] // int(np.prod(block_shape))
    y = x.reshape(*block_shape, batch, *x.shape[1:])
    order = [rank, rank + 1]
    for axis in range(rank):
        order += [rank + 2 + axis, axis]
    spatial = [n * b for n, b in zip(x.shape[2:], block_shape, strict=True)]
    y = y.transpose(order).reshape(batch, x.shape[1], *spatial)
    place = [slice(int(b), n - int(e)) for n, (b, e) in zip(spatial, crops, strict=True)]
    return y[(slice(None), slice(None), *place)]


@op("space_to_batch")
def space_to_batch(x: Array, block_shape: Ints, paddings: Array) -> Array:
    y = np.pad(x, [(0, 0), (0, 0), *((int(b), int(e)) for b, e in paddings)])
    rank = len(block_shape)
    sizes = [n // b for n, b in zip(y.shape[2:], block_shape, strict=True)]
    pieces: list[int] = []
    for size, block in zip(sizes, block_shape, strict=True):
        pieces += [size, block]
    blocks = [3 + 2 * i for i in range(rank)]
    y = y.reshape(*x.shape[:2], *pieces).transpose(*blocks, 0, 1, *[2 + 2 * i for i in range(rank)])
    return y.reshape(x.shape[0] * int(np.prod(block_shape)), x.shape[1], *sizes)


@op("sliding_windows")
def sliding_windows(x: Array, axis: int, size: int, stride: int = 1) -> Array:
    axis %= x.ndim
    view = sliding_window_view(x, size, axis=axis)
    return np.moveaxis(view[(slice(None),) * axis + (slice(None, None, stride),)], -1, axis + 1)


@op("crop")
def crop(x: Array, crop_height: Ints, crop_width: Ints) -> Array:
    height, width = x.shape[-2:]
    rows = slice(crop_height[0], height - crop_height[1])
    return x[..., rows, crop_width[0] : width - crop_width[1]]


@op("fill")
def fill(shape: Ints, value: Array | None = None, *, out: tuple[TensorType, ...]) -> Array:
    return _filled(shape, value, out[0])


@op("fill_like")
def fill_like(
    ref_tensor: Array, value: Array | None = None, *, out: tuple[TensorType, ...]
) -> Array:
    return _filled(ref_tensor.shape, value, out[0])


def _filled(shape: Ints, value: Array | None, kind: TensorType) -> Array:
    working = np.dtype(np.float32) if kind.dtype == "float16" else kind.container
    return np.full(shape, 0 if value is None else value, working)
