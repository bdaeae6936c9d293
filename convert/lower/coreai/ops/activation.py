"""Activations."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.ops import unary as shared_unary
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("Gelu", dtypes=FLOATS)
def gelu(g: Builder, x: Tensor, *, approximate: str) -> Tensor:
    if approximate == "none":
        return g.unary("gelu", x)
    from edgeinfer.convert.lower.coreai.portable import Portable

    made: Tensor = shared_unary.gelu(Portable(g), x, approximate=approximate)
    return made


@OPS.lower("Clip", dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    return g.clip(input, min, max)


@OPS.lower("Softmax", dtypes=FLOATS)
def softmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    if not input.rank:
        raise Refusal("a scalar has no axis", "unsupported_rank")
    return g.call("softmax", input, np.int32(axis % input.rank))
