"""One graph of a ``.tflite`` file becoming an ONNX graph, with the graphs inside it on request.

Quantized tensors become QuantizeLinear and DequantizeLinear with the file's own scales; what stands
between them computes in float. Fused activations become operators of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.file import Damaged, FileGraph, FileModel, FileOp, FileTensor
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import CUSTOM, READERS, Reader
from edgeinfer.convert.sources.tflite.weights import TYPES, StoredConstant, weights_of
from edgeinfer.errors import Problem, Remarks

_DEPTH = 16
"""Graphs inside graphs."""

_ACTIVATIONS = {1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""By the schema's number: the bounds that a fused activation clips to."""
_TANH = 4


class Importer:
    """Builds the ONNX graph.

    Attributes:
        nodes: Nodes of the graph that is being built, in order.
        initializers: Initializers of the main graph, for all graphs.
        problems: operators that cannot be read.
        notes: what the reader decided.
        custom: the custom operators that were read, by name.
    """

    def __init__(self, file: FileModel, notes: Remarks) -> None:
        self.file, self.notes = file, notes
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.problems: list[Problem] = []
        self.custom: set[str] = set()
        self._names: set[str] = set()
        self._here = ""
        self._depth = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def run(self, graph: FileGraph, given: Sequence[Operand]) -> list[Operand | None]:
        """Build the nodes of a graph into the current one.

        Args:
            graph: Graph of the file.
            given: its inputs.

        Returns:
            What each tensor has become; None for those that nothing makes.

        Raises:
            Damaged: it reads what is not there.
        """
        known: list[Operand | None] = [self._constant(t) for t in graph.tensors]
        if len(given) != len(graph.inputs):
            raise Damaged(
                f"graph {graph.name!r} has {len(graph.inputs)} inputs, {len(given)} given"
            )
        for index, operand in zip(graph.inputs, given, strict=True):
            known[index] = operand
        for number, op in enumerate(graph.ops):
            self._op(graph, op, number, known)
        return known

    def _constant(self, tensor: FileTensor) -> Operand | None:
        empty = 0 in tensor.shape
        if tensor.span is None and not empty and not tensor.is_variable:
            return None
        if tensor.kind not in TYPES or (tensor.is_variable and tensor.span is None):
            # Variables start at zero; only operators that say so read them.
            return Operand(self, tensor)
        return Operand(self, tensor, weights_of(self.file, tensor))

    def _op(self, graph: FileGraph, op: FileOp, number: int, known: list[Operand | None]) -> None:
        outputs = [graph.tensors[i] if i >= 0 else None for i in op.outputs]
        label = next((t.name for t in outputs if t is not None and t.name), f"#{number}")
        code = op.custom or op.code
        operands = [None if i < 0 else known[i] for i in op.inputs]
        missing = [i for i in op.inputs if i >= 0 and known[i] is None]
        made: list[Operand | None] = [None] * len(outputs)
        if missing and not self.problems:
            name = graph.tensors[missing[0]].name
            raise Damaged(f"{code} {label!r} reads tensor {name!r}, which nothing made before")
        self._here = label
        try:
            reader = _reader(op)
            if not missing:
                made = self._read(op, reader, operands, outputs)
                self.custom |= {op.custom} - {""}
        except _Skipped:
            pass
        except Refusal as e:
            self.problems.append(Problem(label, code, e.reason, e.detail, e.hint))
        for index, result in zip(op.outputs, made, strict=True):
            if index >= 0:
                known[index] = result

    def _read(
        self,
        op: FileOp,
        found: Reader,
        operands: list[Operand | None],
        outputs: list[FileTensor | None],
    ) -> list[Operand | None]:
        code = op.custom or op.code
        if len(operands) < found.least or (found.most is not None and len(operands) > found.most):
            raise Damaged(f"{code} {self._here!r} has {len(operands)} operands")
        if any(o is None for o in operands[: found.least]):
            raise Damaged(f"{code} {self._here!r} lacks an operand")
        for tensor in outputs:
            if tensor is not None and tensor.kind not in TYPES:
                raise Refusal(f"elements of type {tensor.kind}", "unsupported_dtype")
        options = Options(op, tuple(outputs))
        try:
            made = found.function(self, options, *operands)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Damaged(f"{code} {self._here!r} is malformed: {error}") from error
        if isinstance(made, ir.Value | Operand):
            made = [made]
        if len(made) < len(outputs):
            raise Damaged(f"{code} {self._here!r} has {len(outputs)} results")
        if op.custom:
            outputs = [_sized(t, m) for t, m in zip(outputs, made[: len(outputs)], strict=True)]
        return [
            None if t is None else self._result(t, m)
            for t, m in zip(outputs, made[: len(outputs)], strict=True)
        ]

    def _result(self, tensor: FileTensor, made: ir.Value | Operand) -> Operand:
        """Store a result as the file does."""
        if isinstance(made, Operand):
            return made.renamed(tensor)
        if tensor.scale is None or not tensor.kind.startswith(("INT", "UINT")):
            return Operand(self, tensor, value=made)
        dtype = TYPES[tensor.kind]
        scale, zero = self.scales(tensor.scale, dtype)
        stored = self.emit("QuantizeLinear", made, scale, zero, axis=tensor.scale.axis)
        return Operand(self, tensor, value=stored)

    def scales(self, scale: Any, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point as operands of QuantizeLinear."""
        factors, zero = scale.scale, scale.zero_point
        if factors.size == 1:
            factors, zero = factors.reshape(()), zero.reshape(())
        points = ir.tensor(zero.astype(dtype.numpy()), dtype=dtype)
        return self.const(factors, np.float32), self.initializer(points, "zero_point")

    def emit(self, op_type: str, *inputs: Any, **attributes: Any) -> ir.Value:
        """Add a node with one output and return it.

        Args:
            op_type: Operator type of the default domain.
            *inputs: operands count for their real numbers, plain numbers for constants.
            **attributes: None leaves one out.
        """
        return self.emit_many(op_type, 1, *inputs, **attributes)[0]

    def emit_many(
        self, op_type: str, outputs: int, *inputs: Any, **attributes: Any
    ) -> tuple[ir.Value, ...]:
        """Add a node and return all its outputs."""
        values = [self.value(i) for i in inputs]
        given = {k: v for k, v in attributes.items() if v is not None}
        node = ir.node(op_type, values, given, num_outputs=outputs)
        for output in node.outputs:
            output.name = self.fresh(f"{self._here}/{op_type}")
        node.name = self.fresh(f"{self._here}/{op_type}")
        self.nodes.append(node)
        return tuple(node.outputs)

    def value(self, given: Any) -> ir.Value | None:
        """Return the ONNX value of an operand, a value or a constant."""
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, Operand):
            return given.real
        return self.const(given)

    def const(self, value: Any, dtype: Any = None) -> ir.Value:
        """Return a constant; equal ones are shared."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(ir.tensor(array), "constant")
        return self._constants[key]

    def shape(self, sizes: Sequence[int]) -> ir.Value:
        """Return sizes, axes or the like as a vector of int64."""
        return self.const(list(sizes), np.int64)

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Return a constant of the main graph with these elements."""
        made = ir.Value(
            name=self.fresh(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self.initializers.append(made)
        return made

    def real(self, weights: StoredConstant, name: str) -> ir.Value:
        """Return the real numbers of a constant."""
        stored = self.initializer(weights.tensor, name)
        if weights.halves:
            return self.emit("Cast", stored, to=ir.DataType.FLOAT)
        if weights.scale is None:
            return stored
        dtype = weights.tensor.dtype
        scale = weights.scale
        if dtype in (ir.DataType.INT64, ir.DataType.UINT64):
            return self._wide(weights)
        factors, zero = self.scales(scale, dtype)
        return self.emit("DequantizeLinear", stored, factors, zero, axis=scale.axis)

    def _wide(self, weights: StoredConstant) -> ir.Value:
        """Real numbers of 64-bit integers, which DequantizeLinear does not take: biases."""
        scale = weights.scale
        self.initializers.pop()
        steps = np.asarray(weights.tensor.numpy())
        if scale is None or (not weights.is_small and steps.ndim > 1):
            raise Refusal("64-bit integers with scales", "unsupported_dtype")
        if np.abs(steps).max(initial=0) <= np.iinfo(np.int32).max:
            narrow = ir.tensor(steps.astype(np.int32))
            return self.real(StoredConstant(narrow, scale), f"{self._here}/bias")
        shape = [-1 if a == scale.axis else 1 for a in range(steps.ndim)]
        factors = scale.scale.astype(np.float64).reshape(shape if scale.scale.size > 1 else ())
        return self.const((steps * factors).astype(np.float32))

    def fresh(self, base: str) -> str:
        """Return a name that nothing else has."""
        name, count = base or "tensor", 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def activate(self, y: ir.Value, o: Options) -> ir.Value:
        """Apply the fused activation, unless the integers of the result end where it clips."""
        return self.clipped(y, o.fused_activation_function, o)

    def clipped(self, y: ir.Value, number: int, o: Options) -> ir.Value:
        """Apply a fused activation by the schema's number."""
        if number == 0:
            return y
        if number == _TANH:
            return self.emit("Tanh", y)
        if number not in _ACTIVATIONS:
            raise Refusal(f"fused activation {number}")
        low, high = _ACTIVATIONS[number]
        if _saturates(o.out, low, high):
            return y
        if high is None:
            return self.emit("Relu", y)
        return self.emit("Clip", y, np.float32(low), np.float32(high))

    @contextmanager
    def inside(self) -> Iterator[list[ir.Node]]:
        """Collect the nodes of a body."""
        if self._depth >= _DEPTH:
            raise Damaged("graphs are inside of each other without end")
        outer, here, self.nodes = self.nodes, self._here, []
        self._depth += 1
        try:
            yield self.nodes
        finally:
            self._depth -= 1
            self.nodes, self._here = outer, here

    def inline(self, index: int, given: Sequence[Operand]) -> list[Operand]:
        """Build another graph of the file here; returns its outputs."""
        if not 0 <= index < len(self.file.graphs):
            raise Damaged(f"there is no graph {index}")
        graph, here = self.file.graphs[index], self._here
        self._depth += 1
        try:
            if self._depth > _DEPTH:
                raise Damaged("graphs are inside of each other without end")
            known = self.run(graph, given)
        finally:
            self._depth -= 1
            self._here = here
        results = [known[i] for i in graph.outputs]
        if any(r is None for r in results):
            if self.problems:
                raise _Skipped
            raise Damaged(f"an output of graph {graph.name!r} is made by nothing")
        return [r for r in results if r is not None]


def _sized(tensor: FileTensor | None, made: ir.Value | Operand) -> FileTensor | None:
    """Correct a result's shape where the reader knows it: files often say none of custom ones."""
    if tensor is None or isinstance(made, Operand) or made.shape is None or not made.producer():
        return tensor
    return replace(tensor, shape=tuple(s if isinstance(s, int) else None for s in made.shape))


def _saturates(tensor: FileTensor, low: float, high: float | None) -> bool:
    """Whether storing a result clips it to these bounds already."""
    scale = tensor.scale
    if scale is None or scale.scale.size != 1 or not tensor.kind.startswith(("INT", "UINT")):
        return False
    limits, step, zero = np.iinfo(TYPES[tensor.kind].numpy()), scale.scale[0], scale.zero_point[0]
    least = limits.min >= zero + np.rint(low / step)
    return bool(least and (high is None or limits.max <= zero + np.rint(high / step)))


def _reader(op: FileOp) -> Reader:
    if op.custom:
        if known := CUSTOM.find(op.custom):
            return known
        raise Refusal(
            "a custom operator, which only its own program can run; of custom operators "
            f"{', '.join(sorted(CUSTOM.codes()))} are read",
            "unsupported_op",
            "convert the original model, without the custom operator",
        )
    found = READERS.find(op.code)
    if found is None:
        raise Refusal("there is no reader of this operator", "unsupported_op")
    return found


class _Skipped(Refusal):
    """What is read here could not be read before; that is said there."""

    def __init__(self) -> None:
        super().__init__("")
