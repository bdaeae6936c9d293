"""ConvTranspose by weights of a run: a convolution over elements with zeros between them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at, sizes


def conv_transpose(node: ir.Node) -> onnx.FunctionProto | None:
    """Spread the elements by a kernel of one, and convolve with the kernels flipped.

    Given: ``y = ConvTranspose<strides=[2, 2]>(x, w, b)`` with ``w`` (in, out, 3, 3)
    Result::

        z = ConvTranspose<group=in, strides=[2, 2]>(x, ones)
        y = Conv<pads=[2, 2, 2, 2]>(z, Transpose(w)[:, :, ::-1, ::-1], b)
    """
    x, weights = node.inputs[0], node.inputs[1]
    kernel = sizes(weights)
    if x is None or weights is None or kernel is None or weights.const_value is not None:
        return None
    space, group = kernel[2:], attribute(node, "group", 1)
    pads = _pads(node, space)
    if pads is None or min(pads) < 0:
        return None
    body, axes = Body(node), range(len(space))
    transposed = body.reshape("i1", group, kernel[0] // group, kernel[1], *space)
    transposed = body.op("Transpose", transposed, perm=[0, 2, 1, *(3 + a for a in axes)])
    transposed = body.reshape(transposed, group * kernel[1], kernel[0] // group, *space)
    ends = ([-1] * len(space), [-(k + 1) for k in space], [2 + a for a in axes])
    transposed = body.op("Slice", transposed, *(body.const(e) for e in (*ends, ends[0])))
    strides = attribute(node, "strides", None) or [1] * len(space)
    spread = "i0"
    if any(s > 1 for s in strides):
        one = body.const(np.ones((kernel[0], 1, *(1 for _ in axes)), np.float32))
        one = body.op("CastLike", one, "i0")
        spread = body.op("ConvTranspose", "i0", one, group=kernel[0], strides=strides)
    bias = [body.given(2)] if input_at(node, 2) is not None else []
    options = {"group": group, "pads": pads}
    if dilations := attribute(node, "dilations", None):
        options["dilations"] = dilations
    body.give(0, body.op("Conv", spread, transposed, *bias, **options))
    return body.function()


def _pads(node: ir.Node, kernel: tuple[int, ...]) -> list[int] | None:
    """What the convolution adds around; None where sizes decide it."""
    count = len(kernel)
    if attribute(node, "output_shape", None) or attribute(node, "auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    ):
        return None
    gaps = attribute(node, "dilations", None) or [1] * count
    cut = attribute(node, "pads", None) or [0] * 2 * count
    more = attribute(node, "output_padding", None) or [0] * count
    reach = [(k - 1) * d for k, d in zip(kernel, gaps, strict=True)]
    begin = [r - c for r, c in zip(reach, cut[:count], strict=True)]
    end = [r - c + m for r, c, m in zip(reach, cut[count:], more, strict=True)]
    return [*begin, *end]
