"""Functions of a program: the branches that a run takes, and the turns that it makes.

TVM's virtual machine has functions and conditions, but no jump back. So turns are doubled::

    turns0(s) = going(s) ? turn(s) : s
    turns1(s) = going(s) ? turns0(turns0(s)) : s
    turns2(s) = going(s) ? turns1(turns1(s)) : s

which is ``2**k`` turns in a stack of ``k`` calls, and ends as soon as nothing goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from tvm import relax, te, tirx

from edgeinfer.convert.lower.tvm.builder import Builder, Size, Tensor, plain
from edgeinfer.convert.passes.infra import bodies
from edgeinfer.records import dataclass


def outside(graph: ir.Graph) -> list[ir.Value]:
    """Values that a body reads and does not make, each once, in their order."""
    own: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}

    def read(part: ir.Graph) -> None:
        own.update(part.inputs, part.initializers.values())
        for node in part:
            own.update(node.outputs)
        for node in part:
            found.update(dict.fromkeys(v for v in node.inputs if v is not None and v not in own))
            for inner in bodies(node):
                read(inner)
        found.update(dict.fromkeys(v for v in part.outputs if v not in own))

    read(graph)
    return [v for v in found if v.const_value is None and v not in own]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the program.

    Attributes:
        where: calls name it.
        results: element types and sizes, in terms of the sizes that its operands had; None where
            a run has to count.
    """

    where: Any
    results: tuple[tuple[str, tuple[Size | None, ...]], ...]


def write(
    g: Builder,
    name: str,
    like: Sequence[Tensor],
    body: Callable[[list[Tensor]], Sequence[Tensor]],
) -> Function:
    """Write a function of operators; what it gives is in memory of its own."""
    sizes: dict[Any, Any] = {}
    params = parameters(like, sizes)
    name, outer = title(g, name), g.sizes
    g.sizes = {said: sizes[size] for said, size in outer.items() if size in sizes}
    with g.block.function(name, params, {"edgeinfer.name": name}, private=True):
        with g.block.dataflow():
            made = list(body([g.wrap(p) for p in params]))
            given = [g.block.emit_output(g.expr(fresh(g, t))) for t in made]
        g.block.emit_func_output(relax.Tuple(given))
    g.sizes = outer
    back = {own: size for size, own in sizes.items()}
    results = tuple((t.dtype, tuple(_outer(s, back) for s in t.shape)) for t in made)
    return Function(g.block.get().get_global_var(name), results)


def write_plain(
    g: Builder, name: str, like: Sequence[Tensor], body: Callable[[list[Any]], Any]
) -> Any:
    """Write a function of calls and conditions; return what calls name it by."""
    params, name = parameters(like, {}), title(g, name)
    with g.block.function(name, params, {"edgeinfer.name": name}, private=True):
        g.block.emit_func_output(g.block.emit(body(params)))
    return g.block.get().get_global_var(name)


def parameters(like: Sequence[Tensor], sizes: dict[Any, Any]) -> list[Any]:
    """Make parameters like some tensors; open sizes get names of their own."""
    made = []
    for index, tensor in enumerate(like):
        shape = [_own(size, sizes) for size in tensor.shape]
        made.append(relax.Var(f"a{index}", relax.TensorType(shape, tensor.dtype)))
    return made


def title(g: Builder, name: str) -> str:
    """Name a function as no other one is.

    The name is an attribute too: of two functions that do the same TVM would keep one name.
    """
    g.functions += 1
    return f"{name}_{g.functions}"


def fresh(g: Builder, x: Tensor) -> Tensor:
    """Copy a tensor: what a function gives may be neither an operand of it nor a constant."""
    return g.te(lambda v: te.compute(v.shape, lambda *i: v(*i), name="copy"), x, name="copy")


def call(function: Any, operands: Sequence[Any]) -> Any:
    """Return a call."""
    return relax.Call(function, list(operands))


def item(g: Builder, made: Any, index: int, shape: Sequence[Size | None]) -> Tensor:
    """Take a result of a call; sizes that are None are counted by the run."""
    value = g.block.emit(relax.TupleGetItem(made, index))
    if all(size is not None for size in shape):
        return g.wrap(value)
    full = [g.count() if size is None else size for size in shape]
    return g.wrap(g.block.match_cast(value, relax.TensorType(full, str(value.ty.dtype.dtype))))


def _own(size: Size, sizes: dict[Any, Any]) -> Any:
    if isinstance(size, int):
        return size
    return sizes.setdefault(size, tirx.Var(f"s{len(sizes)}", "int64"))


def _outer(size: Size, back: dict[Any, Any]) -> Size | None:
    size = plain(size)
    return size if isinstance(size, int) else back.get(size)
