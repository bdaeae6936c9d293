"""Buffers fixed for engines that give results in memory of their own: each run copies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edgeinfer.errors import RunError
from edgeinfer.types import Array, Feeds


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
