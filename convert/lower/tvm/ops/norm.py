"""Normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from edgeinfer.convert.lower.ops import norm as shared
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.ops.reduce import as_rows
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.kernels.defs import norms


def _shared(g: Builder, body: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
    from edgeinfer.convert.lower.tvm.portable import Whole

    return body(Whole(g), *operands, **attributes)


def _own(
    g: Builder,
    x: Tensor,
    axes: tuple[int, ...],
    epsilon: float,
    factors: list[Tensor],
    kind: str,
    *,
    centred: bool = True,
) -> Tensor | None:
    """Normalise in one kernel where the axes are rows and the factors one for each of a kind."""
    lying = as_rows(g, x, axes)
    if lying is None:
        return None
    count = lying[1] if kind == "column" else lying[0]
    if any(t.dtype != "float32" or not t.is_static or prod(t.shape) != count for t in factors):
        return None
    kernel = norms.normalised(
        g.cpu, *lying, epsilon, centred=centred, factors=[kind] * len(factors)
    )
    operands = [reshape(g, x, lying), *(reshape(g, t, (count,)) for t in factors)]
    made = g.wrap(g.tir(kernel, [g.expr(t) for t in operands], lying))
    return reshape(g, made, x.shape)


def _each(g: Builder, channels: Tensor, batch: Any) -> Tensor:
    """Values of channels for each image's channels."""
    if channels.data is None or not isinstance(batch, int):
        return channels
    return g.const(np.tile(channels.data, batch))


@OPS.lower("LayerNormalization", dtypes=FLOATS)
def layer_normalization(
    g: Builder,
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
) -> Tensor | tuple[Tensor, ...]:
    """Zero mean and unit variance over the last axes."""
    if not (g.wants(1) or g.wants(2)):
        axes = tuple(range(axis % X.rank, X.rank))
        own = _own(g, X, axes, epsilon, [t for t in (Scale, B) if t is not None], "column")
        if own is not None:
            return own
    given = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
    made: tuple[Tensor, ...] = _shared(g, shared.layer_normalization, X, Scale, B, **given)
    return made


@OPS.lower("RMSNormalization", dtypes=FLOATS)
def rms_normalization(
    g: Builder, X: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int
) -> Tensor:
    """Unit mean square over the last axes."""
    axes = tuple(range(axis % X.rank, X.rank))
    own = _own(g, X, axes, epsilon, [scale], "column", centred=False)
    if own is not None:
        return own
    given = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
    made: Tensor = _shared(g, shared.rms_normalization, X, scale, **given)
    return made


@OPS.lower("InstanceNormalization", dtypes=FLOATS)
def instance_normalization(
    g: Builder, input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float
) -> Tensor:
    """Zero mean and unit variance of each channel of each image."""
    axes = tuple(range(2, input.rank))
    own = _own(g, input, axes, epsilon, [_each(g, t, input.shape[0]) for t in (scale, B)], "row")
    if own is not None:
        return own
    made: Tensor = _shared(g, shared.instance_normalization, input, scale, B, epsilon=epsilon)
    return made


def standardised(g: Builder, x: Tensor, steps: Sequence[Sequence[int]], epsilon: float) -> Tensor:
    """Zero mean and unit variance, in one kernel where the axes are rows."""
    axes = tuple(sorted(a for step in steps for a in step))
    own = _own(g, x, axes, epsilon, [], "row")
    made: Tensor = _shared(g, shared.standard, x, [axes], epsilon) if own is None else own
    return made
