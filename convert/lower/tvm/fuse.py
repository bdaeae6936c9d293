"""Element-wise steps inside the kernel whose result they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import relax
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.convert.lower.tvm.builder import Builder, Step, Tensor, Waiting
from edgeinfer.convert.lower.tvm.tuned import Product, product_function
from edgeinfer.kernels.defs.emit import Buffer, Expr, load, splat
from edgeinfer.kernels.defs.gemm import Finish
from edgeinfer.kernels.defs.math import named
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Loops:
    """A product as plain loops.

    Attributes:
        title: for people.
        inputs: sizes of its operands.
        product: computes it from their tensors, in the result's own shape, or in ``flat``.
        operands: gives their expressions.
        flat: the result with its axes from the third on as one.
    """

    title: str
    inputs: tuple[tuple[int, ...], ...]
    product: Product
    operands: Callable[[], list[Any]]
    flat: tuple[int, ...] = ()


Extra = dict[str, tuple[Sequence[int], str]]
Axes = tuple[tuple[int, ...], tuple[int, ...]]


def waiting(
    g: Builder,
    shape: tuple[int, ...],
    axes: Axes,
    stored: tuple[int, ...],
    operands: Callable[[], list[Any]],
    build: Callable[[Extra, Callable[..., Finish]], Any],
    *,
    loops: Loops,
) -> Tensor:
    """Return a product that is written with the steps that will follow it.

    Args:
        g: the graph.
        shape: Shape of the result.
        axes: Axes of the result that make the kernel's rows, and its columns.
        stored: shape in which the kernel writes the result.
        operands: the kernel's own inputs.
        build: writes the kernel for further inputs and what finishes each value.
        loops: the same product as loops that can be tuned.
    """
    node = g.node_name()

    def make_plain(steps: list[Step]) -> Any:
        # Schedules of GPUs are made for whole functions, later.
        made = loops.flat or shape
        view = partial(_flat, len(shape)) if loops.flat else None
        function = product_function(made, loops.inputs, loops.product, steps, view)
        more = [t for s in steps for t in s.operands]
        operands = [g.expr(t) if view is None else _reshaped(g, t, view(t)) for t in more]
        result = g.tir(function, [*loops.operands(), *operands], made)
        return result if made == shape else g.block.emit(relax.op.reshape(result, shape))

    def make(steps: list[Step]) -> Any:
        tuned = None
        plan = _Plan(shape, axes)
        tensors = [(f"e{i}_{j}", t) for i, s in enumerate(steps) for j, t in enumerate(s.operands)]
        seen = {name: plan.view(t) for name, t in tensors}
        kernel = build({n: (v, "float32") for n, v in seen.items()}, plan.finish(steps))
        if g.tuning is not None and g.tuning.is_active:
            function = product_function(shape, loops.inputs, loops.product, steps)
            title = f"{loops.title}{f' +{len(steps)}' if steps else ''}"
            tuned = g.tuning.choose(function, lambda: kernel, title, node)
        if tuned is not None:
            return g.tir(tuned, [*loops.operands(), *(g.expr(t) for _, t in tensors)], shape)
        more = [_reshaped(g, t, seen[name]) for name, t in tensors]
        made = g.tir(kernel, [*operands(), *more], stored)
        return made if stored == shape else g.block.emit(relax.op.reshape(made, shape))

    return Tensor("float32", shape, waiting=Waiting(make if g.on_cpu else make_plain, axes))


def _reshaped(g: Builder, tensor: Tensor, shape: tuple[int, ...]) -> Any:
    if tensor.data is not None:
        return relax.const(tensor.data.reshape(shape), tensor.dtype)
    made = g.expr(tensor)
    return made if tensor.shape == shape else g.block.emit(relax.op.reshape(made, shape))


def _flat(rank: int, tensor: Tensor) -> tuple[int, ...]:
    """The shape of an operand next to a result whose axes from the third on are one."""
    shape = (1,) * (rank - tensor.rank) + tuple(tensor.shape)
    return (*shape[:2], prod(shape[2:]))


class _Plan:
    """How operands of the steps lie next to rows and columns."""

    def __init__(self, shape: tuple[int, ...], axes: Axes) -> None:
        self.shape, self.axes = shape, axes
        self.rows, self.columns = (prod(shape[a] for a in part) for part in axes)

    def view(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape an operand is read in: (1, 1), (R, 1), (1, C) or (R, C)."""
        shape = (1,) * (len(self.shape) - tensor.rank) + tuple(tensor.shape)
        rows, columns = (prod(shape[a] for a in part) for part in self.axes)
        return rows, columns

    def finish(self, steps: list[Step]) -> Callable[..., Finish]:
        """Return what makes a stored value, given the buffers of all operands in their order."""

        def bind(*buffers: Buffer) -> Finish:
            def end(value: Expr, row: Expr, column: Expr, width: int) -> Expr:
                parts = iter(buffers)
                read = [[_read(next(parts), row, column, width) for _ in s.operands] for s in steps]
                return _applied(value, list(zip(steps, read, strict=True)))

            return end

        return bind


def _applied(value: Expr, steps: list[tuple[Step, list[Expr]]]) -> Expr:
    """Apply steps; each result is computed once, however often the next step reads it."""
    if not steps:
        return value
    (step, operands), *rest = steps

    def apply(v: Expr) -> Expr:
        values = list(operands)
        values.insert(step.position, v)
        return _applied(step.function(*values), rest)

    return named(value, apply)


def _read(buffer: Buffer, row: Expr, column: Expr, width: int) -> Expr:
    rows, columns = (int(s) for s in buffer.shape)
    row = 0 if rows == 1 else row
    if columns == 1:
        return splat(T.BufferLoad(buffer, [row, 0]), width)
    return load(buffer, [row, column], width)
