"""Hidden states of a model to one vector."""

from __future__ import annotations

import numpy as np

from edgeinfer.errors import RunError
from edgeinfer.heads import Embed
from edgeinfer.results import Embedding
from edgeinfer.types import Array


def embed(output: Array, head: Embed, mask: Array | None = None) -> Embedding:
    """Pool and normalise.

    Args:
        output: (1, size), or (1, tokens, size) with pooling.
        head: how.
        mask: (1, tokens), 1 where a token counts; None counts all.

    Raises:
        RunError: the output is not of that shape.
    """
    states = np.asarray(output, np.float32)
    if head.pooling == "none":
        vector = states.reshape(-1)
        if states.ndim and len(states) != 1:
            raise RunError(f"head: expected the vector of one input, received {list(states.shape)}")
    elif states.ndim != 3 or len(states) != 1:
        raise RunError(f"head: expected (1, tokens, size), received {list(states.shape)}")
    elif head.pooling == "first":
        vector = states[0, 0]
    else:
        counted = np.ones(states.shape[1]) if mask is None else np.asarray(mask).reshape(-1)
        vector = (states[0] * counted[:, np.newaxis]).sum(axis=0) / max(float(counted.sum()), 1.0)
    if head.normalize:
        length = float(np.sqrt((vector.astype(np.float64) ** 2).sum()))
        vector = vector / max(length, 1e-12)
    return Embedding(np.asarray(vector, np.float32))
