"""Reshapes of values that are stored in another order of axes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import add_initializer, dims_of, same_dim
from edgeinfer.convert.passes.layout_moves import Editor, Move, Perm


def reshape(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Axes that are split or joined move as a group; groups keep their inner order.

    Channel shuffle, pixel shuffle, the heads of attention, and the tokens of a patch grid are all
    reshapes of one group next to others that stay whole.
    """
    source, target = dims_of(node.inputs[0]) if node.inputs[0] else [], dims_of(node.outputs[0])
    groups = _groups(source, target)
    if groups is None:
        return None
    inputs: Perm | None
    output: Perm | None
    if backwards:
        inputs, output = _push([(b, a) for a, b in groups], target, source, perm), perm
    else:
        inputs, output = perm, _push(groups, source, target, perm)
    if inputs is None or output is None:
        return None
    shape = _sizes([source[p] for p in inputs], [target[p] for p in output])
    if shape is None:
        return None
    final = shape

    def edit(editor: Editor, node: ir.Node) -> None:
        base = editor.namer.fresh(f"{node.name}_shape")
        value = add_initializer(editor.graph, base, np.array(final, np.int64))
        first = node.inputs[0]
        node.op_type = "Reshape"
        node.attributes.clear()
        node.resize_inputs(2)
        node.replace_input_with(0, first)
        node.replace_input_with(1, value)

    return Move({0: inputs}, output, edit)


Dim = int | ir.SymbolicDim
_PRODUCT = re.compile(r"\(?[\w.]+(\*[\w.]+)*\)?")
Group = tuple[list[int], list[int]]


def _groups(source: Sequence[Dim], target: Sequence[Dim]) -> list[Group] | None:
    """Match axes from the left into the smallest groups of equal products."""
    groups: list[Group] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = [i] if i < len(source) else [], [j] if j < len(target) else []
        i, j = i + len(left), j + len(right)
        while (more := _compare([source[k] for k in left], [target[k] for k in right])) != 0:
            if more < 0 and i < len(source):
                left.append(i)
                i += 1
            elif more > 0 and j < len(target):
                right.append(j)
                j += 1
            else:
                return None
        groups.append((left, right))
    return groups


def _compare(a: Sequence[Dim], b: Sequence[Dim]) -> int:
    """Which product is larger: -1 when the left one must grow, 1 for the right one, 0 if equal."""
    (x, left), (y, right) = _factors(a), _factors(b)
    for name in list(left):
        if name in right:
            left.remove(name)
            right.remove(name)
    if left or right:
        return 1 if left else -1
    return (x > y) - (x < y)


def _factors(dims: Sequence[Dim]) -> tuple[int, list[str]]:
    """The known part of a product and the names of the rest; products of names are taken apart."""
    known, names = 1, list[str]()
    for d in dims:
        if isinstance(d, int):
            known *= d
            continue
        text = d.value or f"?{id(d)}"
        parts = text.strip("()").split("*") if _PRODUCT.fullmatch(text) else [text]
        for part in parts:
            if part.isdecimal():
                known *= int(part)
            else:
                names.append(part)
    return known, names


def _push(
    groups: Sequence[Group], source: Sequence[Dim], target: Sequence[Dim], perm: Perm
) -> Perm | None:
    """The order of the target's axes when the source's have the order ``perm``."""
    whose = {axis: g for g, (left, _) in enumerate(groups) for axis in left if source[axis] != 1}
    order: list[int] = []
    seen: dict[int, list[int]] = {}
    for axis in perm:
        g = whose.get(axis)
        if g is None:
            continue
        if g in seen and order[-1] != g:
            return None
        if g not in seen:
            order.append(g)
        seen.setdefault(g, []).append(axis)
    if any(axes != sorted(axes) for axes in seen.values()):
        return None
    result = [axis for g in order for axis in groups[g][1]]
    # Groups of size 1 can be anywhere; next to the axis before them they move least.
    for g, (_, right) in enumerate(groups):
        if g not in seen:
            for axis in right:
                at = result.index(axis - 1) + 1 if axis - 1 in result else 0
                result.insert(at, axis)
    return tuple(result)


def _sizes(source: Sequence[Dim], target: Sequence[Dim]) -> list[int] | None:
    """The shape operand of a reshape between these; None where it cannot be written."""
    sizes: list[int] = []
    for index, d in enumerate(target):
        if isinstance(d, int):
            if d == 0:
                return None
            sizes.append(d)
        elif index < len(source) and same_dim(source[index], d):
            sizes.append(0)
        else:
            sizes.append(-1)
    return sizes if sizes.count(-1) <= 1 else None
