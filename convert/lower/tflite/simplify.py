"""Operators that move or repeat values: fewer of them, and none between what could be fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor

_UNARY = frozenset(
    {
        *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH", "LEAKY_RELU", "LOG"),
        *("LOGISTIC", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIGN", "SIN"),
        *("SQRT", "SQUARE", "TANH"),
    }
)
_BINARY = frozenset({"ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "POW", "SQUARED_DIFFERENCE", "SUB"})

_IMPURE = frozenset({"RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL", "VAR_HANDLE"})

_REDUCTIONS = frozenset({"MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"})

SMALL = 64
"""Elements up to which constants are compared by value."""


class Wiring:
    """Who makes and who reads each tensor of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.readers = graph.readers()
        self.outputs = {id(t) for t in graph.outputs}

    def maker(self, tensor: Tensor | None, *codes: str) -> Op | None:
        """The operator that makes a tensor, if it is one of these."""
        op = None if tensor is None else self.makers.get(id(tensor))
        return op if op is not None and op.code in codes else None

    def is_private(self, tensor: Tensor) -> bool:
        """Whether one operand reads it, and nothing else."""
        return len(self.readers.get(id(tensor), ())) == 1 and id(tensor) not in self.outputs

    def replace(self, old: Tensor, new: Tensor) -> bool:
        """Make readers of one tensor read another; False for a model output."""
        if id(old) in self.outputs:
            return False
        for op in self.readers.pop(id(old), []):
            op.inputs = [new if i is old else i for i in op.inputs]
            self.readers.setdefault(id(new), []).append(op)
        return True

    def exchange(self, old: Op, new: Sequence[Op]) -> None:
        """Take operators for one that is taken out of the graph."""
        for operand in old.inputs:
            readers = self.readers.get(id(operand), ())
            self.readers[id(operand)] = [op for op in readers if op is not old]
        for op in new:
            self.makers.update((id(out), op) for out in op.outputs)
            for operand in op.inputs:
                self.readers.setdefault(id(operand), []).append(op)


def simplify(graph: Graph) -> None:
    """Simplify in place until nothing changes."""
    steps: tuple[Callable[[Graph], bool], ...] = (
        share,
        share_reductions,
        drop_moves,
        sink_reshapes,
        absorb_transposes,
        slice_gathers,
    )
    changed = True
    while changed:
        changed = False
        for step in steps:
            changed |= step(graph)
        graph.drop_dead()


def share(graph: Graph) -> bool:
    """Compute equal things once."""
    wiring = Wiring(graph)
    seen: dict[Any, Op] = {}
    changed = False
    for op in graph.ops:
        if op.bodies or op.code in _IMPURE or any(i and i.is_variable for i in op.inputs):
            continue
        key = (op.code, *(_identity(i) for i in op.inputs), _options(op), _kinds(op))
        first = seen.setdefault(key, op)
        if first is op:
            continue
        for old, new in zip(op.outputs, first.outputs, strict=True):
            changed |= bool(wiring.readers.get(id(old))) and wiring.replace(old, new)
    return changed


def share_reductions(graph: Graph) -> bool:
    """Reduce once where one result keeps the axes and another does not."""
    wiring = Wiring(graph)
    seen: dict[Any, Op] = {}
    changed = False
    for position, op in enumerate(graph.ops):
        if op.code not in _REDUCTIONS or not op.outputs[0].is_static:
            continue
        rest = {k: v for k, v in op.options.items() if k != "keep_dims"}
        key = (op.code, *(_identity(i) for i in op.inputs), str(rest), op.outputs[0].dtype.str)
        first = seen.setdefault(key, op)
        if first is op or op.outputs[0].quantization or not wiring.readers.get(id(op.outputs[0])):
            continue
        if first.options.get("keep_dims") == op.options.get("keep_dims"):
            continue
        sizes = [*op.outputs[0].static_shape]
        operands: list[Tensor | None] = [first.outputs[0], graph.const(sizes, np.int32)]
        graph.ops[position] = Op("RESHAPE", operands, op.outputs, {"new_shape": sizes})
        changed = True
    return changed


def _identity(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    if tensor.data is not None and tensor.data.size <= SMALL and tensor.quantization is None:
        return (tensor.dtype.str, tensor.data.shape, tensor.data.tobytes())
    return id(tensor)


def _options(op: Op) -> str:
    return repr(sorted((k, str(v)) for k, v in op.options.items()))


def _kinds(op: Op) -> Any:
    return tuple((o.dtype.str, o.shape, id(o.quantization)) for o in op.outputs)


def drop_moves(graph: Graph) -> bool:
    """Join reshapes of reshapes and transposes of transposes; drop those that do nothing."""
    wiring = Wiring(graph)
    changed = False
    for op in graph.ops:
        if op.code not in {"RESHAPE", "TRANSPOSE"}:
            continue
        x, out = op.inputs[0], op.outputs[0]
        before = wiring.maker(x, op.code)
        if before is not None and before.inputs[0] is not None and op.code == "RESHAPE":
            op.inputs[0] = before.inputs[0]
            changed = True
        elif before is not None and before.inputs[0] is not None:
            first, second = _constant(before.inputs[1]), _constant(op.inputs[1])
            if first is not None and second is not None:
                joined = graph.const(first[second], np.int32)
                op.inputs = [before.inputs[0], joined]
                changed = True
        if _is_same(op) and op.inputs[0] is not None:
            readers = bool(wiring.readers.get(id(out)))
            changed |= readers and wiring.replace(out, op.inputs[0])
    return changed


def _constant(tensor: Tensor | None) -> Any:
    return None if tensor is None or tensor.data is None else tensor.data


def _is_same(op: Op) -> bool:
    x, out = op.inputs[0], op.outputs[0]
    if op.code == "TRANSPOSE":
        perm = _constant(op.inputs[1])
        return perm is not None and list(perm) == list(range(len(perm)))
    return x is not None and x.is_static and x.shape == out.shape


def sink_reshapes(graph: Graph) -> bool:
    """Compute elementwise operators before the reshape, where they may join what is before it.

    Given::

        y = RELU(RESHAPE(CONV_2D(x)))

    Result::

        y = RESHAPE(RELU(CONV_2D(x)))
    """
    wiring = Wiring(graph)
    ops: list[Op] = []
    for op in graph.ops:
        sunk = _sunk(graph, wiring, op)
        if sunk:
            wiring.exchange(op, sunk)
        ops += sunk or [op]
    changed = len(ops) > len(graph.ops)
    graph.ops = ops
    return changed


def _sunk(graph: Graph, wiring: Wiring, op: Op) -> list[Op]:
    """The operator on what was reshaped, and the reshape; none where it has to stay behind it."""
    if op.code not in _UNARY and op.code not in _BINARY:
        return []
    found = [_reshaped(wiring, i, op) for i in op.inputs]
    moves = [r for r in found if r is not None]
    if not moves or not _commutes(op, found):
        return []
    move, source = moves[0], moves[0].inputs[0]
    if source is None:
        return []
    inner = graph.tensor(source.shape, op.outputs[0].dtype)
    inner.quantization = op.outputs[0].quantization
    inputs = [i if r is None else r.inputs[0] for i, r in zip(op.inputs, found, strict=True)]
    return [
        Op(op.code, inputs, [inner], op.options),
        Op("RESHAPE", [inner, *move.inputs[1:]], op.outputs, move.options),
    ]


def _reshaped(wiring: Wiring, tensor: Tensor | None, reader: Op) -> Op | None:
    """The reshape that makes an operand which nothing but ``reader`` reads, once or twice."""
    op = wiring.maker(tensor, "RESHAPE")
    if op is None or tensor is None or id(tensor) in wiring.outputs:
        return None
    return op if all(r is reader for r in wiring.readers[id(tensor)]) else None


def _commutes(op: Op, found: list[Op | None]) -> bool:
    """Whether the operator is the same on the unshaped operands."""
    shapes = [r.inputs[0].shape for r in found if r is not None and r.inputs[0] is not None]
    out = op.outputs[0].shape
    if any(i is not None and i.rank > len(out) for i in op.inputs):
        return False
    for operand, reshape in zip(op.inputs, found, strict=True):
        if operand is None:
            return False
        if reshape is not None:
            # Dynamic sizes may be equal by chance only.
            if operand.shape != out or (len(found) > 1 and None in out and len(shapes) > 1):
                return False
        elif operand.data is None or not _per_channel(operand, out, shapes[0]):
            return False
    return all(s == shapes[0] for s in shapes)


def _per_channel(tensor: Tensor, *shapes: tuple[int | None, ...]) -> bool:
    """Whether a constant has one value, or one per element of the last axis of each shape."""
    size = tensor.value.size
    if size == 1:
        return tensor.rank <= min(len(s) for s in shapes)
    return tensor.rank == 1 and all(len(s) > 0 and s[-1] == size for s in shapes)


def absorb_transposes(graph: Graph) -> bool:
    """BATCH_MATMUL reads its second operand with the last two axes exchanged by itself."""
    wiring = Wiring(graph)
    changed = False
    for op in graph.ops:
        if op.code != "BATCH_MATMUL" or len(op.inputs) != 2:
            continue
        move = wiring.maker(op.inputs[1], "TRANSPOSE")
        perm = None if move is None else _constant(move.inputs[1])
        if move is None or perm is None:
            continue
        n = len(perm)
        if list(perm) == [*range(n - 2), n - 1, n - 2]:
            op.inputs[1] = move.inputs[0]
            op.options = {**op.options, "adj_y": not op.options.get("adj_y", False)}
            changed = True
    return changed


def part_of(
    graph: Graph, x: Tensor, begin: list[int], shape: Sequence[int | None], out: Tensor
) -> Op:
    """A part of a tensor; axes of unknown size are taken whole."""
    if None not in shape:
        bounds = [graph.const(begin, np.int32), graph.const(shape, np.int32)]
        return Op("SLICE", [x, *bounds], [out])
    end = [0 if s is None else b + s for b, s in zip(begin, shape, strict=True)]
    whole = sum(1 << i for i, s in enumerate(shape) if s is None)
    zeros = {"begin_mask": 0, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
    options = {**zeros, "end_mask": whole, "offset": False}
    bounds = [graph.const(v, np.int32) for v in (begin, end, [1] * len(begin))]
    return Op("STRIDED_SLICE", [x, *bounds], [out], options)


def slice_gathers(graph: Graph) -> bool:
    """One element, or a run of them, is a slice, which XNNPACK takes."""
    changed = False
    ops: list[Op] = []
    for op in graph.ops:
        run = _run(op)
        x = op.inputs[0] if op.inputs else None
        if run is None or x is None:
            ops.append(op)
            continue
        changed = True
        start, count, axis = run
        shape = [count if i == axis else s for i, s in enumerate(x.shape)]
        begin = [start if i == axis else 0 for i in range(x.rank)]
        part = graph.tensor(shape, x.dtype)
        part.quantization = x.quantization
        ops.append(part_of(graph, x, begin, shape, part))
        target = [-1 if s is None else s for s in op.outputs[0].shape]
        vector = graph.const(target, np.int32)
        ops.append(Op("RESHAPE", [part, vector], op.outputs, {"new_shape": target}))
    graph.ops = ops
    return changed


def _run(op: Op) -> tuple[int, int, int] | None:
    """Start, length and axis of a GATHER that takes neighbours in their order."""
    if op.code != "GATHER" or op.options.get("batch_dims", 0):
        return None
    x, index, out = op.inputs[0], op.inputs[1], op.outputs[0]
    if x is None or x.data is not None or index is None or index.data is None or index.rank > 1:
        return None
    values = index.data.reshape(-1)
    axis = op.options["axis"]
    size = x.shape[axis]
    if not values.size or size is None or out.shape.count(None) > 1 or x.rank > 5:
        return None
    start = int(values[0])
    if start < 0 or start + values.size > size or np.any(np.diff(values) != 1):
        return None
    return start, int(values.size), axis
