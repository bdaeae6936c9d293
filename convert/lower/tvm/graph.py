"""From a normalised model to a Relax module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import tvm
from tvm import te

from edgeinfer.convert.lower.registry import Driver, Refusal
from edgeinfer.convert.lower.tvm import ops
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.convert.lower.tvm.registry import OPS
from edgeinfer.convert.lower.tvm.tuned import Tuning
from edgeinfer.errors import Problem
from edgeinfer.records import dataclass

__all__ = ["LoweredModule", "lower_graph"]

_ = ops


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A module and what is known of it.

    Attributes:
        module: Relax, with a function ``main``; None if anything is in the way.
        problems: nodes without a lowering.
        naive: products without a kernel of their own.
        kernels: calls of kernels of our own.
        is_static: no size is open, and nothing is decided by a run.
    """

    module: tvm.IRModule | None
    problems: list[Problem]
    naive: tuple[str, ...] = ()
    kernels: int = 0
    is_static: bool = True


def lower_graph(model: ir.Model, machine: Machine, tuning: Tuning | None = None) -> LoweredModule:
    """Lower every node."""
    g = Builder(machine, tuning)
    driver: Driver[Tensor] = Driver(OPS, g)
    inputs = [v for v in model.graph.inputs if v.const_value is None]
    try:
        for value in inputs:
            driver.values[value] = g.open_input(value)
    except Refusal as refusal:
        where = f"input {value.name!r}"
        return LoweredModule(
            None, [Problem(where, "", refusal.reason, refusal.detail, refusal.hint)]
        )
    _follow(g, driver)
    with g.block.function("main", g.inputs):
        made: list[Any] = []
        with g.block.dataflow():
            driver.lower_nodes(model.graph)
            if not driver.problems:
                taken: list[Any] = list(g.inputs)
                made = [_output(g, driver, value, taken) for value in model.graph.outputs]
        g.block.emit_func_output(tvm.relax.Tuple(made))
    if driver.problems:
        return LoweredModule(None, driver.problems)
    is_static = not (g.sizes or g.counted or g.functions)
    return LoweredModule(g.block.get(), [], tuple(g.naive), g.kernels, is_static)


def _follow(g: Builder, driver: Driver[Tensor]) -> None:
    """Have the builder see what a driver is at; a body has a driver of its own."""

    def value(of: ir.Value) -> Tensor:
        if of not in driver.values:
            if of.const_value is None:
                raise Refusal(f"{of.name!r} has no lowering", "unsupported_op")
            driver.values[of] = g.constant(of)
        return driver.values[of]

    def lower_body(graph: ir.Graph, given: Mapping[ir.Value, Tensor]) -> list[Tensor]:
        inner: Driver[Tensor] = Driver(OPS, g)
        inner.values.update(given)
        _follow(g, inner)
        try:
            inner.lower_nodes(graph)
            driver.problems += inner.problems
            return [g.value(v) for v in graph.outputs]
        finally:
            _follow(g, driver)

    g.current = lambda: driver.node
    g.last_use = lambda tensor: _is_last(driver, tensor)
    g.value, g.lower_body = value, lower_body


def _is_last(driver: Driver[Tensor], tensor: Tensor) -> bool:
    """Whether nothing after the current node reads a value."""
    node = driver.node
    if node is None:
        return False
    for value in node.inputs:
        if value is not None and driver.values.get(value) is tensor:
            return len(value.uses()) == 1 and not value.is_graph_output()
    # Made inside the lowering of this node.
    return True


def _output(g: Builder, driver: Driver[Tensor], value: ir.Value, taken: list[Any]) -> Any:
    """Return a result in memory of its own: not an input's, another output's or a constant's."""
    if value not in driver.values:
        driver.values[value] = g.constant(value)
    tensor = driver.values[value]
    made = g.expr(tensor)
    root = _memory(g, made)
    if tensor.data is not None or any(root.same_as(t) for t in taken):
        root = made = g.block.emit_te(_copy, made, primfunc_name_hint="copy")
    taken.append(root)
    return g.block.emit_output(made)


def _copy(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x(*i), name="copy")


def _memory(g: Builder, made: Any) -> Any:
    """Whose memory a value is: a reshaped value lies where the other one does."""
    while isinstance(made, tvm.relax.Var):
        source = g.block.lookup_binding(made)
        name = getattr(getattr(source, "op", None), "name", "")
        if name != "relax.reshape":
            break
        made = source.args[0]
    return made
