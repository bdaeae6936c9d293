"""Numbers that mean nothing to any engine, found before anything computes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from edgeinfer.convert.lower.core import resize
from edgeinfer.convert.lower.core.named import MalformedRefusal, named_axes
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


def _axis(node: ir.Node) -> None:
    x, axis = given(node, 0), node.attributes.get("axis")
    if axis is not None and x is not None and x.shape is not None:
        named_axes([axis.as_int()], len(x.shape))


def _within(least: int, most: int, *operands: int | str) -> Callable[[ir.Node], None]:
    """Return what asks whether counts of a node, operands or attributes, are some."""

    def ask(node: ir.Node) -> None:
        for operand in operands:
            if isinstance(operand, str):
                found = node.attributes.get(operand)
                counts = None if found is None else [found.as_int()]
            else:
                counts = ints(given(node, operand))
            for count in counts or ():
                if not least <= count <= most:
                    name = operand if isinstance(operand, str) else f"operand {operand}"
                    raise MalformedRefusal(f"{name}={count}, expected {least} to {most}")

    return ask


_MOST = 1 << 24
"""Bins, points of a transform, and channels that are added up."""

_ASKED: Mapping[str, Callable[[ir.Node], object]] = MappingProxyType(
    {
        **{"Pad": _pad, "Resize": resize.of_node, "Slice": _slice, "Unique": _axis},
        "DFT": _within(1, _MOST, 1),
        "LRN": _within(1, _MOST, "size"),
        "MelWeightMatrix": _within(1, _MOST, 0, 1, 2),
        "RoiAlign": _within(0, 1 << 12, "sampling_ratio", "output_height", "output_width"),
    }
)
"""What is asked of each operator. Others refuse such numbers themselves, or are refused by ONNX."""
