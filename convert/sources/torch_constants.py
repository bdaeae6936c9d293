"""Constants as they are: PyTorch's exporter (2.13) takes those close to 0 or 1 for 0 or 1.

The optimiser of onnxscript (0.7) leaves out ``x + 1e-9`` and ``x * 1.00001`` as if they did
nothing, so that ``log(x + 1e-9)`` is minus infinity at 0. Where two chains of ``clamp`` read one
tensor, as in detectors that refine boxes, it makes bounds of one name, and loses the first.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, all_nodes

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


def keep_constants(model: ir.Model) -> None:
    """Give numbers that nodes read, and that the graph has lost, a name and a place in it."""
    namer, known = Namer(model), model.graph.initializers
    for value in dict.fromkeys(v for node in all_nodes(model) for v in node.inputs):
        if value is None or value.const_value is None or value.producer() is not None:
            continue
        if not (value.is_initializer() or value.is_graph_input()):
            value.name = namer.fresh(value.name or "constant")
            known[value.name] = value
