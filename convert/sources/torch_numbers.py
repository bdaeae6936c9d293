"""Numbers next to tensors in the type that PyTorch's exporter (2.13) needs.

Of ``x.clamp(0, 0.5)`` it makes a tensor of one bound alone, and finds no operator for the pair; nor
does it for ``1.0 - x`` and ``x // 1.5`` of integers, when it makes the number a tensor.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PASSES, _PROMOTION = "torch.onnx._internal.exporter._fx_passes", "insert_type_promotion_nodes"


@contextmanager
def numbers_of_one_type() -> Iterator[None]:
    """Have the exporter's promotion of types see numbers of the type that is computed in."""
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
    """Turn integers next to floats into floats, in a graph and those within it."""
    import torch

    aten = torch.ops.aten
    promoted = (aten.sub.Tensor, aten.floor_divide.default)
    for part in module.modules():
        nodes = list(part.graph.nodes) if isinstance(part, torch.fx.GraphModule) else ()
        for node in nodes:
            if node.target is aten.clamp.default:
                _make_bounds_alike(node)
            elif node.target in promoted and any(isinstance(a, float) for a in node.args):
                _make_tensors_float(part.graph, node)


def _make_bounds_alike(node: Any) -> None:
    bounds = [*node.args[1:], *node.kwargs.values()]
    if any(isinstance(bound, float) for bound in bounds):
        node.args = (node.args[0], *(_as_float(bound) for bound in node.args[1:]))
        node.kwargs = {key: _as_float(bound) for key, bound in node.kwargs.items()}


def _as_float(bound: Any) -> Any:
    return float(bound) if isinstance(bound, int) else bound


def _make_tensors_float(graph: Any, node: Any) -> None:
    """Cast integer operands of what gives floats, because the number next to them is one."""
    import torch

    kind = node.meta["val"].dtype
    for operand in dict.fromkeys(node.all_input_nodes):
        value = operand.meta.get("val")
        if not isinstance(value, torch.Tensor) or not kind.is_floating_point:
            continue
        if value.dtype.is_floating_point:
            continue
        with graph.inserting_before(node):
            cast = graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"dtype": kind})
        cast.meta = {**node.meta, "val": value.to(kind)}
        node.replace_input_with(operand, cast)
