"""Which operators of a half-precision graph pass through numbers that half precision cannot hold.

A variance written out squares 300, which half precision ends below, and takes a root later; a
softmax written out divides exponentials by their sum; scores are products of queries and keys that
are scaled afterwards. What goes in and what comes out are ordinary numbers. From the operator that
may leave the range to the one that comes back, and from a mean to the difference from it, single
precision is what the formula needs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor

from edgeinfer.convert.families import MOVES
from edgeinfer.types import Array

INNER = frozenset({
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("MeanVarianceNormalization", "LpNormalization", "BatchNormalization", "LRN"),
    *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
    *("ReduceLogSumExp", "CumSum", "GlobalAveragePool", "AveragePool", "LpPool", "GlobalLpPool"),
    *("Softmax", "LogSoftmax", "Softplus", "Mish", "Gelu"),
})  # fmt: skip
"""Operators that compute something larger than what they give, or add many up.

A square of 300 is beyond half precision though the deviation that it is for is not. Of operators of
one element each, those are taken that lead out of the range and back.
"""

_LEAVE = frozenset({
    *("Exp", "Sinh", "Cosh", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "CumSum"),
    *("ReduceProd", "LpPool", "GlobalLpPool"),
})  # fmt: skip
"""Operators that make numbers beyond the range of ordinary ones; so do squares."""

_MOVE = MOVES | {"Pad", "Concat"}

_AVERAGE = frozenset({"ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "AveragePool"})

_STAY = (
    _MOVE
    | _AVERAGE
    | {
        *("Add", "Sub", "Sum", "Mean", "Neg", "Abs", "Max", "Min", "Clip", "Relu", "Where"),
        *("GlobalMaxPool", "MaxPool"),
    }
)
"""Operators whose results are as large as what they read."""

_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})

_RETURN = frozenset({
    *("Log", "Tanh", "Sigmoid", "HardSigmoid", "Erf", "Softsign", "Atan", "Asinh", "Acosh"),
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("MeanVarianceNormalization", "LpNormalization", "Softmax", "LogSoftmax"),
})  # fmt: skip
"""Operators that make ordinary numbers of any."""

_LARGE, _WEIGHED, _SMALL = "large", "weighed", "small"
"""What a value may be: beyond the range, a product of it with weights or of two values of a run, or
the inverse of a large one.

Behind products only roots, logarithms and quotients are a way back: a layer between a square and
some later norm is no part of a formula, and stays as fast as it is.
"""

_BACK_OF_ANY = frozenset({"Log"})
"""Operators of ``_RETURN`` that are a way back behind products too."""

_SCORED = _MOVE | {"Add", "Sub", "Mul", "Div", "Where", "Neg"}
"""Operators between a product of queries and keys and its softmax."""

_SHARES = frozenset({"Softmax", "Sigmoid", "HardSigmoid", "OneHot"})
"""Operators whose results are one at most, so that products with them add up to no more."""

_DOMAINS = ("", "ai.onnx")
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_LARGEST = 65504.0
_DEPTH = 4
"""How far back two values are compared, or a mean is looked for."""

_SOFTMAX_DEPTH = 10
"""How far back a product is looked for: scales, masks, biases and moves lie between."""


def beyond_half(graph: ir.Graph, kind: ir.DataType = ir.DataType.FLOAT16) -> set[ir.Node]:
    """Return the nodes of one graph that are to be computed in single precision."""
    return _Ways(graph, kind).found()


def _reads(node: ir.Node, kind: ir.DataType) -> bool:
    return any(v is not None and v.dtype == kind for v in node.inputs)


def _is(node: ir.Node, *op_types: str) -> bool:
    return node.domain in _DOMAINS and node.op_type in op_types


class _Ways:
    """The ways out of the range and back in one graph."""

    def __init__(self, graph: ir.Graph, kind: ir.DataType) -> None:
        self._graph, self._kind = graph, kind
        self._size: dict[ir.Value, str] = {}
        """What each value beyond the range is."""
        self._ends: set[ir.Node] = set()

    def found(self) -> set[ir.Node]:
        """Return nodes on a way that comes back, and ``INNER`` ones.

        With them go the differences from a mean that they read.
        """
        on_way = [node for node in self._graph if self._follow(node)]
        back: set[ir.Node] = set()
        kept = {n for n in self._graph if _is(n, *INNER) and _reads(n, self._kind)}
        for node in reversed(on_way):
            users = {user for v in node.outputs if v in self._size for user, _ in v.uses()}
            if node in self._ends or users & back:
                back.add(node)
        kept |= back
        for node in [n for n in kept if _is(n, "Softmax", "LogSoftmax")]:
            self._scores(node.inputs[0], kept, _SOFTMAX_DEPTH)
        for node in [n for n in self._graph if n in kept]:
            for value in node.inputs:
                self._join(value, kept, _DEPTH)
        return kept

    def _follow(self, node: ir.Node) -> bool:
        """Note what a node makes; say whether it reads or makes numbers beyond the range."""
        if node.domain not in _DOMAINS or not _reads(node, self._kind):
            return False
        sizes = [None if v is None else self._size.get(v) for v in node.inputs]
        size, is_end = self._step(node, sizes)
        if size:
            self._size.update((v, size) for v in node.outputs if v.dtype == self._kind)
        if is_end:
            self._ends.add(node)
        return bool(size) or is_end

    def _step(self, node: ir.Node, sizes: list[str | None]) -> tuple[str | None, bool]:
        """Say what a node makes of what it reads, and whether that is on the way back."""
        op, first = node.op_type, sizes[0]
        if _squares(node):
            return (first or _LARGE, False) if first != _SMALL else (_SMALL, False)
        if is_product(node) and _SMALL not in sizes:
            return _WEIGHED, False
        if not any(sizes):
            return (_LARGE if op in _LEAVE else None), False
        if op in ("Mul", "Div", "Reciprocal", "Sqrt", "Pow"):
            return self._scaled(node, sizes)
        if _SMALL in sizes:
            return (_SMALL, False) if op in (*_MOVE, "Neg") else (None, False)
        size = _WEIGHED if _WEIGHED in sizes else _LARGE
        if op in _RETURN or _is_bounded(node):
            return None, size == _LARGE or op in _BACK_OF_ANY
        if op == "Cast" and first:
            return None, node.attributes.get_int("to") in _WIDE
        if op in _PRODUCTS and first == _LARGE and _number(node.inputs[1]) is not None:
            return _WEIGHED, False
        return (size if op in _STAY or op in _LEAVE else None), False

    def _scaled(self, node: ir.Node, sizes: list[str | None]) -> tuple[str | None, bool]:
        """Follow products, quotients, roots and powers."""
        first, second = sizes[0], sizes[1] if len(sizes) > 1 else None
        large = first if first not in (None, _SMALL) else second
        op = node.op_type
        if op == "Sqrt":
            return first, first != _SMALL
        if op == "Reciprocal":
            return (_LARGE, False) if first == _SMALL else (_SMALL, True)
        if op == "Pow":
            power = _number(node.inputs[1])
            if first is None or power is None:
                return None, False
            if (power < 0).all():
                return (_LARGE, False) if first == _SMALL else (_SMALL, True)
            return first, first != _SMALL
        if op == "Mul" and _SMALL in sizes:
            other = node.inputs[1 - sizes.index(_SMALL)]
            is_scale = first == second or _number(other) is not None
            return (_SMALL, False) if is_scale else (None, True)
        if op == "Mul":
            factor = _number(node.inputs[1 if first else 0])
            is_less = factor is not None and bool((np.abs(factor) < 1).all())
            return large, is_less and large != _WEIGHED
        if second in (None, _SMALL):
            return (_SMALL, False) if first == _SMALL else (first or _LARGE, first == _LARGE)
        return (_SMALL if _number(node.inputs[0]) is not None else None), True

    def _scores(self, value: ir.Value | None, kept: set[ir.Node], depth: int) -> bool:
        """Keep what lies between a softmax and the product of two values of a run, that one too.

        Returns:
            Whether there is such a product.
        """
        node = None if value is None else value.producer()
        if node is None or node.graph is not self._graph or not _reads(node, self._kind):
            return False
        if node.domain not in _DOMAINS or not depth:
            return False
        found = is_product(node)
        if found and any(_is_scaled(v) for v in node.inputs):
            return False
        if not found and node.op_type in _SCORED:
            # A mask, a factor and what stands where nothing is seen are the others.
            found = sum(self._scores(v, kept, depth - 1) for v in node.inputs) > 0
        if found:
            kept.add(node)
        return found

    def _join(self, value: ir.Value | None, kept: set[ir.Node], depth: int) -> bool:
        """Keep what makes a value too, where that is a difference from a mean or of kept values.

        Returns:
            Whether the value is made in single precision.
        """
        node = None if value is None else value.producer()
        if node is None or value is None or node.graph is not self._graph:
            return False
        if node in kept:
            return True
        if not depth or value.dtype != self._kind:
            return False
        if _is(node, *_AVERAGE):
            kept.add(node)
            return True
        ways = [v for v in node.inputs if v is not None and v.dtype == self._kind]
        ways = [v for v in ways if _number(v) is None]
        if _is(node, "Sub"):
            found = [self._join(v, kept, depth - 1) for v in ways]
            joined = any(found)
        elif _is(node, *_MOVE, "Neg", "Abs", "Mul", "Div"):
            found = [self._join(v, kept, depth - 1) for v in ways]
            joined = bool(found) and all(found)
        else:
            joined = False
        if joined:
            kept.add(node)
        return joined


def _squares(node: ir.Node) -> bool:
    """Whether a node multiplies a value with itself, or raises it to a power above one."""
    if node.op_type == "Mul":
        return _same(node.inputs[0], node.inputs[1], _DEPTH)
    if node.op_type == "Pow":
        power = _number(node.inputs[1])
        return power is None or bool((power > 1).any())
    if node.op_type == "Einsum" and len(node.inputs) == 2:
        left, right = node.attributes.get_string("equation", "").split("->")[0].split(",")
        return left.strip() == right.strip() and _same(node.inputs[0], node.inputs[1], _DEPTH)
    return False


def _same(a: ir.Value | None, b: ir.Value | None, depth: int) -> bool:
    """Whether two values are one, or are made of the same values by equal nodes."""
    if a is b:
        return a is not None
    one, other = (None if v is None else v.producer() for v in (a, b))
    if not depth or one is None or other is None or one.op_type != other.op_type:
        return False
    if one.op_type == "Constant" or len(one.inputs) != len(other.inputs) or not one.inputs:
        return False
    mine, others = ({k: v.value for k, v in n.attributes.items()} for n in (one, other))
    return (
        str(mine) == str(others)
        and one.domain == other.domain
        and all(
            x is y or _same(x, y, depth - 1) for x, y in zip(one.inputs, other.inputs, strict=True)
        )
    )


def is_product(node: ir.Node) -> bool:
    """Whether a node adds up products of two values of a run, neither of which is a share."""
    if node.op_type not in ("MatMul", "Einsum") or len(node.inputs) != 2:
        return False
    return all(v is not None and _number(v) is None and not _is_share(v) for v in node.inputs)


def _is_scaled(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Whether a value was made smaller before its product."""
    node = None if value is None else value.producer()
    if node is None or not depth:
        return False
    if node.op_type in ("Mul", "Div"):
        number = _number(node.inputs[1])
        if number is None and node.op_type == "Mul":
            number = _number(node.inputs[0])
        if number is not None:
            size = np.abs(number)
            return bool((size > 1 if node.op_type == "Div" else size < 1).all())
    return node.op_type in _MOVE and _is_scaled(node.inputs[0], depth - 1)


def _is_share(value: ir.Value, depth: int = _DEPTH) -> bool:
    node = value.producer()
    if node is None or not depth:
        return False
    if node.op_type in _SHARES:
        return True
    passed = node.op_type in _MOVE or node.op_type in ("Cast", "Dropout", "Where")
    return passed and any(v is not None and _is_share(v, depth - 1) for v in node.inputs)


def _is_bounded(node: ir.Node) -> bool:
    """Whether a clip has two bounds that half precision holds."""
    if node.op_type != "Clip":
        return False
    bounds: Iterable[Array | None]
    if len(node.inputs) == 1:
        given = [node.attributes.get_float(name) for name in ("min", "max")]
        bounds = [None if g is None else np.asarray(g) for g in given]
    else:
        bounds = [_number(v) for v in node.inputs[1:3]]
    known = [b for b in bounds if b is not None]
    return len(known) == 2 and all((np.abs(b) <= _LARGEST).all() for b in known)


def _number(value: ir.Value | None) -> Array | None:
    """Return the values of a constant, cast or not; None for what is none."""
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    if node is not None and _is(node, "Cast", "CastLike", "Identity"):
        return _number(node.inputs[0])
    tensor = get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy(), np.float64)
