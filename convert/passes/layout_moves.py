"""Operators in another order of axes: the order, the operator's part in it, and the edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, dims_of
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Perm = tuple[int, ...]
Edit = Callable[["Editor", ir.Node], None]
Rule = Callable[[ir.Node, Perm, bool], "Move | None"]


@dataclass(frozen=True, slots=True)
class Move:
    """An operator with its operands in another order.

    Attributes:
        inputs: the order that operands must have, by index; others stay as they are.
        output: the order in which the results come.
        edit: adapts attributes and constant operands.
        lifted: lower-rank operands that the edit transposes, so that they cost something.
        first: cost of the operator in ONNX's order, beyond transposes.
        last: likewise in this order.
    """

    inputs: dict[int, Perm]
    output: Perm
    edit: Edit | None = None
    lifted: tuple[int, ...] = ()
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class Editor:
    """Makes constants and nodes for edits."""

    graph: ir.Graph
    namer: Namer
    made: list[ir.Node] = field(default_factory=list)

    def constant(self, node: ir.Node, index: int, array: Array) -> None:
        """Replace an operand by a constant of its type."""
        old = node.inputs[index]
        if old is not None and old.dtype is not None:
            array = array.astype(old.dtype.numpy(), copy=False)
        base = old.name if old is not None and old.name else f"{node.name}_{index}"
        value = add_initializer(self.graph, self.namer.fresh(f"{base}/last"), array)
        node.replace_input_with(index, value)

    def insert(
        self, node: ir.Node, op: str, inputs: Sequence[ir.Value], attrs: dict[str, Any], base: str
    ) -> ir.Value:
        """Add a node with one result before another one."""
        new = ir.node(op, inputs, attrs)
        new.name = self.namer.fresh(base)
        new.outputs[0].name = self.namer.fresh(f"{base}_out")
        self.graph.insert_before(node, new)
        self.made.append(new)
        return new.outputs[0]

    def transpose(self, node: ir.Node, value: ir.Value, perm: Perm) -> ir.Value:
        """Add a Transpose before a node; type and shape are set."""
        out = self.insert(node, "Transpose", [value], {"perm": list(perm)}, f"{value.name}/order")
        out.type = value.type
        if value.shape is not None:
            out.shape = ir.Shape([value.shape[p] for p in perm])
        return out


def identity(perm: Perm) -> bool:
    """Whether a value in this order is as ONNX has it."""
    return perm == tuple(range(len(perm)))


def inverse(perm: Perm) -> Perm:
    """The order that undoes another one."""
    return tuple(int(i) for i in np.argsort(perm))


UNKNOWN_SIZE = 32
"""Elements an axis is taken to have where it is known only at run time."""

PER_TRANSPOSE = 2048
"""What a transpose costs beyond its elements, in elements."""


def weight(value: ir.Value) -> int:
    """What moving a value costs."""
    count = 1
    for d in dims_of(value):
        count *= d if isinstance(d, int) else UNKNOWN_SIZE
    return count + PER_TRANSPOSE
