"""A backend held to its promises: its errors are ours, its answers are what the artifact says.

Backends of others may raise what they like and return what they like. Whoever loads through
``load`` sees the promised errors only, each with the engine and the artifact in it, and no answer
of another name, type or size than the artifact's description has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.backends.base import (
    Artifact,
    Backend,
    Bound,
    Coverage,
    Covering,
    Executable,
    LoadOptions,
)
from edgeinfer.backends.checks import array_type, fits, one_line
from edgeinfer.backends.device_tensor import DeviceTensor
from edgeinfer.errors import EdgeInferError, LoadError, RunError
from edgeinfer.types import Array, Feeds, TensorSpec

_MAX_SHAPES = 4096
"""Sets of shapes remembered as good; an engine with more pays the full check again."""


def load(
    backend: Backend, artifact: Artifact, options: LoadOptions, *, check_answers: bool = True
) -> Executable:
    """Open an artifact with a backend that may break its promises.

    Args:
        backend: any.
        artifact: what to open.
        options: how.
        check_answers: hold what runs give to the artifact's outputs; off for a caller that judges
            them itself.

    Raises:
        LoadError: the engine refuses the artifact, ran out of memory, or raised what it should not.
        EdgeInferError: as the backend.
    """
    who = f"{backend.name}: {artifact.path.name}"
    try:
        inner = backend.load(artifact, options)
    except EdgeInferError:
        raise
    except MemoryError as error:
        raise LoadError(f"{who}: out of memory while it was loaded{_said(error)}") from error
    # A stranger's backend may raise anything.
    except Exception as error:
        raise LoadError(f"{who}: {_kind(error)} while it was loaded{_said(error)}") from error
    outputs = artifact.outputs or inner.outputs
    kind = GuardedCovering if isinstance(inner, Covering) else Guarded
    return kind(inner, who, outputs if check_answers else ())


class Guarded:
    """An executable whose errors and answers are checked.

    Args:
        inner: what runs.
        who: for messages: engine and artifact.
        outputs: what it has to give; empty checks nothing.
    """

    def __init__(self, inner: Executable, who: str, outputs: Sequence[TensorSpec]) -> None:
        self.inner, self._who = inner, who
        self.inputs: tuple[TensorSpec, ...] = inner.inputs
        self.outputs: tuple[TensorSpec, ...] = inner.outputs
        self._run = inner.run
        self._specs = tuple(outputs)
        self._names = [spec.name for spec in outputs]
        self._seen: set[tuple[tuple[int, ...], ...]] = set()

    def __getattr__(self, name: str) -> Any:
        # What one backend has beyond the protocol: notes, the time of the last run.
        return getattr(self.inner, name)

    def run(self, feeds: Feeds, *state: Any) -> dict[str, Array]:
        """Run once; as the backend, with every error one of ours.

        Args:
            feeds: one array for each input.
            *state: what executables that keep states are given.

        Raises:
            RunError: the engine failed, or gave what the artifact does not promise.
            EdgeInferError: as the backend.
        """
        try:
            results = self._run(feeds, *state)
        except EdgeInferError:
            raise
        except Exception as error:
            raise self._failure(error, feeds) from error
        try:
            if tuple([results[name].shape for name in self._names]) in self._seen:
                return results
        # Not a dict of arrays of these names: the full check says what it is.
        except (AttributeError, KeyError, TypeError):
            pass
        self._check(results, len(getattr(self.inner, "kept", ())) if state else 0)
        return results

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix buffers; as the backend, with every error one of ours.

        Raises:
            RunError: a buffer does not fit, or the engine failed.
            EdgeInferError: as the backend.
        """
        try:
            bound = self.inner.bind(inputs, outputs)
        except EdgeInferError:
            raise
        except Exception as error:
            raise self._failure(error, inputs) from error
        return _Bound(bound, self._failure, inputs, outputs)

    def close(self) -> None:
        """Free the engine; an error that is not ours is one of the engine's.

        Raises:
            RunError: the engine failed.
        """
        try:
            self.inner.close()
        except EdgeInferError:
            raise
        except Exception as error:
            text = f"{self._who}: {_kind(error)} while it was closed{_said(error)}"
            raise RunError(text) from error

    def _failure(self, error: Exception, feeds: Feeds) -> RunError:
        arrays = [f"{name!r} {array.dtype}{list(array.shape)}" for name, array in feeds.items()]
        given = ", ".join(arrays) or "no inputs"
        what = "out of memory" if isinstance(error, MemoryError) else _kind(error)
        hint = "; smaller inputs or fewer models at once need less"
        hint = hint if isinstance(error, MemoryError) else ""
        return RunError(f"{self._who}: {what} in a run on {given}{_said(error)}{hint}")

    def _check(self, results: Any, kept: int = 0) -> None:
        """See to the outputs; as many as are kept as states stay inside."""
        if not self._specs:
            return
        if not isinstance(results, Mapping):
            raise RunError(
                f"{self._who}: expected outputs by name, the engine gave {type(results).__name__}"
            )
        given = [spec for spec in self._specs if not kept or spec.name in results]
        if len(given) < len(self._specs) - kept:
            raise RunError(f"{self._who}: the engine gave {list(results)} of {self._names}")
        for spec in given:
            if fault := _fault(spec, results):
                raise RunError(f"{self._who}: output {spec.name!r}: {fault}")
        if extra := [name for name in results if name not in self._names]:
            raise RunError(f"{self._who}: the engine gave outputs that the model has not: {extra}")
        if len(given) < len(self._specs):
            return
        if len(self._seen) >= _MAX_SHAPES:
            self._seen.clear()
        self._seen.add(tuple([results[name].shape for name in self._names]))


class GuardedCovering(Guarded):
    """One that knows how much of it runs in the engine's fast part."""

    def coverage(self) -> Coverage | None:
        """As the backend."""
        inner = self.inner
        return inner.coverage() if isinstance(inner, Covering) else None


class _Bound:
    """Bound buffers whose errors are ours."""

    def __init__(
        self,
        inner: Bound,
        failure: Callable[[Exception, Feeds], RunError],
        inputs: Feeds,
        outputs: Feeds,
    ) -> None:
        self._inner, self._failure = inner, failure
        self.inputs, self.outputs = inputs, outputs

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        try:
            self._inner()
        except EdgeInferError:
            raise
        except Exception as error:
            raise self._failure(error, self.inputs) from error


def _fault(spec: TensorSpec, results: Mapping[str, Any]) -> str:
    """Say what is wrong with an output; empty when nothing is."""
    if spec.name not in results:
        there = ", ".join(map(repr, results)) or "none"
        return f"expected {spec}, the engine did not give it (it gave {there})"
    array = results[spec.name]
    if not isinstance(array, np.ndarray | DeviceTensor):
        return f"expected an array, the engine gave {type(array).__name__}"
    if array.dtype != array_type(spec.dtype):
        return f"expected {spec.dtype}, the engine gave {array.dtype}"
    if spec.shape is not None and not fits(spec.shape, array.shape):
        return f"expected {spec}, the engine gave shape {list(array.shape)}"
    return ""


def _kind(error: Exception) -> str:
    return f"unexpected {type(error).__name__}"


def _said(error: Exception) -> str:
    return f": {one_line(error)}" if str(error).strip() else ""
