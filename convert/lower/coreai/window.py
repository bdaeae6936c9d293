"""Padding of windows."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.convert.lower.coreai.tensor import Shape
from edgeinfer.convert.lower.registry import Refusal


def padding(
    sizes: Shape,
    kernel: Sequence[int],
    step: Sequence[int],
    spread: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """What is added before and after each spatial axis."""
    count = len(kernel)
    if auto_pad in ("NOTSET", ""):
        given = list(pads or [0] * 2 * count)
        if min(given) < 0:
            raise Refusal(f"pads {given} are negative")
        return given[:count], given[count:]
    if auto_pad == "VALID":
        return [0] * count, [0] * count
    before, after = [], []
    for size, k, s, d in zip(sizes, kernel, step, spread, strict=True):
        if size is None:
            if s != 1:
                raise Refusal(f"auto_pad {auto_pad} needs known sizes", "dynamic_shape")
            total = (k - 1) * d
        else:
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        before.append(first)
        after.append(total - first)
    return before, after
