"""A backend held to its promises: its errors are ours, its answers are what the artifact says.

Backends of others may raise what they like and return what they like. Whoever loads through
``load`` sees the promised errors only, each with the engine and the artifact in it, and no answer
of another name, type or size than the artifact's description has.

Nor is an engine trusted with what it keeps. One whose run failed is opened anew by the next run:
OpenVINO 2026.4.1 gave every later input the answer of a batch that had not fitted into memory. In
a process that was forked the artifact is opened there, by the first call; nothing of the parent's
engine is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import numpy as np

from edgeinfer import forks, log
from edgeinfer.backends.base import (
    Apart,
    Artifact,
    Backend,
    Bound,
    Coverage,
    Covering,
    Executable,
    LoadOptions,
    Renewing,
    Threadless,
    able,
)
from edgeinfer.backends.checks import array_type, fits, one_line
from edgeinfer.backends.device_tensor import DeviceTensor
from edgeinfer.backends.process.sizes import Examples, KnownSizes
from edgeinfer.errors import (
    ClosedError,
    EdgeInferError,
    InputError,
    LoadError,
    MismatchError,
    RunError,
)
from edgeinfer.types import Array, Feeds, TensorSpec

MAX_SHAPES = 1024
"""Sets of shapes that are remembered as good, of inputs and of answers, 250 kB each; a caller with
more pays the full check again."""


def load(
    backend: Backend,
    artifact: Artifact,
    options: LoadOptions,
    *,
    check_answers: bool = True,
    again: Callable[[], Artifact] | None = None,
    placed: Callable[[], AbstractContextManager[object]] = nullcontext,
    examples: Examples = tuple,
) -> Executable:
    """Open an artifact with a backend that may break its promises.

    Args:
        backend: any.
        artifact: what to open.
        options: how.
        check_answers: hold what runs give to the artifact's outputs; off for a caller that judges
            them itself.
        again: gives the artifact once more, where its files may have gone: in another process.
        placed: what the engine is opened in, then and later: where its threads start.
        examples: right answers; an axis whose size they do not share with the input's axis of
            that name is not held to it.

    Raises:
        LoadError: the engine refuses the artifact, ran out of memory, or raised what it should not.
        EdgeInferError: as the backend.
    """
    opening = _Opening(backend, artifact, options, again, placed)
    inner = opening(artifact)
    outputs = artifact.outputs or inner.outputs
    kind = GuardedCovering if isinstance(inner, Covering) else Guarded
    sizes = KnownSizes(artifact.inputs or inner.inputs, outputs, examples)
    return kind(inner, opening, outputs if check_answers else (), sizes)


class _Opening:
    """How an artifact is opened, the first time and again."""

    def __init__(
        self,
        backend: Backend,
        artifact: Artifact,
        options: LoadOptions,
        again: Callable[[], Artifact] | None,
        placed: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._backend, self._options, self._placed = backend, options, placed
        self._again = again or (lambda: artifact)
        self.who = f"{backend.name}: {artifact.path.name}"

    def __call__(self, artifact: Artifact | None = None) -> Executable:
        """Open it.

        Raises:
            LoadError: as ``load``.
            EdgeInferError: as the backend.
        """
        backend = apart_if_forked(self._backend)
        try:
            artifact = self._again() if artifact is None else artifact
            with self._placed():
                inner = backend.load(artifact, self._options)
        except EdgeInferError:
            raise
        except MemoryError as error:
            raise LoadError(
                f"{self.who}: out of memory while it was loaded{_said(error)}"
            ) from error
        # A stranger's backend may raise anything.
        except Exception as error:
            text = f"{self.who}: {_kind(error)} while it was loaded{_said(error)}"
            raise LoadError(text) from error
        if not _leaves_nothing(backend, inner, self._options):
            forks.used(backend.name)
        return inner


def apart_if_forked(backend: Backend) -> Backend:
    """Return the backend in processes of its own where what it left in this one is the parent's."""
    if not forks.is_inherited(backend.name) or (able(backend, Apart) and backend.is_apart):
        return backend
    from edgeinfer.backends.process.isolated import IsolatedBackend

    log.info("%s", why_apart(backend.name))
    return IsolatedBackend(backend.name, reuse=False, note=why_apart(backend.name))


def why_apart(backend: str) -> str:
    """Say why a backend runs in a process of its own here; empty where that is not for a fork."""
    if not forks.is_inherited(backend):
        return ""
    return f"{backend} was used before this process was forked: it runs in one of its own here"


def _leaves_nothing(backend: Backend, inner: Executable, options: LoadOptions) -> bool:
    """Say whether a forked process can use the engine as if it had not run yet."""
    if able(backend, Apart) and backend.is_apart:
        return True
    if options.device != "cpu":
        return False
    return backend.capabilities().forks or (isinstance(inner, Threadless) and inner.is_threadless)


class Guarded:
    """An executable whose errors and answers are checked, and that is opened anew where it must.

    Args:
        inner: what runs.
        opening: opens it again; knows who it is, for messages.
        outputs: what it has to give; empty checks nothing.
        sizes: Sizes of outputs, where inputs decide them.

    Attributes:
        is_closed: whether ``close`` was called.
    """

    def __init__(
        self, inner: Executable, opening: _Opening, outputs: Sequence[TensorSpec], sizes: KnownSizes
    ) -> None:
        self._inner, self._opening, self._who = inner, opening, opening.who
        self.inputs: tuple[TensorSpec, ...] = inner.inputs
        self.outputs: tuple[TensorSpec, ...] = inner.outputs
        self._run: Callable[..., dict[str, Array]] = inner.run
        self._specs = tuple(outputs)
        self._names = [spec.name for spec in outputs]
        self._sizes, self._key = sizes, sizes.key
        self._seen: set[object] = set()
        self._bounds: WeakSet[_Bound] = WeakSet()
        self._lock = forks.rlock()
        self._is_inherited = self.is_closed = False
        forks.watch(self)

    @property
    def inner(self) -> Executable:
        """What runs now; opened anew where what there was may not be used any more."""
        return self._renewed() if self._is_spoiled else self._inner

    def __getattr__(self, name: str) -> Any:
        # What one backend has beyond the protocol: notes, the time of the last run.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def forked(self) -> None:
        """Leave the parent its engine; the first call opens the artifact here."""
        forks.leave_behind(self._inner, *(bound.inner for bound in self._bounds))
        self._is_inherited = True
        self._spoil()

    def run(self, feeds: Feeds, *state: Any) -> dict[str, Array]:
        """Run once; as the backend, with every error one of ours.

        Args:
            feeds: one array for each input.
            *state: what executables that keep states are given.

        Raises:
            RunError: the engine failed, or gave what the artifact does not promise.
            EdgeInferError: as the backend.
        """
        run = self._run
        try:
            results = run(feeds, *state)
        except BaseException as error:
            if self._was_replaced(run, error):
                return self.run(feeds, *state)
            self.failed(error, run)
            if isinstance(error, EdgeInferError) or not isinstance(error, Exception):
                raise
            raise self.failure(error, feeds) from error
        try:
            if self._key(feeds, results) in self._seen:
                return results
        # Not a dict of arrays of these names: the full check says what it is.
        except (AttributeError, KeyError, TypeError, IndexError):
            pass
        try:
            kept = len(getattr(self._inner, "kept", ())) if state else 0
            return self._checked(results, feeds, kept)
        except RunError:
            self.failed(None, run)
            raise

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix buffers; as the backend, with every error one of ours.

        Raises:
            RunError: a buffer does not fit, or the engine failed.
            EdgeInferError: as the backend.
        """
        bound = _Bound(self, inputs, outputs)
        with self._lock:
            self._bounds.add(bound)
        return bound

    def bind_inner(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Bind buffers to what runs now; for what ``bind`` returned.

        Raises:
            RunError: as ``bind``.
        """
        try:
            return self.inner.bind(inputs, outputs)
        except EdgeInferError:
            raise
        except Exception as error:
            raise self.failure(error, inputs) from error

    def close(self) -> None:
        """Free the engine; an error that is not ours is one of the engine's.

        Raises:
            RunError: the engine failed.
        """
        with self._lock:
            self.is_closed = True
            if self._is_inherited:
                # Nothing was opened here, and the parent's is not ours to close.
                return
        try:
            self._inner.close()
        except EdgeInferError:
            raise
        except Exception as error:
            text = f"{self._who}: {_kind(error)} while it was closed{_said(error)}"
            raise RunError(text) from error

    def failed(self, error: BaseException | None, run: object = None) -> None:
        """Have the next run open the artifact anew, unless the engine never saw the inputs.

        Args:
            error: how a run failed; None where its answer was none.
            run: what failed; None for what runs now.
        """
        if isinstance(error, InputError | ClosedError):
            return
        if isinstance(self._inner, Renewing):
            if error is None:
                self._inner.renew()
            return
        with self._lock:
            if run in (None, self._run) and not self._is_spoiled:
                self._spoil()

    @property
    def _is_spoiled(self) -> bool:
        """Say whether the engine must be opened anew before it runs."""
        return self._run == self._run_anew

    def _spoil(self) -> None:
        # One step, between whose halves no Ctrl-C can come.
        self._run = self._run_anew
        for bound in list(self._bounds):
            bound.renew()

    def _was_replaced(self, run: object, error: BaseException) -> bool:
        """Say whether a run met an engine that another thread had just given up."""
        return isinstance(error, ClosedError) and run != self._run and not self.is_closed

    def _run_anew(self, feeds: Feeds, *state: Any) -> dict[str, Array]:
        """Stand in for the engine's run until it was opened anew."""
        self._renewed()
        if state:
            raise RunError(
                f"{self._who}: the states that it kept are lost, with a run that failed or in "
                "another process: reset() begins anew"
            )
        return self.run(feeds)

    def _renewed(self) -> Executable:
        """Open the artifact once more, after what is there is given up.

        Raises:
            RunError: it cannot be opened now; the next call tries again.
            ClosedError: after ``close``.
        """
        with self._lock:
            if not self._is_spoiled:
                return self._inner
            if self.is_closed:
                raise ClosedError(f"{self._who}: used after close()")
            if not self._is_inherited:
                # First, since memory may be short.
                try:
                    self._inner.close()
                except Exception as error:
                    log.warning("%s could not be closed: %s", self._who, one_line(error))
            try:
                inner = self._opening()
            except EdgeInferError as error:
                why = "in a forked process" if self._is_inherited else "after a run that failed"
                text = f"{self._who}: it could not be opened anew {why}: {one_line(error)}"
                raise RunError(f"{text}; the next run tries again") from error
            self._inner, self._is_inherited = inner, False
            self._run = inner.run
            return inner

    def failure(self, error: Exception, feeds: Feeds) -> RunError:
        """Return the error that says what the engine raised, and on what."""
        arrays = [f"{name!r} {array.dtype}{list(array.shape)}" for name, array in feeds.items()]
        given = ", ".join(arrays) or "no inputs"
        what = "out of memory" if isinstance(error, MemoryError) else _kind(error)
        hint = "; smaller inputs or fewer models at once need less"
        hint = hint if isinstance(error, MemoryError) else ""
        return RunError(f"{self._who}: {what} in a run on {given}{_said(error)}{hint}")

    def _checked(self, results: Any, feeds: Feeds, kept: int = 0) -> dict[str, Array]:
        """Return the outputs that were promised; as many as are kept as states stay inside."""
        if not self._specs:
            return dict(results)
        if not isinstance(results, Mapping):
            raise MismatchError(
                f"{self._who}: expected outputs by name, the engine gave {type(results).__name__}"
            )
        made: dict[str, Array] = self._sizes.settled(feeds, dict(results))
        given = [spec for spec in self._specs if not kept or spec.name in made]
        if len(given) < len(self._specs) - kept:
            raise MismatchError(f"{self._who}: the engine gave {list(made)} of {self._names}")
        for spec in given:
            if fault := _fault(spec, made):
                raise MismatchError(f"{self._who}: output {spec.name!r}: {fault}")
        if extra := [name for name in made if name not in self._names]:
            raise MismatchError(
                f"{self._who}: the engine gave outputs that the model has not: {extra}"
            )
        if fault := self._sizes.fault(feeds, made):
            raise MismatchError(f"{self._who}: {fault}")
        if len(given) < len(self._specs):
            return made
        if len(self._seen) >= MAX_SHAPES:
            self._seen.clear()
        self._seen.add(self._key(feeds, made))
        return made


class GuardedCovering(Guarded):
    """One that knows how much of it runs in the engine's fast part."""

    def coverage(self) -> Coverage | None:
        """As the backend."""
        inner = self.inner
        return inner.coverage() if isinstance(inner, Covering) else None


class _Bound:
    """Bound buffers whose errors are ours, bound once more where the engine is opened anew."""

    def __init__(self, owner: Guarded, inputs: Feeds, outputs: Feeds) -> None:
        self._owner = owner
        self.inputs, self.outputs = inputs, outputs
        self.inner: Callable[[], None] = owner.bind_inner(inputs, outputs)

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        inner = self.inner
        try:
            inner()
        except BaseException as error:
            owner = self._owner
            if isinstance(error, ClosedError) and not owner.is_closed:
                # Another thread's run failed, and the engine was given up meanwhile.
                self._anew()
                return
            if inner == self.inner:
                owner.failed(error)
            if isinstance(error, EdgeInferError) or not isinstance(error, Exception):
                raise
            raise owner.failure(error, self.inputs) from error

    def renew(self) -> None:
        """Bind the buffers again before the next run."""
        self.inner = self._anew

    def _anew(self) -> None:
        self.inner = self._owner.bind_inner(self.inputs, self.outputs)
        self()


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
