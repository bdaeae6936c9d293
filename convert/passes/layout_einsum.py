"""Einstein sums of values in another order of axes: the letters are permuted, nothing else."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, rank
from edgeinfer.convert.passes.layout_moves import Editor, Move, Perm


def einsum(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """The first operand and the result change their order, the other operands keep theirs.

    Given::

        y = Einsum<equation="bcka,k->bca">(x, w)

    Result, for x stored in the order (0, 3, 1, 2)::

        y = Einsum<equation="back,k->bac">(x, w)        y is stored in the order (0, 2, 1)
    """
    found = _letters(node)
    if found is None:
        return None
    first, others, result = found
    if len(perm) != len(result if backwards else first):
        return None
    if backwards:
        stored_result = [result[p] for p in perm]
        kept = [v for v in stored_result if v in first]
        # What is summed comes last, where products have it.
        stored = [*kept, *(v for v in first if v not in kept)]
    else:
        stored = [first[p] for p in perm]
        own = iter([v for v in stored if v in result])
        stored_result = [next(own) if v in first else v for v in result]
    equation = ",".join(["".join(stored), *others]) + "->" + "".join(stored_result)

    def edit(editor: Editor, node: ir.Node) -> None:
        node.attributes["equation"] = ir.AttrString("equation", equation)

    inputs = {0: tuple(first.index(v) for v in stored)}
    return Move(inputs, tuple(result.index(v) for v in stored_result), edit)


def _letters(node: ir.Node) -> tuple[str, list[str], str] | None:
    """The terms of the operands and of the result; None where one has a letter twice or dots."""
    left, arrow, result = str(attr(node, "equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    plain = arrow and all(t.isalpha() and len(set(t)) == len(t) for t in terms)
    if not plain or len(set(result)) != len(result) or len(terms) != len(node.inputs):
        return None
    if rank(node.inputs[0]) != len(terms[0]) or rank(node.outputs[0]) != len(result):
        return None
    return terms[0], terms[1:], result
