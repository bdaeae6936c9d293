"""Normalisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Tensor
from edgeinfer.convert.lower.ops import norm as shared
from edgeinfer.types import Array


def _by_channel(g: Builder, x: Tensor, vector: Tensor) -> Tensor:
    """Shape a vector so that it broadcasts along the second axis."""
    return g.reshape(vector, [1, -1, *(1 for _ in x.shape[2:])] if x.rank > 1 else [-1])


def _array(x: Tensor | None) -> Array | None:
    return None if x is None or x.data is None else x.data.reshape(-1)


@OPS.lower("BatchNormalization", dtypes=FLOATS)
def batch_normalization(
    g: Builder,
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float,
    training_mode: int,
) -> Tensor:
    """batch_norm by known statistics, else arithmetic."""
    vectors = [scale, B, input_mean, input_var]
    known = [None if v.data is None else np.asarray(v.data.reshape(-1), X.dtype) for v in vectors]
    if X.rank in (3, 4, 5) and all(v is not None for v in known) and not training_mode:
        gamma, beta, mean, variance = known
        statistics: dict[str, Any] = {"mean": mean, "variance": variance}
        statistics |= {"gamma": gamma, "beta": beta}
        return g.emit("batch_norm", x=X, **statistics, epsilon=float(epsilon))
    given = {"epsilon": epsilon, "training_mode": training_mode}
    made: Tensor = _shared(g, shared.batch_normalization, X, *vectors, **given)
    return made


@OPS.lower("InstanceNormalization", dtypes=FLOATS)
def instance_normalization(
    g: Builder, input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float
) -> Tensor:
    """instance_norm by known vectors, else arithmetic."""
    gamma, beta = _array(scale), _array(B)
    if input.rank in (3, 4) and gamma is not None and beta is not None:
        return g.emit("instance_norm", x=input, gamma=gamma, beta=beta, epsilon=float(epsilon))
    made: Tensor = _shared(g, shared.instance_normalization, input, scale, B, epsilon=epsilon)
    return made


def _shared(g: Builder, body: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
    from edgeinfer.convert.lower.coreml.portable import Portable

    return body(Portable(g), *operands, **attributes)


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
) -> tuple[Tensor, ...]:
    """layer_norm by known vectors; the other results, and vectors of a run, by arithmetic."""
    if g.wants(1) or g.wants(2):
        given = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
        made: tuple[Tensor, ...] = _shared(g, shared.layer_normalization, X, Scale, B, **given)
        return made
    first, sizes, x = axis % X.rank, g.extents(X), X
    if X.rank > MAX_RANK:
        x = g.reshape(X, [g.product(sizes[:first]), *sizes[first:]])
    axes = list(range(x.rank - (X.rank - first), x.rank))
    gamma, beta = (_fitting(v, X.shape[first:]) for v in (Scale, B))
    own: dict[str, Any] = {"x": x, "axes": axes, "epsilon": float(epsilon)}
    if gamma is not None and (B is None or beta is not None):
        out = g.emit("layer_norm", gamma=gamma, beta=beta, **own)
    else:
        out = _affine(g, g.emit("layer_norm", **own), Scale, B)
    return (out if x is X else g.reshape(out, sizes),)


def _affine(g: Builder, x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    out = g.binary("mul", x, scale)
    return out if bias is None else g.binary("add", out, bias)


def _fitting(vector: Tensor | None, shape: Sequence[object]) -> Array | None:
    """The values where they have exactly the normalised shape."""
    if vector is None or vector.data is None or list(vector.shape) != list(shape):
        return None
    return vector.data


@OPS.lower("GroupNormalization", dtypes=FLOATS)
def group_normalization(
    g: Builder, X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float, num_groups: int
) -> Tensor:
    """layer_norm over each group, then the vectors by channel."""
    batch = g.extent(X, 0)
    groups = g.reshape(X, [batch, num_groups, -1])
    normal = g.emit("layer_norm", x=groups, axes=[2], epsilon=float(epsilon))
    back = g.reshape(normal, g.extents(X))
    scaled = g.binary("mul", back, _by_channel(g, X, scale))
    return g.binary("add", scaled, _by_channel(g, X, bias))
