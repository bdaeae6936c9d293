"""Sizes of windows that move over a picture: convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """A window along each spatial axis; pads are before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def out(self, axis: int, size: Any, *, ceil: bool = False) -> Any:
        """Output size along an axis."""
        reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
        rest = size + (self.before[axis] + self.after[axis] - reach)
        stride = self.strides[axis]
        if not ceil:
            return rest // stride + 1
        count = -(-rest // stride) + 1
        # A window that starts in the padding behind the input is left out.
        return count - 1 if (count - 1) * stride >= size + self.before[axis] else count


def windows(
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Windows:
    """Resolve the attributes that convolution and pooling share.

    Raises:
        Refusal: automatic padding of an open size.
    """
    rank = len(kernel)
    if len(sizes) != rank:
        raise Refusal(f"a window of {rank} axes over {len(sizes)}")
    step = tuple(strides or (1,) * rank)
    spread = tuple(dilations or (1,) * rank)
    around = tuple(pads or (0,) * (2 * rank))
    before, after = list(around[:rank]), list(around[rank:])
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(rank):
            if not isinstance(sizes[axis], int):
                raise Refusal("automatic padding of an open size", "dynamic_shape")
            reach = spread[axis] * (kernel[axis] - 1) + 1
            out = -(-sizes[axis] // step[axis])
            total = max(0, (out - 1) * step[axis] + reach - sizes[axis])
            less, more = total // 2, total - total // 2
            before[axis], after[axis] = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    elif auto_pad == "VALID":
        before, after = [0] * rank, [0] * rank
    if any(p < 0 for p in (*before, *after)):
        raise Refusal("negative padding")
    return Windows(tuple(kernel), step, spread, tuple(before), tuple(after))
