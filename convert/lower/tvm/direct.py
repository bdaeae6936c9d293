"""One function over fixed shapes: all kernels of a model in their order, without a machine between.

TVM's virtual machine takes about a microsecond for each operator, which is more than a small
model's arithmetic. Here the kernels' loops stand one behind the other in a single function that
takes inputs, outputs and weights.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from edgeinfer.backends.tvm.library import ENTRY
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_LOOPS = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)
"""Blocks of TensorIR to plain loops, the first half of TVM's own pipeline."""


class NotDirectError(Exception):
    """The module holds what cannot be put in a row."""


@dataclass(slots=True)
class Direct:
    """The function, and what it takes behind inputs and outputs.

    Attributes:
        function: takes inputs, outputs, weights and memory.
        weights: constants.
        memory: types and sizes of what it needs for intermediate results; empty if it brings its
            own.
    """

    function: tirx.PrimFunc
    weights: list[Array]
    memory: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    """What is collected while bindings are read in their order."""

    kernels: dict[str, tirx.PrimFunc]
    views: dict[Any, Any] = field(default_factory=dict)
    buffers: dict[Any, Any] = field(default_factory=dict)
    weights: list[Array] = field(default_factory=list)
    weight_buffers: list[Any] = field(default_factory=list)
    known: dict[tuple[str, tuple[int, ...], bytes], Any] = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)
    holders: dict[Any, _Slot] = field(default_factory=dict)
    last: dict[Any, int] = field(default_factory=dict)
    body: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Slot:
    """Memory that intermediate results share, one after the other."""

    dtype: str
    size: int
    buffer: Any = None
    views: list[tuple[int, Any]] = field(default_factory=list)


def direct(module: tvm.IRModule, *, own_memory: bool = True) -> Direct:
    """Write one function for a module whose ``main`` only calls kernels.

    Args:
        module: with its loops in order.
        own_memory: intermediate results stand in memory of the function's own; else the caller
            brings it.

    Raises:
        NotDirectError: it does something else.
    """
    main = module["main"]
    functions = {g: f for g, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    plain = _LOOPS(tvm.IRModule(functions))
    row = _Row({g.name_hint: f for g, f in plain.functions.items()})
    bindings = [b for block in main.body.blocks for b in block.bindings]
    results = _results(main.body.body, bindings)
    inputs = []
    for index, param in enumerate(main.params):
        made = _buffer(param.ty, f"in{index}")
        inputs.append(made)
        row.buffers[param] = made
    roots = _roots(bindings)
    outputs = []
    for index, var in enumerate(results):
        made = _buffer(var.ty, f"out{index}")
        outputs.append(made)
        root = roots.get(var, var)
        if root in row.buffers:
            raise NotDirectError("an output is an input or twice the same")
        row.buffers[root] = made
    row.last = _last_uses(bindings, roots)
    for index, binding in enumerate(bindings):
        _bind(row, binding, roots, index)
    stmts: list[Any] = []
    placed: list[tuple[int, Any]] = []
    brought: list[Any] = []
    for index, slot in enumerate(row.slots):
        whole = tirx.decl_buffer([slot.size], slot.dtype, f"memory{index}")
        if own_memory:
            stmts.append(tirx.AllocBuffer(whole))
        else:
            brought.append(whole)
        placed += [(at, tirx.DeclBuffer(view, data=whole.data)) for at, view in slot.views]
    stmts += [*(p for _, p in sorted(placed, key=lambda p: p[0])), *row.body]
    body = tirx.SeqStmt(stmts) if len(stmts) > 1 else stmts[0]
    function = tirx.PrimFunc([*inputs, *outputs, *row.weight_buffers, *brought], body)
    function = function.with_attrs({"global_symbol": ENTRY, "tirx.noalias": True, "s_tir": True})
    memory = [] if own_memory else [(slot.dtype, slot.size) for slot in row.slots]
    return Direct(function, row.weights, memory)


def _sizes(kind: Any) -> list[int]:
    sizes = []
    for size in kind.shape.values:
        if not isinstance(size, tirx.IntImm):
            raise NotDirectError("an open size")
        sizes.append(int(size.value))
    return sizes


def _buffer(kind: Any, name: str) -> Any:
    dtype = str(kind.dtype.dtype)
    bytes_each = max(1, np.dtype(dtype).itemsize)
    return tirx.decl_buffer(_sizes(kind), dtype, name, data_alignment=bytes_each)


def _results(body: Any, bindings: list[Any]) -> list[Any]:
    for binding in bindings:
        if binding.var.same_as(body) and isinstance(binding.value, relax.Tuple):
            return list(binding.value.fields)
    if isinstance(body, relax.Tuple):
        return list(body.fields)
    return [body]


def _name(call: Any) -> str:
    op = getattr(call, "op", None)
    return str(op.name) if isinstance(op, tvm.ir.Op) else ""


def _roots(bindings: list[Any]) -> dict[Any, Any]:
    """For each variable that is another's memory, whose it is."""
    roots: dict[Any, Any] = {}
    tuples: dict[Any, list[Any]] = {}
    for binding in bindings:
        value = binding.value
        if _name(value) == "relax.reshape":
            roots[binding.var] = roots.get(value.args[0], value.args[0])
        elif isinstance(value, relax.Var):
            roots[binding.var] = roots.get(value, value)
        elif isinstance(value, relax.TupleGetItem):
            parts = tuples.setdefault(value.tuple_value, [])
            key = (value.tuple_value, int(value.index))
            roots[binding.var] = roots.setdefault(key, binding.var)
            parts.append(binding.var)
    return roots


def _last_uses(bindings: list[Any], roots: dict[Any, Any]) -> dict[Any, int]:
    """The last binding that reads each piece of memory."""
    last: dict[Any, int] = {}
    for index, binding in enumerate(bindings):
        value = binding.value
        if _name(value) != "relax.call_tir":
            continue
        for argument in value.args[1].fields:
            if not isinstance(argument, tvm.ir.GenericConst):
                last[roots.get(argument, argument)] = index
    return last


def _bind(row: _Row, binding: Any, roots: dict[Any, Any], index: int) -> None:
    value = binding.value
    if isinstance(value, relax.Tuple | relax.Var | relax.TupleGetItem):
        return
    if _name(value) == "relax.reshape":
        return
    if _name(value) != "relax.call_tir":
        raise NotDirectError(f"{_name(value) or type(value).__name__}")
    if len(value.args) > 2:
        raise NotDirectError("a kernel with sizes as arguments")
    kernel = s_tir.renew_defs(row.kernels[value.args[0].name_hint])
    operands = [_operand(row, a, roots) for a in value.args[1].fields]
    kinds = value.ty_args[0]
    if isinstance(kinds, relax.TupleType):
        results = [
            _result(row, roots.get((binding.var, i), (binding.var, i)), kind, index)
            for i, kind in enumerate(kinds.fields)
        ]
    else:
        results = [_result(row, roots.get(binding.var, binding.var), kinds, index)]
    given = [*operands, *results]
    views = [_view(row, b, p) for p, b in zip(kernel.params, given, strict=True)]
    # Expressions compare by value, so variables are distinguished by their identity.
    taken = {hash(p): v for p, v in zip(kernel.params, views, strict=True)}
    body = tvm_ffi.structural_map(kernel.body, (tvm.ir.Var, lambda v: taken.get(hash(v), v)))
    row.body.append(body)


def _operand(row: _Row, argument: Any, roots: dict[Any, Any]) -> Any:
    if isinstance(argument, tvm.ir.GenericConst):
        return _weight(row, argument.value.numpy())
    root = roots.get(argument, argument)
    if isinstance(root, tvm.ir.GenericConst):
        return _weight(row, root.value.numpy())
    if root not in row.buffers:
        raise NotDirectError("an operand without memory")
    return row.buffers[root]


def _weight(row: _Row, array: Array) -> Any:
    key = (array.dtype.name, array.shape, array.tobytes())
    if key not in row.known:
        name = f"w{len(row.weights)}"
        bytes_each = max(1, array.dtype.itemsize)
        made = tirx.decl_buffer(array.shape, array.dtype.name, name, data_alignment=bytes_each)
        row.known[key] = made
        row.weights.append(array)
        row.weight_buffers.append(made)
    return row.known[key]


def _result(row: _Row, root: Any, kind: Any, index: int) -> Any:
    """Give a result memory: an output, or a slot whose last reader came before."""
    if root in row.buffers:
        return row.buffers[root]
    sizes, dtype = _sizes(kind), str(kind.dtype.dtype)
    made = tirx.decl_buffer(sizes, dtype, f"t{len(row.holders)}")
    busy = {id(s) for r, s in row.holders.items() if row.last.get(r, -1) >= index}
    free = [s for s in row.slots if s.dtype == dtype and id(s) not in busy]
    # What was given out for this very binding is not read yet, but taken.
    free = [s for s in free if not s.views or s.views[-1][0] != index]
    count = max(1, int(np.prod(sizes)))
    slot = min(free, key=lambda s: abs(s.size - count), default=None)
    if slot is None:
        slot = _Slot(dtype, count)
        row.slots.append(slot)
    slot.size = max(slot.size, count)
    slot.views.append((index, made))
    row.holders[root] = slot
    row.buffers[root] = made
    return made


def _view(row: _Row, buffer: Any, wanted: Any) -> Any:
    """The memory of a buffer in the shape that a kernel takes it in."""
    have, want = [[int(s) for s in b.shape] for b in (buffer, wanted)]
    if have == want:
        return buffer
    dtype = str(buffer.dtype)
    bytes_each = max(1, np.dtype(dtype).itemsize)
    made = tirx.decl_buffer(want, dtype, f"{buffer.name}_v", data_alignment=bytes_each)
    row.body.append(tirx.DeclBuffer(made, data=buffer.data))
    return made
