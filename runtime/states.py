"""What a session remembers: outputs that are inputs of the next run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.base import able
from edgeinfer.bundle.manifest import StateRecord
from edgeinfer.bundle.vectors import dtype_of
from edgeinfer.errors import InputError, RunError
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.types import Array, Feeds, TensorSpec

Execute = Callable[[Feeds], dict[str, Array]]


@runtime_checkable
class Keeping(Protocol):
    """An executable that can keep the states of its model by itself, so that none is copied."""

    kept: tuple[str, ...]
    """Names of the inputs that it keeps."""

    def make_state(self) -> Any:
        """Return states of zeros."""
        ...

    def load_state(self, state: Any, feeds: Feeds) -> dict[str, Array]:
        """Replace what is fed; return the other feeds."""
        ...

    def run(self, feeds: Feeds, state: Any = None) -> dict[str, Array]:
        """Run once without the states among the feeds and results."""
        ...


class SessionStates:
    """The states of one session; runs that use them wait for each other.

    Args:
        records: which output is which input of the next run.
        inputs: Inputs of the model.
        execute: checks its feeds, and runs the model with all inputs.
        executable: what runs it.
        check_finite: refuse NaN and infinity in inputs.
    """

    def __init__(
        self,
        records: Sequence[StateRecord],
        inputs: Sequence[TensorSpec],
        execute: Execute,
        executable: object,
        check_finite: bool,
    ) -> None:
        self.pairs = {r.input: r.output for r in records}
        self._specs = {s.name: s for s in inputs if s.name in self.pairs}
        self._others = tuple(s for s in inputs if s.name not in self.pairs)
        self._execute = execute
        self._keeping = None
        if able(executable, Keeping) and set(executable.kept) == set(self.pairs):
            self._keeping = executable
        self._check = InputCheck(self._others, check_finite)
        self._values: dict[str, Array] = {}
        self._state: Any = None
        self._lost = ""
        self._lock = forks.lock()
        forks.watch(self)

    def forked(self) -> None:
        """Keep the arrays; what an engine kept is in the parent's."""
        if self._state is not None:
            self._lost, self._state = "stayed in the process that this one was forked from", None

    def used_by(self, feeds: object) -> bool:
        """Whether a run leaves a state to the session."""
        return isinstance(feeds, Mapping) and any(name not in feeds for name in self.pairs)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once with what is remembered; states that are given replace it first."""
        given = {name: array for name, array in feeds.items() if name in self.pairs}
        rest = {name: array for name, array in feeds.items() if name not in given}
        with self._lock:
            if self._keeping is not None:
                return self._kept(self._keeping, self._check(rest), given)
            states = {
                name: given[name] if name in given else self._value(spec, rest)
                for name, spec in self._specs.items()
            }
            results = self._execute({**rest, **states})
            self._values = {i: results.pop(o) for i, o in self.pairs.items()}
        return results

    def reset(self, values: Mapping[str, Array] | None = None) -> None:
        """Begin anew, from zeros or from what is given."""
        for name in values or {}:
            if name not in self.pairs:
                known = ", ".join(map(repr, self.pairs))
                raise InputError(name, f"one of the states {known}", "an unknown name")
        with self._lock:
            self._values = dict(values or {})
            self._state, self._lost = None, ""
            if self._keeping is not None and values:
                self._state = self._keeping.make_state()
                self._keeping.load_state(self._state, self._values)

    def _kept(self, executable: Keeping, feeds: Feeds, given: Feeds) -> dict[str, Array]:
        if self._lost:
            raise RunError(f"session: its states {self._lost}: reset() begins anew")
        if self._state is None:
            self._state = executable.make_state()
        try:
            if given:
                executable.load_state(self._state, given)
            return executable.run(feeds, self._state)
        except InputError:
            raise
        except BaseException:
            # Some may be those after the run, others those before it.
            self._lost, self._state = "went with a run that failed", None
            raise

    def _value(self, spec: TensorSpec, feeds: Feeds) -> Array:
        if spec.name in self._values:
            return self._values[spec.name]
        return zeros(spec, self._others, feeds)


def zeros(spec: TensorSpec, others: Sequence[TensorSpec], feeds: Feeds) -> Array:
    """Return a state's first value.

    Args:
        spec: Specification of the state.
        others: inputs that are no states, whose arrays say how large its open axes are.
        feeds: these arrays.

    Raises:
        InputError: an axis stays open.
    """
    sizes = {
        dim: size
        for other in others
        if other.name in feeds
        for dim, size in zip(other.shape or (), np.shape(feeds[other.name]), strict=False)
        if isinstance(dim, str)
    }
    shape = [dim if isinstance(dim, int) else sizes.get(dim or "") for dim in spec.shape or ()]
    if spec.shape is None or None in shape:
        raise InputError(
            spec.name, str(spec), "nothing", "its first value sets the sizes that are open"
        )
    return np.zeros([s for s in shape if s is not None], dtype_of(spec.dtype))


def passing_on(
    call: Callable[[], None], pairs: Mapping[str, str], inputs: Feeds, outputs: Feeds
) -> Callable[[], None]:
    """Let bound buffers of states be those of the next run."""

    def passed() -> None:
        call()
        for source, result in pairs.items():
            inputs[source][...] = outputs[result]

    return passed
