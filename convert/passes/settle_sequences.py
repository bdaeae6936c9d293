"""Sequences of tensors whose members are known are the members themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    all_nodes,
    attr,
    input_at,
    ints,
    is_op,
    outcome,
    rank,
    replace_node,
)

_MOST = 256
"""Members of a sequence."""


class SettleSequences(ir.passes.InPlacePass):
    """Read members of a sequence where they are made.

    Given: ``s = SplitToSequence<axis=1>(x, [2, 3]); a = SequenceAt(s, 0);
        y = ConcatFromSequence<axis=0>(s)``
    Result: ``a, b = Split<axis=1>(x, [2, 3]); y = Concat<axis=0>(a, b)``

    Given: ``s = SplitToSequence<axis=1>(x, 2); a = SequenceAt(s, i)`` of an open size
    Result: ``a = Slice(x, [2 * i], [2 * i + 2], [1])``

    Few engines have sequences; exporters write them for ``torch.split``, ``chunk`` and ``unbind``.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Look at every node that reads a sequence, subgraphs included."""
        work, count = _Work(model), 0
        for node in all_nodes(model):
            count += work.settle(node)
        return outcome(model, count)


class _Work:
    def __init__(self, model: ir.Model) -> None:
        self._main, self._namer = model.graph, Namer(model)
        self._cut: dict[ir.Node, list[ir.Value] | None] = {}

    def settle(self, node: ir.Node) -> bool:
        """Replace one reader; False where its sequence is not known."""
        if not is_op(node, "SequenceAt", "SequenceLength", "ConcatFromSequence"):
            return False
        members = self._members(node.inputs[0])
        if members is None:
            return self._read_parts(node)
        if is_op(node, "SequenceAt"):
            at = ints(node.inputs[1])
            if at is None:
                return self._read_parts(node)
            if not -len(members) <= at[0] < len(members):
                return False
            made = [ir.node("Identity", [members[at[0]]])]
        elif is_op(node, "SequenceLength"):
            made = [ir.node("Identity", [self._const(np.array(len(members), np.int64))])]
        elif members:
            made = self._joined(node, members)
        else:
            return False
        self._replace(node, made)
        return True

    def _replace(self, node: ir.Node, made: list[ir.Node]) -> None:
        for one in made:
            for value in one.outputs:
                value.name = self._namer.fresh("member")
        replace_node(node, made, [made[-1].outputs[0]])

    def _read_parts(self, node: ir.Node) -> bool:
        """Read equal parts from their tensor, where their number or index is dynamic."""
        split = node.inputs[0].producer() if node.inputs[0] is not None else None
        if split is None or not is_op(split, "SplitToSequence"):
            return False
        x, given = split.inputs[0], input_at(split, 1)
        axes, each = rank(x), [1] if given is None else ints(given)
        if x is None or not axes or each is None or (given is not None and rank(given) != 0):
            return False
        axis = int(attr(split, "axis", 0)) % axes
        flat = given is None and not attr(split, "keepdims", 1)
        if is_op(node, "ConcatFromSequence"):
            fresh = bool(attr(node, "new_axis", 0))
            same = int(attr(node, "axis", 0)) % axes == axis
            if not same or fresh != flat:
                return False
            self._replace(node, [ir.node("Identity", [x])])
        else:
            self._replace(node, self._counted(node, x, axis, each[0], flat))
        return True

    def _counted(
        self, node: ir.Node, x: ir.Value, axis: int, each: int, flat: bool
    ) -> list[ir.Node]:
        """Write how many parts there are, or the one at a place that may count from the end."""
        made: list[ir.Node] = []

        def add(kind: str, *inputs: ir.Value | None, **about: int) -> ir.Value:
            made.append(ir.node(kind, inputs, about))
            return made[-1].outputs[0]

        size = add("Shape", x, start=axis, end=axis + 1)
        step = self._const(np.array([each]))
        count = add("Div", add("Add", size, self._const(np.array([each - 1]))), step)
        if is_op(node, "SequenceLength"):
            add("Squeeze", count, self._const(np.array([0])))
        else:
            place = add("Reshape", node.inputs[1], self._const(np.array([1])))
            place = add("Cast", place, to=ir.DataType.INT64.value)
            below = add("Less", place, self._const(np.array([0])))
            place = add("Where", below, add("Add", place, count), place)
            start = add("Mul", place, step)
            part = add("Slice", x, start, add("Add", start, step), self._const(np.array([axis])))
            if flat:
                add("Squeeze", part, self._const(np.array([axis])))
        return made

    def _const(self, array: np.ndarray) -> ir.Value:
        return add_initializer(self._main, self._namer.fresh("sequence"), array)

    def _joined(self, node: ir.Node, members: list[ir.Value]) -> list[ir.Node]:
        axis, fresh = int(attr(node, "axis", 0)), bool(attr(node, "new_axis", 0))
        made = []
        if fresh:
            where = self._const(np.array([axis], np.int64))
            made = [ir.node("Unsqueeze", [m, where]) for m in members]
            members = [n.outputs[0] for n in made]
        return [*made, ir.node("Concat", members, {"axis": axis})]

    def _members(self, value: ir.Value | None) -> list[ir.Value] | None:
        maker = None if value is None else value.producer()
        if maker is None:
            return None
        if is_op(maker, "SequenceConstruct"):
            return [v for v in maker.inputs if v is not None]
        if is_op(maker, "SequenceEmpty"):
            return []
        if is_op(maker, "Identity"):
            return self._members(maker.inputs[0])
        if is_op(maker, "SequenceInsert", "SequenceErase"):
            return self._changed(maker)
        if is_op(maker, "SplitToSequence"):
            if maker not in self._cut:
                self._cut[maker] = self._split(maker)
            return self._cut[maker]
        return None

    def _changed(self, node: ir.Node) -> list[ir.Value] | None:
        members = self._members(node.inputs[0])
        inserts = is_op(node, "SequenceInsert")
        position = input_at(node, 2 if inserts else 1)
        if members is None:
            return None
        if position is None:
            at: list[int] | None = [len(members) if inserts else -1]
        else:
            at = ints(position)
        if at is None or not -len(members) <= at[0] <= len(members):
            return None
        place = at[0] % len(members) if at[0] < 0 else at[0]
        value = node.inputs[1] if inserts else None
        if value is not None:
            return [*members[:place], value, *members[place:]]
        return [*members[:place], *members[place + 1 :]]

    def _split(self, node: ir.Node) -> list[ir.Value] | None:
        x, given = node.inputs[0], input_at(node, 1)
        axes = rank(x)
        if x is None or x.shape is None or not axes or node.graph is None:
            return None
        axis = int(attr(node, "axis", 0)) % axes
        size = x.shape[axis]
        sizes = ints(given)
        if given is not None and sizes is None:
            return None
        if given is None or rank(given) == 0:
            if not isinstance(size, int):
                return None
            each = 1 if sizes is None else sizes[0]
            sizes = [min(each, size - start) for start in range(0, size, max(each, 1))]
        if not sizes or len(sizes) > _MOST:
            return None
        cut = self._const(np.array(sizes, np.int64))
        split = ir.node("Split", [x, cut], {"axis": axis}, num_outputs=len(sizes))
        made, members = [split], list(split.outputs)
        if given is None and not attr(node, "keepdims", 1):
            where = self._const(np.array([axis], np.int64))
            flat = [ir.node("Squeeze", [m, where]) for m in members]
            made, members = [split, *flat], [n.outputs[0] for n in flat]
        for one in made:
            for value in one.outputs:
                value.name = self._namer.fresh("member")
                value.type = x.type
        node.graph.insert_after(node, made)
        return members
