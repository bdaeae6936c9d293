"""One bundle, ready to run on what its records say."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.headrules import FOLDER
from edgeinfer.bundle.opening import OPENINGS, openings
from edgeinfer.errors import EdgeInferError, RunError, UsageError
from edgeinfer.heads import Head, files_of
from edgeinfer.runtime.pipelines.code import open_code
from edgeinfer.runtime.session import Session, load
from edgeinfer.types import (
    Array,
    ConstantInput,
    Preprocessing,
    StateInput,
    TensorSpec,
    Worded,
)

if TYPE_CHECKING:
    from typing import Self


class Runs(Protocol):
    """What a model needs of a session."""

    def run(self, feeds: Mapping[str, Array], /) -> dict[str, Array]:
        """Run once with all inputs."""
        ...

    def close(self) -> None:
        """Free the engine."""
        ...


class OwnedModels:
    """A pipeline closes its models with itself.

    Attributes:
        models: In the order in which they run.
    """

    models: list[PipelineModel]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the engines."""
        for model in self.models:
            model.close()


class PipelineModel:
    """A session with what its inputs and outputs mean.

    Args:
        path: Path of the bundle.
        runs: who runs it, where that is no session of its own; closed with the model.
        **options: Options of ``edgeinfer.load``.

    Attributes:
        runs: the loaded model.
        head: what its outputs mean.
        labels: names of classes.
        files: contents of the files that records name.
        code: functions that the bundle brings for this CPU; None if it has none that can be used.
        without_code: why not.
        around: what stands before and behind the engine, a line each.
        inputs: specs of the inputs that are not filled by themselves, with their records.
        outputs: names of the outputs.

    Raises:
        UsageError: the bundle does not say what an input or its outputs mean.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, runs: Runs | None = None, **options: Any
    ) -> None:
        self.path = os.fspath(path)
        self.around: list[str] = []
        self._constants: dict[str, Array] = {}
        self._states: dict[str, tuple[TensorSpec, str]] = {}
        self.inputs: list[tuple[TensorSpec, Preprocessing]] = []
        # Opened and judged once: what runs below is what was judged.
        verify: bool | Literal["later"] = "later" if options.pop("verify", True) else False
        bundle = Bundle.open(path, verify=verify, **openings(options))
        self.digest = bundle.digest
        try:
            self._read(bundle)
            self.code, self.without_code = open_code(bundle)
            rest = {k: v for k, v in options.items() if k not in OPENINGS}
            self.runs = load(bundle, **rest) if runs is None else runs
        except BaseException:
            bundle.close()
            raise

    def _read(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self.head: Head = _head(self.path, manifest.head)
        self.labels = manifest.labels
        kept = {state.input: StateInput(state.output) for state in manifest.states}
        records: dict[str, Preprocessing] = {**kept, **manifest.preprocessing}
        wanted = {r.vocabulary for r in records.values() if isinstance(r, Worded)}
        wanted.update(files_of(self.head))
        by_path = {f.path: f for f in manifest.extra_files}
        self.files = {name: bundle.read(by_path[f"{FOLDER}/{name}"]) for name in wanted}
        missing = [spec.name for spec in manifest.inputs if spec.name not in records]
        if missing:
            raise UsageError(
                f"{self.path}: no record says what input {missing[0]!r} takes; {_HINT}"
            )
        for spec in manifest.inputs:
            self._place(spec, records[spec.name])
        if not self.inputs:
            raise UsageError(f"{self.path}: no input takes an image, a recording or a text")
        self.outputs = tuple(spec.name for spec in manifest.outputs)

    @property
    def spec(self) -> TensorSpec:
        """The first input that is not filled by itself."""
        return self.inputs[0][0]

    @property
    def record(self) -> Preprocessing:
        """How it is prepared."""
        return self.inputs[0][1]

    @property
    def is_stateful(self) -> bool:
        """Whether a call depends on the one before."""
        return bool(self._states)

    def fresh(self) -> dict[str, Array]:
        """Return the states of the first call."""
        return {name: _zeros(spec) for name, (spec, _) in self._states.items()}

    def run(self, feeds: Mapping[str, Array], states: dict[str, Array]) -> dict[str, Array]:
        """Run once; the states are replaced by those that the next call needs."""
        outputs = self.runs.run({**self._constants, **states, **feeds})
        for name, (_, output) in self._states.items():
            states[name] = outputs[output]
        return outputs

    def output(self, outputs: Mapping[str, Array]) -> Array:
        """Return what the head reads, where that is one output."""
        name = getattr(self.head, "output", None)
        return outputs[self.outputs[0] if name is None else name]

    def scalar(self, outputs: Mapping[str, Array]) -> float:
        """Return the head's output as the number that it is.

        Raises:
            RunError: it is none.
        """
        array = self.output(outputs)
        if array.size != 1:
            raise RunError(f"{self.path}: head: expected one number, received {list(array.shape)}")
        return float(array.reshape(-1)[0])

    @property
    def session(self) -> Session:
        """The session, where it is the model's own.

        Raises:
            UsageError: somebody else runs it.
        """
        if not isinstance(self.runs, Session):
            raise UsageError(f"{self.path}: it has no session of its own")
        return self.runs

    def close(self) -> None:
        """Free the engine."""
        self.runs.close()

    def _place(self, spec: TensorSpec, record: Preprocessing) -> None:
        if isinstance(record, ConstantInput):
            self._constants[spec.name] = _constant(self.path, spec, record)
        elif isinstance(record, StateInput):
            self._states[spec.name] = (spec, record.output)
        else:
            self.inputs.append((spec, record))


@contextmanager
def as_head_says(path: str) -> Iterator[None]:
    """Read outputs: shapes and numbers that nobody foresaw are the model's fault.

    Raises:
        RunError: as said.
    """
    try:
        yield
    except EdgeInferError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        reason = " ".join(str(e).split())[:160] or type(e).__name__
        raise RunError(f"{path}: the outputs are not what its head says: {reason}") from e


_HINT = "convert the model again with --pipeline FILE"


def _head(path: str, head: Head | None) -> Head:
    if head is None:
        raise UsageError(f"{path}: the bundle does not say what its outputs mean; {_HINT}")
    return head


def shaped(array: Array, spec: TensorSpec) -> Array:
    """Add the axes of one element that an input has: a batch in front, channels at either end.

    Raises:
        UsageError: the input has axes that cannot be.
    """
    missing = (array.ndim + 1 if spec.shape is None else len(spec.shape)) - array.ndim
    if missing == 0:
        return array
    if missing == 1:
        return array[np.newaxis]
    if missing == 2 and spec.shape is not None and spec.shape[-1] == 1:
        return array[np.newaxis, ..., np.newaxis]
    if missing == 2:
        return array[np.newaxis, np.newaxis]
    raise UsageError(f"input {spec}: cannot take {list(array.shape)}")


def _zeros(spec: TensorSpec) -> Array:
    """Return a first state; sizes that the model leaves open are 1."""
    shape = [d if isinstance(d, int) else 1 for d in spec.shape or ()]
    if math.prod(shape) > _MOST_STATE:
        raise UsageError(f"state {spec}: more than {_MOST_STATE} values")
    return np.zeros(shape, spec.dtype)


_MOST_CONSTANT, _MOST_STATE = 1 << 22, 1 << 28
"""Values of an input that is always the same, which the file may say with one, and of a state."""


def _constant(path: str, spec: TensorSpec, record: ConstantInput) -> Array:
    shape = [d if isinstance(d, int) else 1 for d in spec.shape or ()]
    values = np.asarray(record.values, np.float64)
    count = math.prod(shape)
    if count > _MOST_CONSTANT:
        raise UsageError(f"{path}: input {spec}: {count} values, at most {_MOST_CONSTANT} are made")
    if len(values) not in (1, count):
        raise UsageError(f"{path}: input {spec}: expected 1 or {count} values, got {len(values)}")
    exact = values.astype(spec.dtype)
    if spec.dtype.startswith(("int", "uint")) and (exact != values).any():
        raise UsageError(f"{path}: input {spec}: {record.values} are no such integers")
    return np.ascontiguousarray(np.broadcast_to(exact, count).reshape(shape))
