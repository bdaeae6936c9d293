"""Numbers that mean nothing to any engine, found before anything computes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from edgeinfer.convert.lower.core import resize
from edgeinfer.convert.lower.core.named import MalformedRefusal, named_axes
from edgeinfer.convert.lower.numbers import refuse_numbers
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.rules import given
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, ints
from edgeinfer.errors import SourceError

_AXES, _STEPS = 3, 4
"""Operands of ``Slice``; the axes of ``Pad`` come third as well."""


def refuse_malformed(model: ir.Model) -> None:
    """Refuse a model with nodes that no target can give a meaning, once shapes are known.

    Raises:
        SourceError: names all of them.
    """
    found = [
        f"node {name!r} ({node.op_type}): {problem}"
        for name, node in walk(model)
        if (problem := _problem(node))
    ]
    if found:
        hint = "look at what the model was exported with"
        raise SourceError("; ".join(found) + f": no engine can compute this; {hint}")


def _problem(node: ir.Node) -> str:
    ask = _ASKED.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
    try:
        refuse_numbers(node)
        if ask is not None:
            ask(node)
    except MalformedRefusal as e:
        return e.detail
    except Refusal:
        # Whether a target has a way around it is for the target to say.
        pass
    return ""


def _slice(node: ir.Node) -> None:
    axes = _named(node)
    starts, ends, steps = (ints(given(node, i)) for i in (1, 2, _STEPS))
    counts = {len(v) for v in (axes, starts, ends, steps) if v is not None}
    if len(counts) > 1:
        raise MalformedRefusal("axes, starts, ends and steps of different lengths")
    if steps is not None and 0 in steps:
        raise MalformedRefusal(f"steps={steps}, of which none may be zero")


def _pad(node: ir.Node) -> None:
    axes, pads, x = _named(node), ints(given(node, 1)), given(node, 0)
    rank = None if x is None or x.shape is None else len(x.shape)
    count = rank if axes is None else len(axes)
    if pads is not None and count is not None and len(pads) != 2 * count:
        raise MalformedRefusal(f"{len(pads)} pads, where it takes {2 * count}")


def _named(node: ir.Node) -> list[int] | None:
    x, axes = given(node, 0), ints(given(node, _AXES))
    if x is None or x.shape is None or axes is None:
        return axes
    return named_axes(axes, len(x.shape))


_ASKED: Mapping[str, Callable[[ir.Node], object]] = MappingProxyType(
    {"Pad": _pad, "Resize": resize.of_node, "Slice": _slice}
)
"""What is asked of an operator whose numbers mean something besides its shapes."""
