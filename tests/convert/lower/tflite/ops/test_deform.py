"""Deformable convolution, against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.single import agree
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


@rows(
    ("group", "offsets", "attributes", "masked"),
    [
        (1, 1, {}, False),
        (1, 1, {}, True),
        (1, 2, {"pads": [1, 2, 1, 0]}, False),
        (2, 1, {"strides": [2, 1], "pads": [1, 1, 1, 1]}, True),
        (2, 2, {"dilations": [1, 2], "pads": [2, 2, 2, 2]}, True),
    ],
)
def test_deform_conv(group: int, offsets: int, attributes: dict[str, Any], masked: bool) -> None:
    # The reference takes a tenth of a millisecond for each product.
    x = RNG.normal(size=(2, 4, 5, 4)).astype(np.float32)
    w = RNG.normal(size=(4, 4 // group, 3, 2)).astype(np.float32)
    b = RNG.normal(size=4).astype(np.float32)
    pads = attributes.get("pads", [0] * 4)
    steps, gaps = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    out = [
        (x.shape[2 + a] + pads[a] + pads[a + 2] - (w.shape[2 + a] - 1) * gaps[a] - 1) // steps[a]
        + 1
        for a in range(2)
    ]
    # Beyond the borders too.
    offset = (3 * RNG.normal(size=(2, offsets * 6 * 2, *out))).astype(np.float32)
    mask = RNG.uniform(size=(2, offsets * 6, *out)).astype(np.float32) if masked else None
    inputs = (x, w, offset, b, mask)
    given = {"group": group, "offset_group": offsets, **attributes}
    agree(
        "DeformConv",
        *inputs,
        constants=[1, 3],
        shape=[2, 4, *out],
        like="reference",
        both=False,
        **given,
    )
