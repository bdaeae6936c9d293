"""Compose and cancel transposes."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    is_op,
    outcome,
    rank,
    remove_node,
    replace_value,
)


class CleanTranspose(ir.passes.InPlacePass):
    """Make one transpose of two, and none of one that moves nothing.

    Given: ``a = Transpose<perm=[0,2,3,1]>(x); y = Transpose<perm=[0,3,1,2]>(a)``
    Result: ``y`` is ``x``
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Go through the nodes in order, so that longer chains shrink too."""
        count = 0
        for node in all_nodes(model):
            if not is_op(node, "Transpose"):
                continue
            count += _compose(node)
            perm = permutation(node)
            x = node.inputs[0]
            if perm is None or x is None or perm != tuple(range(len(perm))):
                continue
            if replace_value(node.outputs[0], x):
                remove_node(node)
                count += 1
        return outcome(model, count)


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """The axes a Transpose puts in place; None where the rank is unknown and none are given."""
    given = attr(node, "perm")
    if given is not None:
        return tuple(int(p) for p in given)
    width = rank(node.inputs[0])
    return None if width is None else tuple(reversed(range(width)))


def _compose(node: ir.Node) -> int:
    x = node.inputs[0]
    first = None if x is None else x.producer()
    if first is None or not is_op(first, "Transpose"):
        return 0
    inner, outer = permutation(first), permutation(node)
    if inner is None or outer is None or len(inner) != len(outer):
        return 0
    perm = [inner[p] for p in outer]
    node.attributes["perm"] = ir.AttrInt64s("perm", perm)
    node.replace_input_with(0, first.inputs[0])
    return 1
