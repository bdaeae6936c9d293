"""The order of bindings where sizes are made by a run: TVM's fusion looks at values alone."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx


def sizes_first(module: tvm.IRModule) -> tvm.IRModule:
    """Move what makes a size before what uses it.

    Given::

        y = call_tir(first, (x, m)); s = tensor_to_shape(count); match_cast(s, Shape([m]))

    Result::

        s = tensor_to_shape(count); match_cast(s, Shape([m])); y = call_tir(first, (x, m))
    """
    for where, function in list(module.functions.items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            taken = {s for p in function.params for s in _sizes_of(p)}
            blocks = [_ordered(block, taken) for block in function.body.blocks]
            body = relax.SeqExpr(blocks, function.body.body)
            module[where] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            )
    return module


def _sizes_of(value: Any) -> list[Any]:
    """The open sizes that the type of a parameter, or of what a run counts, names."""
    kind = value.ty
    shape = kind.shape if isinstance(kind, relax.TensorType) else kind
    return [s for s in getattr(shape, "values", None) or () if isinstance(s, tirx.Var)]


def _ordered(block: relax.BindingBlock, taken: set[Any]) -> relax.BindingBlock:
    made_by: dict[Any, Any] = {}
    for binding in block.bindings:
        made_by[binding.var] = binding
        if isinstance(binding, relax.MatchCast):
            # Where it is named again, a size is only compared.
            for size in _sizes_of(binding.var):
                if size not in taken:
                    made_by.setdefault(size, binding)
    if all(isinstance(b, relax.VarBinding) for b in block.bindings):
        return block
    done: dict[Any, None] = {}

    def place(binding: Any) -> None:
        if binding.var in done:
            return
        needed = [*relax.analysis.free_vars(binding.value)]
        is_match = isinstance(binding, relax.MatchCast)
        needed += _sizes_of(binding.var) if is_match else _sizes(binding)
        for value in needed:
            source = made_by.get(value)
            if source is not None and not source.same_as(binding) and source.var not in done:
                place(source)
        done[binding.var] = None

    for binding in block.bindings:
        place(binding)
    return type(block)([made_by[var] for var in done])


def _sizes(binding: Any) -> list[Any]:
    """The open sizes in what a binding computes and in its result."""
    whole = relax.Function([], binding.value, binding.var.ty)
    return list(relax.analysis.free_symbolic_vars(whole))
