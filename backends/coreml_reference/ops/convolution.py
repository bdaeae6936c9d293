"""Convolutions in one, two or three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.numerics.convolution import convolved, transposed, transposed_sizes
from edgeinfer.numerics.windows import extent, same, sliding
from edgeinfer.types import Array


@op("conv")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    reach = [extent(*pair) for pair in zip(weight.shape[2:], dilations, strict=True)]
    pads = padding(pad_type, pad, x.shape[2:], reach, strides)
    window = sliding(x.shape[2:], weight.shape[2:], strides, dilations, pads)
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(
            f"{x.shape[1]} channels do not fit weights {weight.shape}, {groups} groups"
        )
    return convolved(x, weight, bias, window, groups)


@op("conv_quantized")
def conv_quantized(
    x: Array,
    weight: Array,
    quantization_type: str,
    quant_scale: Array,
    quant_bias: Array,
    nbits: int = 8,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    if quantization_type != "linear":
        raise ValueError(f"weights of the type {quantization_type!r} are not known")
    column = (-1,) + (1,) * (weight.ndim - 1)
    real = weight * quant_scale.reshape(column) + quant_bias.reshape(column)
    return conv(x, real, bias, strides, pad_type, pad, dilations, groups)


@op("conv_transpose")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    pad: Ints | None = None,
    output_shape: Ints | None = None,
    pad_type: str = "valid",
    strides: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
    *,
    out: tuple[TensorType, ...],
) -> Array:
    rank = x.ndim - 2
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    full = transposed_sizes(x.shape[2:], weight.shape[2:], strides, dilations)
    declared = out[0].shape
    lengths = output_shape[2:] if output_shape else ()
    starts, sizes = [], []
    for axis, size in enumerate(full):
        begin, end = (pad[2 * axis], pad[2 * axis + 1]) if pad_type == "custom" and pad else (0, 0)
        length = lengths[axis] if lengths else None
        if length is None and pad_type in ("same", "same_lower"):
            length = x.shape[2 + axis] * strides[axis]
        if length is None and declared is not None and declared[2 + axis] is not None:
            length = declared[2 + axis]
        length = size - begin - end if length is None else length
        if pad_type in ("same", "same_lower"):
            cut = max(0, size - length)
            begin = cut // 2 if pad_type == "same" else cut - cut // 2
        starts.append(begin)
        sizes.append(length)
    return transposed(x, weight, bias, strides, dilations, groups, starts, sizes)


def padding(
    pad_type: str, pad: Ints | None, sizes: Sequence[int], reach: Sequence[int], strides: Ints
) -> list[tuple[int, int]]:
    """Return what to add before and after each spatial axis.

    Args:
        pad_type: ``valid``, ``custom``, ``same`` or ``same_lower``.
        pad: begin and end of each axis, for ``custom``.
        sizes: Sizes of the input.
        reach: Range of the kernel with its dilation.
        strides: Strides of the kernel.
    """
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        pad = pad or (0, 0) * len(sizes)
        return [(pad[2 * i], pad[2 * i + 1]) for i in range(len(sizes))]
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"the pad_type {pad_type!r} is not known")
    lower = pad_type == "same_lower"
    rows = zip(sizes, reach, strides, strict=True)
    return [same(size, width, stride, lower=lower) for size, width, stride in rows]
