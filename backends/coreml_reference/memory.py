"""States that a package keeps between runs, where the model has an input and an output for each.

Whoever runs a model as it is gives its states as inputs and takes them as outputs; the package has
neither. Then a state is written before the run and read after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.backends.base import Artifact
from edgeinfer.backends.checks import array_type
from edgeinfer.bounded import parse_json
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, TensorSpec

STATES = "edgeinfer.states"
"""Metadata key: JSON with ``input``, ``output`` and ``dtype`` of the model by the state's name."""


@dataclass(frozen=True, slots=True)
class StateMemory:
    """One state.

    Attributes:
        name: in the package.
        input: Input of the model; the next value comes in there.
        output: Output of the model; the new value goes out there.
    """

    name: str
    input: TensorSpec
    output: TensorSpec


@dataclass(frozen=True, slots=True)
class Memories:
    """All states of a package that its artifact describes as inputs and outputs."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    every: tuple[StateMemory, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, str], artifact: Artifact) -> Memories:
        """Read what the package's metadata says.

        Raises:
            LoadError: it is malformed.
        """
        inputs = {s.name: s for s in artifact.inputs}
        outputs = {s.name: s for s in artifact.outputs}
        try:
            recorded = parse_json(metadata.get(STATES, "{}"))
            pairs = [(str(k), str(v["input"]), str(v["output"])) for k, v in recorded.items()]
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise LoadError(f"the package's metadata {STATES!r} cannot be read") from error
        every = tuple(
            StateMemory(name, inputs[i], outputs[o])
            for name, i, o in pairs
            if i in inputs and o in outputs
        )
        taken, given = {m.input.name for m in every}, {m.output.name for m in every}
        return cls(
            tuple(s for s in artifact.inputs if s.name not in taken),
            tuple(s for s in artifact.outputs if s.name not in given),
            every,
        )

    def write(self, feeds: Feeds, into: Callable[[str, Array], None]) -> dict[str, Array]:
        """Hand each state that is given to ``into``, in half precision; return the rest."""
        names = {m.input.name: m.name for m in self.every}
        for source, name in names.items():
            if source in feeds:
                value = np.asarray(feeds[source], np.float16)
                into(name, value.reshape(value.shape or (1,)))
        return {name: array for name, array in feeds.items() if name not in names}

    def read(self, out_of: Callable[[str], Any]) -> dict[str, Array]:
        """Return the new values as outputs of the model."""
        found = {}
        for memory in self.every:
            spec = memory.output
            array = np.asarray(out_of(memory.name)).astype(array_type(spec.dtype))
            found[spec.name] = array.reshape(()) if spec.shape == () else np.array(array)
        return found
