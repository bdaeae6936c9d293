"""coremltools' removal of transposes that cancel, run only where there may be any.

``common::reduce_transposes`` (coremltools 9.0) infers every operation of a program anew, whether it
found anything or not: half of the time that a transformer's lowering takes.
"""

from __future__ import annotations

from typing import Any

_PASSABLE = frozenset(
    (  # noqa: SIM905  (sixty lines otherwise)
        "relu log relu6 abs acos asin atan atanh ceil clip cos cosh erf exp exp2 floor identity"
        " logical_not round rsqrt sign sin sinh sqrt square pow tan tanh threshold clamped_relu elu"
        " gelu leaky_relu linear_activation scaled_tanh sigmoid sigmoid_hard softplus"
        " softplus_parametric softsign thresholded_relu concat split pad reduce_l1_norm"
        " reduce_l2_norm reduce_max reduce_log_sum reduce_log_sum_exp reduce_mean reduce_min"
        " reduce_prod reduce_sum reduce_sum_square add mul sub real_div maximum minimum"
    ).split()
)
"""Operations that the pass moves a transpose through."""


_JOINING = frozenset({"concat", "add", "mul", "sub", "real_div", "maximum", "minimum"})

_THEIRS = "common::reduce_transposes"
_NAME = "reduce_transposes_if_any"


def only_where_any(pipeline: Any) -> None:
    """Put a pass that looks first into the place of coremltools' own."""
    _register()
    pipeline.passes = [f"edgeinfer::{_NAME}" if p == _THEIRS else p for p in pipeline.passes]


def _register() -> None:
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY, register_pass

    if f"edgeinfer::{_NAME}" in PASS_REGISTRY:
        return

    class ReduceTransposesIfAny(AbstractGraphPass):  # type: ignore[misc]
        def apply(self, prog: Any) -> None:
            if may_cancel(prog):
                PASS_REGISTRY[_THEIRS].apply(prog)

    register_pass(namespace="edgeinfer", name=_NAME)(ReduceTransposesIfAny)


def may_cancel(program: Any) -> bool:
    """Tell whether transposes may become fewer.

    One does where it reaches its inverse through what the pass moves it through, two that are alike
    where they reach the same operation of several inputs.
    """
    return any(_may_cancel(function) for function in program.functions.values())


def _may_cancel(function: Any) -> bool:
    reached: set[tuple[int, ...]] = set()
    for transpose in function.operations:
        if transpose.op_type != "transpose":
            continue
        first = [int(axis) for axis in transpose.perm.val]
        own: set[int] = set()
        joined: set[tuple[int, ...]] = set()
        found = list(transpose.outputs[0].child_ops)
        while found:
            op = found.pop()
            if id(op) in own:
                continue
            own.add(id(op))
            if op.op_type == "transpose":
                if [first[int(axis)] for axis in op.perm.val] == list(range(len(first))):
                    return True
            elif op.op_type in _PASSABLE:
                if op.op_type in _JOINING:
                    joined.add((id(op), *first))
                found.extend(child for output in op.outputs for child in output.child_ops)
        if joined & reached:
            return True
        reached |= joined
    return False
