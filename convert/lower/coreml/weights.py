"""Weights in fewer bits, as constant expressions that Core ML unpacks: palettes and sparse forms.

coremltools' own passes write them, after all others; which values stand for the weights is found
by ``palette``, whose result hangs on the weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.deployment import IOS16, IOS17, IOS18, Deployment
from edgeinfer.convert.lower.coreml.palette import palette
from edgeinfer.convert.quantize.recipe import Packing, Recipe
from edgeinfer.errors import Problem
from edgeinfer.types import Array

SMALL = 2048
"""Weights up to which packing is not worth an operator; coremltools' own limit."""

_LEAST_GROUP = 4
_NAME = "pack_weights"


def refused(wanted: Recipe, oldest: Deployment) -> list[Problem]:
    """Say what of a recipe a deployment target does not unpack, and which one does."""
    for system, what in _needs(wanted):
        if oldest < system:
            hint = f"deployment target {system} or newer"
            detail = f"{oldest} has no {what}"
            return [Problem(wanted.name, "precision", "unsupported_op", detail, hint)]
    return []


def _needs(wanted: Recipe) -> Iterator[tuple[Deployment, str]]:
    """What a recipe is made of, with the first system that has it."""
    packing = wanted.packing or Packing()
    if packing.group:
        yield IOS18, "palettes for groups of channels"
    if packing.palette == 3:
        yield IOS18, "indices of 3 bits"
    if packing.integers or (packing.sparsity and packing.palette):
        yield IOS18, "weights that are packed in two ways"
    if wanted.weights == 4:
        yield IOS18, "weights of 4 bits with a scale for each block"
    if wanted.is_static:
        yield IOS17, "activations of 8 bits"
    if wanted.packing or wanted.is_integer:
        yield IOS16, "packed weights"


def refused_halves(oldest: Deployment) -> list[Problem]:
    """Say whether a deployment target cannot widen weights that lie in half precision."""
    if oldest >= IOS16:
        return []
    hint = f"deployment target {IOS16} or newer"
    detail = f"{oldest} has no mixture of weights in half and single precision"
    return [Problem("compress_weights", "precision", "unsupported_op", detail, hint)]


def add_packing(pipeline: Any, packing: Packing, *, halves: bool = False) -> None:
    """Let a pipeline of coremltools' pack the weights after its other passes.

    Args:
        pipeline: Pipeline of coremltools.
        packing: how.
        halves: store what is left in single precision as half precision.
    """
    name = f"edgeinfer::{_NAME}"
    _register(name)
    pipeline.append_pass(name)
    pipeline.set_options(name, {"packing": packing, "halves": halves})


def _register(name: str) -> None:
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY, register_pass

    if name in PASS_REGISTRY:
        return

    class PackWeights(AbstractGraphPass):  # type: ignore[misc]
        packing = Packing()
        halves = False

        def apply(self, prog: Any) -> None:
            for step in _steps(self.packing):
                step.apply(prog)
            if self.halves:
                for function in prog.functions.values():
                    _halve(function)

    register_pass(namespace="edgeinfer", name=_NAME)(PackWeights)


def _halve(block: Any) -> None:
    """Store large constants of single precision as half precision that is widened again."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813

    with block:
        for op in list(block.operations):
            value = op.outputs[0].val if op.op_type == "const" else None
            if not isinstance(value, np.ndarray) or not _gains(value):
                continue
            users = op.outputs[0].child_ops
            if not users or any(u.op_type.startswith("constexpr_") for u in users):
                continue
            wide = mb.constexpr_cast(
                source_val=value.astype(np.float16),
                output_dtype="fp32",
                before_op=op,
                name=f"{op.name}_halves",
            )
            block.replace_uses_of_var_after_op(
                anchor_op=op, old_var=op.outputs[0], new_var=wide, no_check_var_types=True
            )
            block.remove_ops([op])


def _gains(value: Array) -> bool:
    """Whether half precision holds a constant, and takes less room."""
    if value.dtype != np.float32 or value.size <= SMALL:
        return False
    return bool(np.abs(value).max() <= np.finfo(np.float16).max)


def _steps(packing: Packing) -> Iterator[Any]:
    """The passes of coremltools that pack weights so; each leaves what an earlier one packed."""
    from coremltools.optimize import coreml as cto
    from coremltools.optimize.coreml import _quantization_passes as passes

    def configured(kind: Any, config: Any, *, joint: bool) -> Any:
        made = kind(cto.OptimizationConfig(global_config=config))
        made.joint_compression = joint
        return made

    sparse = packing.sparsity > 0
    if sparse:
        share = packing.sparsity / 100
        pruner = cto.OpMagnitudePrunerConfig(target_sparsity=share, weight_threshold=SMALL)
        yield configured(passes.prune_weights, pruner, joint=False)
    if packing.palette:
        table = partial(_table, bits=packing.palette, sparse=sparse)
        for group in _groups(packing.group):
            grain = {"granularity": "per_grouped_channel", "group_size": group} if group else {}
            config = cto.OpPalettizerConfig(
                mode="custom", lut_function=table, weight_threshold=SMALL, **grain
            )
            yield configured(passes.palettize_weights, config, joint=sparse)
    if packing.integers:
        grain = {"granularity": "per_tensor"} if packing.palette else {"granularity": "per_channel"}
        linear = cto.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype="int8", weight_threshold=SMALL, **grain
        )
        yield configured(passes.linear_quantize_weights, linear, joint=True)


def _groups(wanted: int) -> Iterator[int]:
    """Sizes of groups to try, as one must divide the channels; the last is one palette for all."""
    while wanted >= _LEAST_GROUP:
        yield wanted
        wanted //= 2
    yield 0


def _table(weights: Array, *, bits: int, sparse: bool) -> tuple[Array, Array]:
    """Return a palette and indices; what is not stored has no say in it."""
    if not sparse:
        return palette(weights, bits)
    flat = weights.reshape(-1)
    kept = flat != 0
    if not kept.any():
        return palette(weights, bits)
    table, codes = palette(flat[kept], bits)
    indices = np.zeros(flat.shape, np.uint8)
    indices[kept] = codes
    return table, indices
