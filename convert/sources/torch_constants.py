"""Constants as they are: PyTorch's exporter (2.13) takes those close to 0 or 1 for 0 or 1.

The optimiser of onnxscript (0.7) leaves out ``x + 1e-9`` and ``x * 1.00001`` as if they did
nothing, so that ``log(x + 1e-9)`` is minus infinity at 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MATCHER, _METHOD = "onnxscript.rewriter._matcher", "_match_constant"


@contextmanager
def exact_constants() -> Iterator[bool]:
    """Have the optimiser see equal constants alone; the value is False where it cannot."""
    matcher = getattr(importlib.import_module(_MATCHER), "SimplePatternMatcher", None)
    found = getattr(matcher, _METHOD, None)
    if found is None:
        yield False
        return
    # Of an export in another thread it may be the one that does so already.
    close = getattr(found, "plain", found)

    def equal(self: Any, pattern: Any, value: Any) -> bool:
        if not close(self, pattern, value):
            return False
        if value.const_value.numpy().tolist() == pattern.value:
            return True
        return bool(self.fail(f"{value.name} is close to {pattern.value}, and another number"))

    equal.plain = close  # type: ignore[attr-defined]
    setattr(matcher, _METHOD, equal)
    try:
        yield True
    finally:
        setattr(matcher, _METHOD, close)
