"""Ctrl-C at every place where Python lets a signal in, one place after another."""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import edgeinfer

ROOT = str(Path(edgeinfer.__file__).parent)
PLACES: list[str] = []
"""Where it was raised."""

# As a trace function in C: the signal is there before an instruction, and no line of Python runs
# before that instruction looks for it.
_arrive = ctypes.PyDLL(None).PyErr_SetInterrupt
_arrive.argtypes, _arrive.restype = [ctypes.py_object] * 3, None


@cache
def _before(code: CodeType) -> frozenset[int]:
    """Return the offsets of instructions that precede one which looks for signals."""
    made = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    return frozenset(
        i.offset
        for i, after in pairwise(made)
        if after.opname.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE"))
    )


def interrupted(function: Callable[[], object], number: int) -> bool:
    """Call it, and have Ctrl-C arrive at the given place of the package's own code.

    Returns:
        Whether there are as many places.
    """
    left = number + 1

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "call":
            if not left or not frame.f_code.co_filename.startswith(ROOT):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and left and frame.f_lasti in _before(frame.f_code):
            left -= 1
            if not left:
                return _arrive
        return trace

    def arrived(_: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        assert frame is not None
        PLACES.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        raise KeyboardInterrupt

    before, handler = sys.gettrace(), signal.signal(signal.SIGINT, arrived)
    # Python 3.12 tells of instructions from the first trace on that begins after a frame asked.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
    return not left
