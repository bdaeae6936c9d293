"""Images as inputs: Core ML hands over pixels, the program makes numbers of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ports import Port
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.errors import UsageError
from edgeinfer.types import ImageInput


def check_picture(port: Port, image: ImageInput) -> None:
    """Refuse an input that is no single image of that colour.

    Raises:
        UsageError: its shape or type is another.
    """
    channels = 1 if image.color == "GRAY" else 3
    at = 1 if image.layout == "NCHW" else 3
    dims = port.shape
    if len(dims) != 4 or dims[0] != 1 or dims[at] != channels or port.kind == "int32":
        found = ", ".join(map(str, dims))
        raise UsageError(
            f"input {port.source!r} cannot be an image: expected one of {channels} channels in "
            f"floats ({image.layout}), the model has [{found}]"
        )


def image_type(port: Port, image: ImageInput, shape: Any) -> Any:
    """Return coremltools' description of an image."""
    import coremltools as ct

    layouts = {
        "RGB": ct.colorlayout.RGB,
        "BGR": ct.colorlayout.BGR,
        "GRAY": ct.colorlayout.GRAYSCALE,
    }
    return ct.ImageType(
        name=port.name,
        shape=shape,
        color_layout=layouts[image.color],
        channel_first=image.layout == "NCHW",
    )


def normalised(g: Builder, x: Tensor, image: ImageInput) -> Tensor:
    """Make ``(pixel * scale - mean) / std`` of pixels, for each channel."""
    if image.scale == 1.0 and not any(image.mean) and all(s == 1.0 for s in image.std):
        return x
    count = 1 if image.color == "GRAY" else 3
    mean, std = (
        np.broadcast_to(np.asarray(v[:count], np.float64), (count,))
        for v in (image.mean, image.std)
    )
    shape = [1, count, 1, 1] if image.layout == "NCHW" else [1, 1, 1, count]
    factor = g.const((image.scale / std).reshape(shape), x.dtype)
    shift = g.const((-mean / std).reshape(shape), x.dtype)
    return g.binary("add", g.binary("mul", x, factor), shift)
