"""Buffers fixed for engines that give results in memory of their own: each run copies them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeinfer.backends.base import Bound
from edgeinfer.backends.checks import check_buffers
from edgeinfer.errors import RunError
from edgeinfer.types import Array, Feeds, TensorSpec


class CopiedBound:
    """A model with its buffers fixed.

    Args:
        run: The run function of the executable.
        inputs: checked buffers, by name.
        outputs: checked buffers, by name; results are copied into them.
    """

    __slots__ = ("_run", "inputs", "outputs")

    def __init__(
        self,
        run: Callable[[Feeds], Mapping[str, Array]],
        inputs: dict[str, Array],
        outputs: dict[str, Array],
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._run = run

    def __call__(self) -> None:
        """Run once over the bound buffers.

        Raises:
            RunError: the run failed, or a result does not fit its buffer.
        """
        for name, array in self._run(self.inputs).items():
            buffer = self.outputs[name]
            if array.shape != buffer.shape:
                raise RunError(
                    f"bind: output {name!r}: the buffer has shape {buffer.shape}, "
                    f"the result {array.shape}"
                )
            buffer[...] = array


class Copying(ABC):
    """An executable that gives results in memory of its own.

    Attributes:
        inputs: Inputs of the model.
        outputs: Outputs of the model.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    _dtypes: Mapping[str, np.dtype[Any]]

    @abstractmethod
    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller."""

    @abstractmethod
    def _opened(self) -> Any:
        """Return the loaded model, or raise ClosedError."""

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; results are copied into them.

        Raises:
            RunError: a buffer does not fit.
            ClosedError: after ``close``.
        """
        self._opened()
        ins = check_buffers("input", self.inputs, inputs, self._dtypes)
        outs = check_buffers("output", self.outputs, outputs, self._dtypes)
        return CopiedBound(self.run, ins, outs)
