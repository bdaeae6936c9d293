"""How large the answer of a model is, known before it runs: its memory is held first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.runtime.batches import size_of
from edgeinfer.runtime.serve.inflight import LARGE_BYTES, held
from edgeinfer.types import Array, Feeds, TensorSpec

_ODD = {"bfloat16": 2, "string": 0}
"""Bytes of an element that NumPy has no name for; of texts nobody knows."""


class AnswerSize:
    """Says how many bytes a model's outputs take.

    Args:
        inputs: Inputs of the model.
        outputs: Outputs of the model.

    Attributes:
        is_known: whether the shapes say it of all outputs.
    """

    __slots__ = ("_fixed", "_open", "is_known")

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        sources = {
            name: (spec.name, axis)
            for spec in inputs
            for axis, name in enumerate(spec.shape or ())
            if isinstance(name, str)
        }
        self.is_known = True
        self._fixed, self._open = 0, list[tuple[int, list[tuple[str, int]]]]()
        for spec in outputs:
            shape = (None,) if spec.shape is None else spec.shape
            names = [size for size in shape if not isinstance(size, int)]
            if not all(name in sources for name in names):
                self.is_known = False
                continue
            known = math.prod(size for size in shape if isinstance(size, int))
            size = known * _bytes_of(spec.dtype)
            if names:
                self._open.append((size, [sources[str(name)] for name in names]))
            else:
                self._fixed += size

    def of(self, feeds: Feeds) -> int:
        """Return the bytes; outputs of which the shapes do not say count as nothing.

        Args:
            feeds: Feeds of a request, which may be none that the model takes.
        """
        total = self._fixed
        try:
            for size, axes in self._open:
                for name, axis in axes:
                    size *= feeds[name].shape[axis]
                total += size
        except (KeyError, IndexError):
            # Whoever runs it says what is wrong.
            return 0
        return total


def counted_outputs(results: Mapping[str, Array]) -> Mapping[str, Array]:
    """Hold the memory of outputs, as far as nobody knew of it before."""
    if (size := size_of(results)) >= LARGE_BYTES:
        held().made(size)
    return results


def _bytes_of(dtype: str) -> int:
    return _ODD[dtype] if dtype in _ODD else np.dtype(dtype).itemsize
