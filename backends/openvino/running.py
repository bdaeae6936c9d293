"""Running a request without losing an error, and without another thread where none can be lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

_NESTED = frozenset({"If", "Loop", "TensorIterator"})
_TAKE_ANY = frozenset(
    {
        *("Convert", "Result", "Parameter", "Concat", "Select", "Add", "Subtract", "Multiply"),
        *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "Maximum"),
        *("Minimum", "Abs", "Negative", "Sign", "Clamp"),
    }
)
"""Operators that refuse no number where sizes are fixed."""

_DATA_FIRST = frozenset(
    {
        *("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Tile", "Broadcast", "StridedSlice"),
        *("Slice", "Split", "VariadicSplit", "Gather", "Pad"),
    }
)
"""Operators that take any first input: indices, axes and sizes stand behind it."""

_WHOLE = frozenset({"i4", "i8", "i16", "i32", "i64", "u1", "u4", "u8", "u16", "u32", "u64"})


def infer_by(request: Any, *, asynchronous: bool) -> Callable[[], Any]:
    """Return what runs a request once, its inputs set, and raises what went wrong.

    Args:
        request: the engine's.
        asynchronous: an error may show while it runs, and there is one thread only. The engine's
            ``infer`` (2026.4.1) then swallows it and leaves the result of an earlier run; its
            asynchronous way raises, for 20 us and the caches of another core.
    """
    if asynchronous:
        return partial(_wait_for, request)
    return partial(request.infer, None, share_outputs=True)


def _wait_for(request: Any) -> None:
    request.start_async(None, share_inputs=True)
    request.wait()


def may_fail(model: Any) -> bool:
    """Whether a run can bring something that an operator of a model refuses.

    Sizes can, where a run decides them, and integers: indices beyond an end, axes, numbers of
    elements. Numbers that are computed of the model's own sizes are as good as constants.
    """
    if model.is_dynamic():
        return True
    known: set[str] = set()
    for op in model.get_ordered_ops():
        kind, name = op.get_type_name(), op.get_name()
        if kind in _NESTED:
            return True
        sources = [value.get_source_output() for value in op.inputs()]
        given = [s for s in sources if s.get_node().get_name() not in known]
        if kind in ("Constant", "ShapeOf") or (sources and not given):
            known.add(name)
        elif kind not in _TAKE_ANY and any(
            s.get_element_type().get_type_name() in _WHOLE
            for s in (sources[1:] if kind in _DATA_FIRST else sources)
            if s.get_node().get_name() not in known
        ):
            return True
    return False
