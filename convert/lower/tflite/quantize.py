"""Let operators between DEQUANTIZE and QUANTIZE compute with the stored integers.

Only where the result is the float one up to the rounding of its own last step: moves of values are
exact, sums and products are off by one step at most. Weights become integers again if a scale of
the model gives back every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor, TensorQuantization
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_MOVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "SLICE"), (0,)),
    **dict.fromkeys(("STRIDED_SLICE", "GATHER", "PAD", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), (0,)),
    **dict.fromkeys(
        ("SPLIT_V", "RESIZE_NEAREST_NEIGHBOR", "TILE", "MAX_POOL_2D", "REDUCE_MAX"), (0,)
    ),
    "SPLIT": (1,),
}
"""Operators that move values, and the operand whose values they are."""

_BYTES_ONLY = frozenset({"SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPLIT_V", "TILE"})
"""Those without an int16 kernel."""

_PRODUCTS: dict[str, tuple[int, int, int, int]] = {
    "CONV_2D": (0, 1, 2, 0),
    "DEPTHWISE_CONV_2D": (0, 1, 2, 3),
    "FULLY_CONNECTED": (0, 1, 2, 0),
    "TRANSPOSE_CONV": (2, 1, 3, 0),
}
"""Operand numbers of data, weights and bias, and the weights' axis of output channels."""

_SUMS = frozenset({"ADD", "SUB", "MUL"})
_MEANS = frozenset({"MEAN"})


def quantize(graph: Graph) -> None:
    """Rewrite one graph in place."""
    if not any(op.code == "DEQUANTIZE" for op in graph.ops):
        _store_weights(graph)
        return
    _bytes(graph)
    _move(graph)
    _round_early(graph)
    _Rewrite(graph).run()
    graph.drop_dead()
    _store_weights(graph)


def same(a: TensorQuantization | None, b: TensorQuantization | None) -> bool:
    """Whether two tensors hold the same numbers for the same integers."""
    if a is None or b is None:
        return False
    return bool(np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point))


def _bytes(graph: Graph) -> None:
    """Store as int8 what is uint8 between QUANTIZE and DEQUANTIZE; most kernels know int8 only."""
    readers, producers = graph.readers(), graph.producers()
    borders = {id(t) for t in (*graph.inputs, *graph.outputs)}
    for op in graph.ops:
        for tensor in op.outputs:
            q = tensor.quantization
            fits = op.code == "QUANTIZE" and tensor.dtype == np.uint8 and q is not None
            users = readers.get(id(tensor), [])
            if not fits or id(tensor) in borders or q is None:
                continue
            if all(user.code == "DEQUANTIZE" for user in users) and id(tensor) in producers:
                tensor.dtype = np.dtype(np.int8)
                tensor.quantization = TensorQuantization(q.scale, q.zero_point - 128, q.axis)


def _move(graph: Graph) -> None:
    """Dequantize after values were moved rather than before."""
    sources = _sources(graph)
    ops: list[Op] = []
    for op in graph.ops:
        operands = _MOVES.get(op.code, ())
        if op.code == "CONCATENATION" and not op.options.get("fused_activation_function"):
            operands = tuple(range(len(op.inputs)))
        found = [sources.get(id(op.inputs[p])) for p in operands]
        stored = [s for s in found if s is not None]
        plain = not op.options.get("fused_activation_function")
        if not stored or len(stored) != len(found) or not plain or not _agree(op, stored):
            ops.append(op)
            continue
        for operand, source in zip(operands, stored, strict=True):
            op.inputs[operand] = source
        results = [Tensor(f"{o.name}_q", o.shape, stored[0].dtype) for o in op.outputs]
        for result in results:
            result.quantization = stored[0].quantization
        ops.append(Op(op.code, op.inputs, results, op.options, op.bodies))
        for result, output in zip(results, op.outputs, strict=True):
            ops.append(Op("DEQUANTIZE", [result], [output]))
            sources[id(output)] = result
    graph.ops = ops


_RESHAPES = frozenset({"RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "SLICE", "STRIDED_SLICE"})
"""Operators that move values and make none, such as a border."""


def _round_early(graph: Graph) -> None:
    """Quantize before values are moved rather than after, next to what computes them."""
    readers, outputs = graph.readers(), {id(t) for t in graph.outputs}
    after: dict[int, Op] = {}
    for op in reversed(graph.ops):
        users = readers.get(id(op.outputs[0]), [])
        source = op.inputs[0] if op.inputs else None
        if op.code not in _RESHAPES or len(users) != 1 or source is None or source.data is not None:
            continue
        user, result = users[0], op.outputs[0]
        alone = len(readers.get(id(source), [])) == 1 and id(source) not in outputs
        if user.code != "QUANTIZE" or not alone or id(result) in outputs:
            continue
        place = user.outputs[0]
        rounded = Tensor(f"{source.name}_q", source.shape, place.dtype)
        rounded.quantization = place.quantization
        # The rounding takes the place of the move, and the move that of the rounding.
        move = Op(op.code, [rounded, *op.inputs[1:]], [place], op.options, op.bodies)
        rounding = Op("QUANTIZE", [source], [rounded])
        after[id(op)], after[id(user)] = rounding, move
        readers[id(source)], readers[id(rounded)] = [rounding], [move]
    graph.ops = [_last(after, op) for op in graph.ops]


def _last(after: dict[int, Op], op: Op) -> Op:
    """Follow what took an operator's place: in a row of moves a rounding is replaced again."""
    while id(op) in after:
        op = after[id(op)]
    return op


def _agree(op: Op, stored: Sequence[Tensor]) -> bool:
    first = stored[0]
    if first.dtype.name not in ("int8", "int16"):
        return False
    if first.dtype == np.int16 and op.code in _BYTES_ONLY:
        return False
    return all(t.dtype == first.dtype and same(t.quantization, first.quantization) for t in stored)


def _sources(graph: Graph) -> dict[int, Tensor]:
    """Map each dequantized tensor to the stored one."""
    found: dict[int, Tensor] = {}
    for op in graph.ops:
        source = op.inputs[0] if op.code == "DEQUANTIZE" else None
        if source is not None and source.quantization is not None and source.data is None:
            found[id(op.outputs[0])] = source
    return found


@dataclass(slots=True, eq=False)
class _Rewrite:
    """One walk over a graph whose values are moved as integers already."""

    graph: Graph
    sources: dict[int, Tensor] = field(default_factory=dict)
    readers: dict[int, list[Op]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Rewrite every operator that can be."""
        graph = self.graph
        self.sources, self.readers = _sources(graph), graph.readers()
        ops: list[Op] = []
        for op in graph.ops:
            if id(op) in self.gone:
                continue
            made = self._joined(op) if op.code == "CONCATENATION" else self._integer(op)
            ops.extend(made or [op])
        graph.ops = ops
        self._cancel()

    def _joined(self, op: Op) -> list[Op] | None:
        """Bring each part to the scale of the whole before they are joined, not after."""
        place = self._result(op)
        found = [self.sources.get(id(i)) for i in op.inputs]
        parts = [s for s in found if s is not None]
        if place is None or place.dtype != np.int8 or len(parts) != len(found):
            return None
        if op.options.get("fused_activation_function") or any(p.dtype != np.int8 for p in parts):
            return None
        made: list[Op] = []
        operands: list[Tensor | None] = []
        for part in parts:
            own = part
            if not same(part.quantization, place.quantization):
                own = Tensor(f"{part.name}_as_{place.name}", part.shape, place.dtype)
                own.quantization = place.quantization
                made.append(Op("QUANTIZE", [part], [own]))
            operands.append(own)
        self.gone.update(id(r) for r in self.readers[id(op.outputs[0])])
        return [*made, Op(op.code, operands, [place], op.options)]

    def _integer(self, op: Op) -> list[Op] | None:
        place = self._result(op)
        if place is None:
            return None
        if op.code in _PRODUCTS:
            operands = self._product(op, place)
        elif op.code in _SUMS:
            operands = self._sum(op, place)
        elif op.code in _MEANS:
            source = self.sources.get(id(op.inputs[0]))
            fits = source is not None and source.dtype == place.dtype == np.int8
            operands = [source, *op.inputs[1:]] if fits else None
        elif op.code == "AVERAGE_POOL_2D":
            source = self.sources.get(id(op.inputs[0]))
            fits = source is not None and same(source.quantization, place.quantization)
            fits = fits and source is not None and source.dtype == place.dtype
            operands = [source] if fits else None
        else:
            return None
        if operands is None:
            return None
        self.gone.update(id(r) for r in self.readers[id(op.outputs[0])])
        return [Op(op.code, operands, [place], op.options)]

    def _result(self, op: Op) -> Tensor | None:
        """The integer tensor that alone is made of the operator's result."""
        if len(op.outputs) != 1 or any(o is op.outputs[0] for o in self.graph.outputs):
            return None
        users = self.readers.get(id(op.outputs[0]), [])
        if len(users) != 1 or users[0].code != "QUANTIZE":
            return None
        place = users[0].outputs[0]
        return place if place.dtype.name in ("int8", "int16") else None

    def _product(self, op: Op, place: Tensor) -> list[Tensor | None] | None:
        at, weights_at, bias_at, axis = _PRODUCTS[op.code]
        source, weights = self.sources.get(id(op.inputs[at])), op.inputs[weights_at]
        if source is None or source.quantization is None or source.dtype != place.dtype:
            return None
        if weights is None or weights.data is None or weights.dtype != np.float32:
            return None
        stored = as_stored(self.graph, weights, axis)
        if stored is None or stored.quantization is None or self._is_apart(stored):
            return None
        operands = list(op.inputs)
        operands[at], operands[weights_at] = source, stored
        bias = op.inputs[bias_at] if bias_at < len(op.inputs) else None
        if bias is None:
            return operands
        if bias.data is None:
            return None
        scale = source.quantization.scale.astype(np.float64) * stored.quantization.scale
        steps = np.rint(bias.data / scale)
        # LiteRT adds the bias of 16-bit data in 64 bits.
        dtype = np.dtype(np.int64 if source.dtype == np.int16 else np.int32)
        if np.abs(steps).max(initial=0) > np.iinfo(np.int32).max:
            return None
        made = Tensor(f"{bias.name}_q", bias.shape, dtype, steps.astype(dtype))
        made.quantization = TensorQuantization(
            scale.astype(np.float32), np.zeros(scale.size, np.int64), 0
        )
        operands[bias_at] = made
        return operands

    def _is_apart(self, weights: Tensor) -> bool:
        """Whether weights are to be multiplied with floats, though integers are around them."""
        q, known = weights.quantization, getattr(self.graph, "apart", [])
        return q is not None and any(np.array_equal(q.scale, scales) for scales in known)

    def _sum(self, op: Op, place: Tensor) -> list[Tensor | None] | None:
        if place.dtype != np.int8:
            return None
        operands: list[Tensor | None] = []
        for operand in op.inputs:
            source = self.sources.get(id(operand))
            if source is None and operand is not None and operand.data is not None:
                source = as_stored(self.graph, operand, None)
            if source is None or source.dtype != place.dtype:
                return None
            operands.append(source)
        return operands

    def _cancel(self) -> None:
        """Read the stored tensor where it is dequantized and quantized as before."""
        graph = self.graph
        replaced: dict[int, Tensor] = {}
        outputs = {id(t) for t in graph.outputs}
        kept: list[Op] = []
        for op in graph.ops:
            op.inputs = [replaced.get(id(t), t) if t is not None else None for t in op.inputs]
            source = self.sources.get(id(op.inputs[0])) if op.code == "QUANTIZE" else None
            target = op.outputs[0]
            if source is not None and source.dtype == target.dtype and id(target) not in outputs:
                source = replaced.get(id(source), source)
                if same(source.quantization, target.quantization):
                    replaced[id(target)] = source
                    continue
            kept.append(op)
        graph.ops = kept


def as_stored(graph: Graph, tensor: Tensor, axis: int | None) -> Tensor | None:
    """Return a float constant as the int8 values that one of the model's scales gives back."""
    values = tensor.data
    if values is None or not isinstance(graph, Builder):
        return None
    for scales in graph.scales:
        wide = scales.reshape(())[()] if scales.size == 1 else None
        if wide is None:
            if axis is None or values.ndim <= axis or values.shape[axis] != scales.size:
                continue
            shape = [1] * values.ndim
            shape[axis] = scales.size
            wide = scales.reshape(shape)
        if not np.all(scales > 0):
            continue
        steps = np.rint(values / wide)
        if np.abs(steps).max(initial=0) > 128 or steps.max(initial=0) > 127:
            continue
        if np.array_equal(steps.astype(np.float32) * wide, values):
            return _stored(tensor, steps, scales, 0 if scales.size == 1 else axis or 0)
    return None


def _stored(tensor: Tensor, steps: Array, scales: Array, axis: int) -> Tensor:
    made = Tensor(f"{tensor.name}_q", tensor.shape, np.dtype(np.int8), steps.astype(np.int8))
    made.quantization = TensorQuantization(scales, np.zeros(scales.size, np.int64), axis)
    return made


SMALL = 64
"""Elements up to which a constant stays float: with its operator it would be no smaller."""


def _store_weights(graph: Graph) -> None:
    """Keep weights of float operators as int8 behind DEQUANTIZE, which gives the same floats."""
    if not isinstance(graph, Builder) or not graph.scales:
        return
    done: dict[int, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        for index, operand in enumerate(op.inputs):
            fits = operand is not None and operand.data is not None
            if operand is None or not fits or operand.dtype != np.float32:
                continue
            if operand.data is None or operand.data.size <= SMALL:
                continue
            axis = _PRODUCTS[op.code][3] if op.code in _PRODUCTS else None
            if op.code == "GATHER" and index == 0:
                axis = 0
            if id(operand) not in done:
                stored = as_stored(graph, operand, axis)
                if stored is None:
                    continue
                done[id(operand)] = Tensor(operand.name, operand.shape, operand.dtype)
                ops.append(Op("DEQUANTIZE", [stored], [done[id(operand)]]))
            op.inputs[index] = done[id(operand)]
        ops.append(op)
    graph.ops = ops
