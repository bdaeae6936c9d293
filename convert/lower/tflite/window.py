"""TFLite's two paddings of windows."""

from __future__ import annotations

from edgeinfer.convert.lower.core.window import AxisWindow, same_total

VALID, SAME = 1, 0
"""The schema's numbers."""


def fits_same(w: AxisWindow) -> bool:
    """Whether TFLite's SAME pads exactly like this: the odd element at the end."""
    if w.same:
        return w.same == "SAME_UPPER"
    if w.is_known:
        total = same_total(w.size, w.stride, w.span)
    else:
        total = w.span - 1 if w.stride == 1 else -1
    return (w.begin, w.end) == (total // 2, total - total // 2)
