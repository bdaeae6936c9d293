"""Activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.ops import activation as shared
from edgeinfer.convert.lower.ops import unary as shared_unary
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("Gelu", since=20, dtypes=FLOATS)
def gelu(g: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return g.unary("gelu", x)
    from edgeinfer.convert.lower.coreai.portable import Portable

    made: Tensor = shared_unary.gelu(Portable(g), x, approximate=approximate)
    return made


@OPS.lower("Clip", since=13, dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    return g.clip(input, min, max)


@OPS.lower("Softmax", since=13, dtypes=FLOATS)
def softmax(g: Builder, input: Tensor, *, axis: int = -1) -> Tensor:
    if not input.rank:
        raise Refusal("a scalar has no axis", "unsupported_rank")
    return g.call("softmax", input, np.int32(axis % input.rank))


def function_of(name: str, alpha: float | None, beta: float | None) -> Callable[..., Tensor]:
    """An activation of a recurrent layer as a function of the builder and a tensor."""
    from edgeinfer.convert.lower.coreai.portable import Portable

    given = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
    numbers = {**_DEFAULTS.get(name.lower(), {}), **given}
    a, b = numbers.get("alpha", 1.0), numbers.get("beta", 0.0)
    match name.lower():
        case "sigmoid" | "tanh" | "relu" as plain:
            return lambda g, x: g.unary(plain, x)
        case "leakyrelu":
            return lambda g, x: shared.leaky_relu(Portable(g), x, alpha=a)
        case "thresholdedrelu":
            return lambda g, x: shared.thresholded_relu(Portable(g), x, alpha=a)
        case "elu":
            return lambda g, x: shared.elu(Portable(g), x, alpha=a)
        case "hardsigmoid":
            return lambda g, x: shared.hard_sigmoid(Portable(g), x, alpha=a, beta=b)
        case "softsign":
            return lambda g, x: shared.softsign(Portable(g), x)
        case "softplus":
            return lambda g, x: shared.softplus(Portable(g), x)
        case "affine":
            return lambda g, x: g.binary("add", g.binary("mul", x, a), b)
        case "scaledtanh":
            return lambda g, x: g.binary("mul", g.unary("tanh", g.binary("mul", x, b)), a)
    raise Refusal(f"activation {name!r}")


_DEFAULTS = {
    "leakyrelu": {"alpha": 0.01},
    "hardsigmoid": {"alpha": 0.2, "beta": 0.5},
    "scaledtanh": {"beta": 1.0},
}
