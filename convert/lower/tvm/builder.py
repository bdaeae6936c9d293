"""The graph while it is lowered: Relax expressions, and products that wait for the next steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tvm
import tvm_ffi
from tvm import relax, sym, te, tirx

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.tvm.library import stored
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.convert.lower.tvm.registry import HELD
from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.kernels.defs.math import element_type
from edgeinfer.records import dataclass
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tvm.narrow import Blocks
    from edgeinfer.convert.lower.tvm.tuned import Tuning

Size = Any
"""A number, or an expression over open sizes."""

Scalar = Callable[..., Any]
"""Computes one element, or a vector of them, from those of its operands."""


@dataclass(eq=False, slots=True)
class Tensor:
    """A value of the graph.

    Attributes:
        dtype: NumPy's name; expressions of bfloat16 are its bits.
        shape: sizes.
        data: what it holds, where that is known.
        blocks: the same in fewer bits, where it came so.
    """

    dtype: str
    shape: tuple[Size, ...]
    data: Array | None = None
    _made: Any = None
    waiting: Waiting | None = None
    blocks: Blocks | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(s, int) for s in self.shape)


@dataclass(eq=False, slots=True)
class Waiting:
    """A product that is written once it is known which element-wise steps follow it.

    Attributes:
        make: writes the kernel; takes inputs beyond its own, and the steps.
        axes: view of the result as (rows, columns) that the kernel stores: for each of the two, the
            result's axes that it runs over.
        steps: operators that follow, with their further operands.
    """

    make: Callable[[list[Step]], Any]
    axes: tuple[tuple[int, ...], tuple[int, ...]]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """An element-wise operator; ``position`` is where the product stands among its operands."""

    function: Scalar
    operands: tuple[Tensor, ...]
    position: int


class Own:
    """Names a kernel's own for open sizes: those of the graph may be computed, a parameter not."""

    def __init__(self) -> None:
        self.names: dict[Any, Any] = {}

    def __call__(self, size: Size) -> Size:
        """Return the size to write in the kernel."""
        if isinstance(size, int):
            return size
        return self.names.setdefault(size, tirx.Var(f"s{len(self.names)}", "int64"))


class Builder:
    """Writes Relax for one machine.

    Args:
        machine: the instruction set.
        tuning: kernels that were tuned.
    """

    def __init__(self, machine: Machine, tuning: Tuning | None = None) -> None:
        self.machine, self.tuning = machine, tuning
        self.on_cpu = not machine.cuda
        self.cpu = KernelCpu(machine.lanes, machine.registers)
        self.block = relax.BlockBuilder()
        self.inputs: list[Any] = []
        self.sizes: dict[str, Any] = {}
        self.counted: list[Any] = []
        self.known_sizes: list[tuple[Any, Size]] = []
        self.current: Callable[[], ir.Node | None] = lambda: None
        self.functions = 0
        self.value: Callable[[ir.Value], Tensor]
        self.lower_body: Callable[[ir.Graph, Mapping[ir.Value, Tensor]], list[Tensor]]
        self.last_use: Callable[[Tensor], bool] = lambda tensor: False
        self.kernels = 0
        self.naive: list[str] = []

    # ---- values

    def input(self, value: ir.Value) -> Tensor:
        """Add a model input; open sizes get names."""
        raise NotImplementedError("inputs are made before the function is opened")

    def open_input(self, value: ir.Value) -> Tensor:
        """Make the parameter of a model input."""
        name = value.name or ""
        if value.shape is None or value.dtype is None:
            raise Refusal(f"input {name!r} has no known rank", "dynamic_shape")
        if not isinstance(value.type, ir.TensorType):
            raise Refusal(f"input {name!r} is no tensor", "unsupported_dtype")
        if value.dtype not in HELD:
            raise Refusal(f"input {name!r} is {value.dtype.name.lower()}", "unsupported_dtype")
        shape = tuple(self._size(d, f"{name}_{i}") for i, d in enumerate(value.shape))
        dtype = dtype_of(value)
        made = relax.Var(f"in{len(self.inputs)}", relax.TensorType(list(shape), stored(dtype)))
        self.inputs.append(made)
        return Tensor(dtype, shape, None, made)

    def _size(self, dim: Any, fallback: str) -> Size:
        if isinstance(dim, int):
            return dim
        name = str(dim.value) if dim.value is not None else fallback
        if name not in self.sizes:
            self.sizes[name] = tirx.Var(f"n{len(self.sizes)}", "int64")
        return self.sizes[name]

    def constant(self, value: ir.Value) -> Tensor:
        """Add an initializer."""
        if value.const_value is None:
            raise Refusal(f"{value.name!r} has no value", "requires_constant")
        return self.const(value.const_value.numpy())

    def const(self, array: Array | float, dtype: str | None = None) -> Tensor:
        """Return a tensor with a known value."""
        data = np.asarray(array, dtype) if dtype else np.asarray(array)
        return Tensor(data.dtype.name, tuple(map(int, data.shape)), data)

    def expr(self, tensor: Tensor) -> Any:
        """Return the expression of a value, which is written now if it was not before."""
        if tensor._made is None:
            if tensor.waiting is not None:
                tensor._made = tensor.waiting.make(tensor.waiting.steps)
                tensor.waiting = None
            else:
                data = np.ascontiguousarray(tensor.data).reshape(tensor.shape)
                kind = stored(tensor.dtype)
                tensor._made = relax.const(data if kind == tensor.dtype else data.view(kind), kind)
        return tensor._made

    def said(self, size: Size) -> Size:
        """Return what a size that a run decides is, where that is known."""
        if not isinstance(size, tirx.Var):
            return size
        return next((known for own, known in self.known_sizes if own.same_as(size)), size)

    # ---- operators

    def emit(self, made: Any) -> Tensor:
        """Add a Relax call.

        Raises:
            Refusal: TVM does not take the operands.
        """
        try:
            var = self.block.emit(made)
        except (TypeError, ValueError) as error:
            raise Refusal(f"TVM: {one_line(error)}") from error
        return self.wrap(var)

    def wrap(self, var: Any) -> Tensor:
        """Return the tensor of a Relax variable."""
        kind = var.ty
        if not isinstance(kind, relax.TensorType) or kind.shape is None:
            raise Refusal("the result's size depends on values", "dynamic_shape")
        dtype, shape = str(kind.dtype.dtype), tuple(map(plain, kind.shape.values))
        said = tuple(self.said(s) for s in shape)
        if any(a is not b for a, b in zip(said, shape, strict=True)):
            # What has a size of another name is read only where a run finds both to be the same.
            var, shape = self.block.match_cast(var, relax.TensorType(list(said), dtype)), said
        if not self.on_cpu and 0 in shape and all(isinstance(s, int) for s in shape):
            # Threads of a GPU cannot be cut for no elements.
            return self.const(np.zeros(shape, dtype))
        return Tensor(dtype, shape, None, var)

    def op(self, function: Callable[..., Any], *tensors: Tensor, **attributes: Any) -> Tensor:
        """Call a Relax operator on tensors."""
        return self.emit(function(*map(self.expr, tensors), **attributes))

    def te(self, function: Callable[..., Any], *tensors: Tensor, name: str = "compute") -> Tensor:
        """Compute with a tensor expression."""
        made = self.block.emit_te(function, *map(self.expr, tensors), primfunc_name_hint=name)
        return self.wrap(made)

    def tir(
        self, kernel: Any, operands: Sequence[Any], shape: Sequence[int], dtype: str = "float32"
    ) -> Any:
        """Call a kernel of our own; returns its result's variable."""
        self.kernels += 1
        where = self.block.add_func(kernel.with_attr("op_pattern", 8), f"kernel{self.kernels}")
        kind = relax.TensorType(list(shape), dtype)
        return self.block.emit(relax.call_tir(where, list(operands), kind))

    def tir_many(
        self,
        kernel: Any,
        operands: Sequence[Any],
        results: Sequence[tuple[Sequence[Size], str]],
    ) -> list[Tensor]:
        """Call a kernel of our own with several results: the shape and element type of each."""
        self.kernels += 1
        where = self.block.add_func(kernel.with_attr("op_pattern", 8), f"kernel{self.kernels}")
        kinds = [relax.TensorType(list(s), dtype) for s, dtype in results]
        made = self.block.emit(relax.call_tir(where, list(operands), kinds))
        return [self.emit(relax.TupleGetItem(made, i)) for i in range(len(results))]

    def count(self) -> Any:
        """Make a size that a run counts."""
        self.counted.append(tirx.Var(f"m{len(self.counted)}", "int64"))
        return self.counted[-1]

    def first(self, x: Tensor, count: Tensor) -> Tensor:
        """Take so many rows as a tensor of one element says; the number is an open size."""
        size = self.count()
        shaped = self.block.emit(relax.op.tensor_to_shape(self.expr(count)))
        self.block.match_cast(shaped, relax.ShapeType([size]))

        def compute(source: Any) -> Any:
            return te.compute((size, *source.shape[1:]), lambda *i: source(*i), name="first")

        return self.te(compute, x, name="first")

    def wants(self, index: int) -> bool:
        """Whether anything reads an output of the node that is lowered now."""
        node = self.current()
        if node is None or index >= len(node.outputs):
            return False
        value = node.outputs[index]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def node_name(self) -> str:
        """Return the name of the node that is lowered now."""
        node = self.current()
        return "" if node is None else node.name or node.op_type

    def outputs(self) -> int:
        """How many outputs the node has that is lowered now."""
        node = self.current()
        return 1 if node is None else len(node.outputs)

    def map(self, function: Scalar, *tensors: Tensor, dtype: str | None = None) -> Tensor:
        """Apply a function to each element, shapes broadcast as NumPy does."""
        kept = self._follow(function, tensors, dtype)
        if kept is not None:
            return kept
        if not all(t.is_static for t in tensors):
            from edgeinfer.convert.lower.tvm.sizes import spread

            tensors = tuple(spread(self, tensors))
        shape = broadcast([t.shape for t in tensors])
        single = [_single(t) for t in tensors]
        varying = [t for t, s in zip(tensors, single, strict=True) if s is None]
        if not varying:
            varying, single[0] = [tensors[0]], None

        def compute(*inputs: Any) -> Any:
            def element(*index: Any) -> Any:
                rest = iter(inputs)
                values = [s if s is not None else at(next(rest), index) for s in single]
                result = _once(function, values)
                return result if dtype is None else result.astype(dtype)

            return te.compute(shape, element, name="map")

        return self.te(compute, *varying)

    def _follow(
        self, function: Scalar, tensors: Sequence[Tensor], dtype: str | None
    ) -> Tensor | None:
        """Have a waiting product do it, where it can."""
        found = [i for i, t in enumerate(tensors) if t.waiting is not None]
        if dtype not in (None, "float32") or not found:
            return None
        place = found[-1]
        target = tensors[place]
        others = tuple(t for i, t in enumerate(tensors) if i != place)
        if target in others or not self.last_use(target):
            return None
        if any(not _fits(t, target) or t.dtype != "float32" for t in others):
            return None
        waiting = target.waiting
        if waiting is None:
            return None
        if not self.on_cpu:
            function, others, place = _with_numbers(function, others, place)
        # What it adds must exist before the kernel is written.
        for t in others:
            self.expr(t)
        step = Step(function, others, place)
        return Tensor(
            target.dtype,
            target.shape,
            waiting=Waiting(waiting.make, waiting.axes, [*waiting.steps, step]),
        )


def _once(function: Scalar, values: list[Any]) -> Any:
    """Apply a function to values that are read once, however often it needs them.

    What is computed before goes into its reader, whole: a chain of readers that need it twice would
    have 2, 4, 8, ... of it.
    """
    names = [tirx.Var("v", element_type(v)) for v in values]
    seen: list[Any] = []
    tvm_ffi.structural_walk(function(*names), (tvm.ir.Var, seen.append))
    known = (tirx.IntImm, tirx.FloatImm)
    uses = [
        0 if isinstance(v, known) else sum(s.same_as(n) for s in seen)
        for n, v in zip(names, values, strict=True)
    ]
    pairs = list(zip(names, values, uses, strict=True))
    made = function(*(n if count > 1 else v for n, v, count in pairs))
    for name, value, count in pairs:
        made = tirx.Let(name, value, made) if count > 1 else made
    return made


def _fits(operand: Tensor, target: Tensor) -> bool:
    """Whether an operand is one value, one for each row or column, or as large as the product."""
    if operand.rank > target.rank or not operand.is_static:
        return False
    shape = (1,) * (target.rank - operand.rank) + tuple(operand.shape)
    if shape == tuple(target.shape) or all(s == 1 for s in shape):
        return True
    waiting = target.waiting
    if waiting is None:
        return False
    for axes in waiting.axes:
        inside = all(shape[a] == target.shape[a] for a in axes)
        beyond = all(shape[a] == 1 for a in range(target.rank) if a not in axes)
        if inside and beyond:
            return True
    return False


def _single(tensor: Tensor) -> Any:
    """The value of a constant with one element, as an immediate."""
    if tensor.data is None or tensor.data.size != 1 or tensor.rank > 1:
        return None
    item = tensor.data.reshape(-1)[0].item()
    if isinstance(item, float) and not np.isfinite(item):
        return None
    return tirx.const(item, tensor.dtype)


def _with_numbers(
    function: Scalar, others: tuple[Tensor, ...], place: int
) -> tuple[Scalar, tuple[Tensor, ...], int]:
    """Write operands that are one known number into a function of a step."""
    known = [_single(t) for t in others]
    if all(k is None for k in known):
        return function, others, place

    def numbered(*values: Any) -> Any:
        given = list(values)
        value, rest = given.pop(position), iter(given)
        full = [next(rest) if k is None else k for k in known]
        full.insert(place, value)
        return function(*full)

    position = sum(k is None for k in known[:place])
    return numbered, tuple(t for t, k in zip(others, known, strict=True) if k is None), position


def at(tensor: Any, index: Sequence[Any]) -> Any:
    """Read a tensor at an index of what it is broadcast to."""
    shape = tensor.shape
    own = index[len(index) - len(shape) :]
    zero = tirx.const(0, "int64")
    return tensor(*(zero if _is_one(s) else i for s, i in zip(shape, own, strict=True)))


def _is_one(size: Any) -> bool:
    return isinstance(plain(size), int) and plain(size) == 1


def plain(size: Any) -> Size:
    """Return a size as a number where it is one."""
    if isinstance(size, tirx.IntImm):
        return int(size.value)
    return size


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are surely equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, int) or isinstance(b, int):
        return False
    # Sizes that are equal were often computed in two ways.
    return bool(sym.Analyzer().can_prove_equal(a, b))


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """Return the shape that operands have together.

    Raises:
        Refusal: sizes that are not known to fit.
    """
    rank = max(map(len, shapes))
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if isinstance(result[axis], int) and result[axis] == 1:
                result[axis] = size
            elif (isinstance(size, int) and size == 1) or same(size, result[axis]):
                continue
            else:
                raise Refusal(f"sizes {result[axis]} and {size} need not fit", "dynamic_shape")
    return tuple(result)


def dtype_of(value: ir.Value) -> str:
    """Return NumPy's name of a value's element type."""
    if value.dtype is None:
        raise Refusal(f"{value.name!r} has no element type", "unsupported_dtype")
    return str(value.dtype.numpy().name)
