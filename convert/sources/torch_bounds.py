"""Bounds of ``clamp`` as numbers of one type, which PyTorch's exporter (2.13) needs.

Of ``x.clamp(0, 0.5)`` it makes a tensor of one bound alone, and finds no operator for the pair.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PASSES, _PROMOTION = "torch.onnx._internal.exporter._fx_passes", "insert_type_promotion_nodes"


@contextmanager
def bounds_of_one_type() -> Iterator[None]:
    """Have the exporter's promotion of types see bounds of one type."""
    passes = importlib.import_module(_PASSES)
    found = getattr(passes, _PROMOTION, None)
    if found is None:
        yield
        return
    # Of an export in another thread it may be the one that does so already.
    promote = getattr(found, "plain", found)

    def promoted(module: Any) -> None:
        make_alike(module)
        promote(module)

    promoted.plain = promote  # type: ignore[attr-defined]
    setattr(passes, _PROMOTION, promoted)
    try:
        yield
    finally:
        setattr(passes, _PROMOTION, promote)


def make_alike(module: Any) -> None:
    """Turn an integer next to a float into one, in a graph and those within it."""
    import torch

    for part in module.modules():
        nodes = part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ()
        for node in nodes:
            if node.target is not torch.ops.aten.clamp.default:
                continue
            bounds = [*node.args[1:], *node.kwargs.values()]
            if any(isinstance(bound, float) for bound in bounds):
                node.args = (node.args[0], *(_as_float(bound) for bound in node.args[1:]))
                node.kwargs = {key: _as_float(bound) for key, bound in node.kwargs.items()}


def _as_float(bound: Any) -> Any:
    return float(bound) if isinstance(bound, int) else bound
