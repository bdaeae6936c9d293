"""``load`` and ``Session``: one call on every device."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar, get_args

from edgeinfer import forks
from edgeinfer._version import __version__
from edgeinfer.backends.base import (
    Apart,
    Executable,
    Hosted,
    LoadOptions,
    Noting,
    Pooling,
    TakingDeviceTensors,
    able,
)
from edgeinfer.backends.checks import MOST_THREADS
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.opening import openings, said
from edgeinfer.bundle.values import fits
from edgeinfer.errors import ClosedError, InputError, UsageError
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.options import called_with, values_of
from edgeinfer.printable import visible
from edgeinfer.runtime.choice import choose
from edgeinfer.runtime.chosen import Changing, Choice
from edgeinfer.runtime.inputs import InputCheck, ValueCheck, value_check
from edgeinfer.runtime.lifetime import Lifetime
from edgeinfer.runtime.options import Calls, OnCrash, SessionOptions, stats_wanted
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    # What most sessions never do is imported where it is done: a load is quick without it.
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Self

    from edgeinfer.runtime.bound import BoundSession
    from edgeinfer.runtime.report import SessionReport, Verification
    from edgeinfer.runtime.states import SessionStates
    from edgeinfer.runtime.telemetry import Recorder, SessionStats

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST_LABEL = 100
"""Characters of a model's name in counters."""

_CLOSED = "session: used after close()"


@called_with(SessionOptions)
def load(options: SessionOptions) -> Session:
    """Open a bundle and make ready what is best on this machine.

    The first load of a bundle checks and times what could win on the bundled vectors and remembers
    the result for this machine; later loads take the winner at once.

    {options}

    Raises:
        UsageError: no such bundle, backend or policy.
        SignatureError: the bundle is not signed by a trusted key.
        DecryptionError: it is encrypted, and there is no key, another one, or it is altered.
        BundleError: the bundle is damaged, altered or unsafe.
        NotAvailableError: nothing in it can run here, or not as asked; says why for each.
        LoadError: an engine refuses its artifact.
    """
    asked = _consistent(options)
    bundle = _opened(asked)
    try:
        if asked.history is not None:
            choice = choose(bundle, asked, asked.history)
        else:
            with ProfileDB() as own:
                choice = choose(bundle, asked, own)
        if bundle.checks_later:
            bundle.check()
        else:
            bundle.keep_counters()
        session = Session(
            bundle,
            choice,
            policy=asked.policy,
            check_finite=asked.check_finite,
            stats=stats_wanted(asked.stats),
        )
    except BaseException:
        bundle.close()
        raise
    if isinstance(choice.executable, Changing):
        from edgeinfer.runtime.settling import SettlingExecutable

        if isinstance(running := choice.executable, SettlingExecutable):
            running.settle(partial(_raced, bundle, asked), partial(_refused, bundle, choice))
    return session


def _raced(bundle: Bundle, asked: SessionOptions, unwanted: Callable[[], bool]) -> Choice:
    """Measure what a session that began early has left to do."""
    asked = replace(asked, measure=True)
    if asked.history is not None:
        return choose(bundle, asked, asked.history, unwanted=unwanted)
    with ProfileDB() as own:
        return choose(bundle, asked, own, unwanted=unwanted)


def _refused(bundle: Bundle, now: Choice, winner: Choice) -> str:
    """Say why a winner cannot take over in a session made for another engine; else nothing."""
    first, other = now.candidate.pair, winner.candidate.pair
    if bundle.manifest.states:
        return "this session keeps states"
    if first.device != other.device:
        return f"this session's tensors are on a {first.device}"
    checks = value_check(bundle.manifest, winner.variant, other.backend)
    if checks is not None and first != other:
        mine = value_check(bundle.manifest, now.variant, first.backend)
        if mine is None or not mine.covers(checks):
            return "it takes fewer values than this session"
    return ""


def _consistent(asked: SessionOptions) -> SessionOptions:
    """Refuse what contradicts itself, and say what follows from what."""
    threads = asked.threads
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        expected = "at least 1" if threads < 1 else f"at most {MOST_THREADS}"
        raise UsageError(f"threads: expected {expected}, received {threads}")
    for name, known in (("on_crash", get_args(OnCrash)), ("calls", get_args(Calls))):
        if (value := getattr(asked, name)) not in known:
            raise UsageError(f"{name}: expected {' or '.join(known)}, received {value!r}")
    if asked.measure not in (True, False, "background"):
        raise UsageError(f"measure: expected a bool or 'background', received {asked.measure!r}")
    if asked.measure == "background" and asked.on_crash == "next":
        raise UsageError("measure='background': a session hands over once, so not with on_crash")
    isolate = asked.isolate or asked.on_crash == "next"
    for name in ("run_timeout_s", "load_timeout_s", "memory_mb"):
        limit = getattr(asked, name)
        if limit is not None and not (isolate and 0 < limit < math.inf):
            raise UsageError(f"{name}: expected a number above 0, together with isolate=True")
    return replace(asked, isolate=isolate, strict=asked.strict and not asked.allow_fallback)


def _opened(asked: SessionOptions) -> Bundle:
    """Open a bundle, unless that was done."""
    opening = openings(values_of(asked))
    if not isinstance(asked.path, Bundle):
        return Bundle.open(asked.path, verify="later" if asked.verify else False, **opening)
    if given := said(opening):
        raise UsageError(f"{given[0]}: the bundle is open already; say so where it is opened")
    return asked.path


class Session(forks.Here):
    """A model, loaded. Threads may share it; made by ``load``.

    >>> session = load("model.edge")                            # doctest: +SKIP
    >>> y = session(x)                                          # doctest: +SKIP

    Attributes:
        inputs: what the model takes.
        outputs: what it gives.
        life: Life of the engine, shared with what was bound.
    """

    def __init__(
        self,
        bundle: Bundle,
        choice: Choice,
        *,
        policy: str = "latency",
        check_finite: bool = False,
        stats: bool = False,
    ) -> None:
        self.inputs: tuple[TensorSpec, ...] = bundle.manifest.inputs
        self.outputs: tuple[TensorSpec, ...] = bundle.manifest.outputs
        self._bundle = bundle
        self._choice = choice
        self._policy = policy
        states = bundle.manifest.states
        kept = {state.input for state in states}
        self._names = tuple(spec.name for spec in self.inputs if spec.name not in kept)
        running = choice.executable
        self._there = able(running, TakingDeviceTensors) and running.takes_device_tensors
        self._check: Callable[[Feeds], Feeds] = InputCheck(
            self.inputs, check_finite, there=self._there
        )
        self._values = value_check(bundle.manifest, choice.variant, choice.candidate.pair.backend)
        if self._values is not None:
            self._check = _both(self._check, self._values)
        self._lock = forks.lock()
        self._pool: ThreadPoolExecutor | None = None
        executable = choice.executable
        self._concurrent = choice.concurrent
        self._turn = None if choice.concurrent else forks.lock()
        self._execute: Callable[[Feeds], dict[str, Array]] = _in_turn(executable.run, self._turn)
        self._recorder: Recorder | None = None
        if stats:
            from edgeinfer.runtime.telemetry import Recorder

            self._recorder = Recorder(_labels(bundle, choice))
            self._execute = self._recorder.watch(_after(self._check, self._execute))
            self._check = _as_given
        self._memory: SessionStates | None = None
        if states:
            from edgeinfer.runtime.states import SessionStates

            execute = _after(self._check, self._execute)
            self._memory = SessionStates(states, self.inputs, execute, executable, check_finite)
        self._life = life = Lifetime(_freeing(executable, bundle))
        self._enter, self._leave = life.running.append, life.running.pop
        # A session that is dropped without close() frees its engine and files all the same.
        weakref.finalize(self, life.close).atexit = False
        forks.watch(self)

    def forked(self) -> None:
        """Have other threads of our own; all that is below knows its process by itself."""
        if self._pool is not None:
            forks.leave_behind(self._pool)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pair = self._choice.current[0].pair
        return f"<Session {self._bundle.manifest.name!r}: {pair}>"

    @property
    def _pooled(self) -> bool:
        """Whether its runs take their memory from what all pooled sessions share."""
        executable = self._choice.executable
        return able(executable, Pooling) and executable.pooled

    @property
    def _process_mb(self) -> float:
        """What an engine in a process of its own holds there; 0 for one in this process."""
        executable = self._choice.executable
        return executable.process_mb if able(executable, Hosted) else 0.0

    def __call__(self, *args: Array, **named: Array) -> Array | tuple[Array, ...]:
        """Run once.

        Args:
            *args: inputs in the model's order, states left out.
            **named: inputs by name; ``run`` takes names that Python cannot spell.

        Returns:
            The output, or a tuple of all in the model's order when there are several.

        Raises:
            InputError: an input is not what the model takes.
            RunError: the engine failed.
            ClosedError: the session was closed.
        """
        if len(args) > len(self._names):
            takes = f"{len(self._names)} inputs ({', '.join(map(repr, self._names))})"
            raise InputError("*", takes, f"{len(args)} arguments")
        feeds = dict(zip(self._names, args, strict=False))
        for name, array in named.items():
            if name in feeds:
                raise InputError(name, "one value", "two: by position and by name")
            feeds[name] = array
        results = tuple(self.run(feeds).values())
        return results[0] if len(results) == 1 else results

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once.

        Args:
            feeds: an array for every input, by name. Strided and read-only arrays are fine; lists
                and numbers too where the input's type holds them exactly; tensors of PyTorch, CuPy
                and others are shared by DLPack, on an NVIDIA device too where the engine runs
                there. Where the model has
                states, they may be left out: the session then keeps them from run to run, from
                zeros on; one that is given replaces what was kept.

        Returns:
            The outputs by name, in the model's order, without states that the session keeps; owned
            by the caller. They are arrays, or where an input lay on a device, tensors that stay on
            it (``torch.from_dlpack(y)`` shares one, ``y.numpy()`` copies it).

        Raises:
            InputError: an input is not what the model takes.
            RunError: the engine failed.
            ClosedError: the session was closed.
        """
        try:
            self._enter(None)
            if self._life.closed:
                raise ClosedError(_CLOSED)
            if self._memory is not None and self._memory.used_by(feeds):
                return self._memory.run(feeds)
            return self._execute(self._check(feeds))
        finally:
            self._leave()
            if self._life.closed:
                self._life.release()

    def reset(self, states: Mapping[str, Array] | None = None) -> None:
        """Forget what the session keeps from run to run: a new recording, a new conversation.

        Args:
            states: what to begin with instead of zeros, by input.

        Raises:
            InputError: the model has no such state.
            UsageError: it has none at all.
        """
        if self._memory is None:
            raise UsageError("session: the model has no states; convert it with --state IN:OUT")
        self._memory.reset(states)

    def bind(
        self,
        inputs: Mapping[str, Array] | None = None,
        outputs: Mapping[str, Array] | None = None,
    ) -> BoundSession:
        """Fix buffers for repeated runs without copies, checks or allocation.

        Buffers that are not given are made where their size is known: every input of fixed size,
        and every output whose size is fixed or follows from a named axis of an input. For a dynamic
        model give inputs of the size you want; where an output's size depends on the data, run once
        and give arrays of the shapes that came out, or use ``run``. Bind again for another size.
        States are copied from their output's buffer to their input's after each call. Buffers may
        be anybody's tensors that DLPack shares, on the engine's own device too; what was started
        on another stream than the default one has to be done before a call.

        >>> bound = session.bind()                              # doctest: +SKIP
        >>> bound.inputs["x"][...] = frame                      # doctest: +SKIP
        >>> y = bound()["y"]                                    # doctest: +SKIP

        Raises:
            InputError: an input's buffer does not fit, or one is needed whose size is open.
            UsageError: the same of an output's; or the model takes or gives strings.
            RunError: the engine cannot use a buffer in place.
            ClosedError: the session was closed.
        """
        from edgeinfer.runtime.bound import BoundSession, checked, input_buffers, output_buffers

        feeds = input_buffers(self.inputs, inputs, there=self._there)
        results = output_buffers(self.inputs, self.outputs, feeds, outputs, there=self._there)
        try:
            self._enter(None)
            if self._life.closed:
                raise ClosedError(_CLOSED)
            bound = self._choice.executable.bind(feeds, results)
        finally:
            self._leave()
            if self._life.closed:
                self._life.release()
        call: Callable[[], None] = bound
        if self._values is not None:
            is_apart = self._choice.current[0].pair.device != "cpu"
            call = checked(bound, self._values, feeds, beside=is_apart)
        if self._memory is not None:
            from edgeinfer.runtime.states import passing_on

            call = passing_on(call, self._memory.pairs, feeds, results)
        call = _in_turn(call, self._turn)
        if self._recorder is not None:
            call = self._recorder.watch(call)
        return BoundSession(call, self, feeds, results)

    def run_async(self, feeds: Feeds) -> Future[dict[str, Array]]:
        """Run once in another thread; leave the arrays alone until the future is done.

        Raises:
            ClosedError: the session was closed.
        """
        from concurrent.futures import ThreadPoolExecutor

        from edgeinfer.pending import Pending

        with self._lock:
            if self._life.closed:
                raise ClosedError(_CLOSED)
            if self._pool is None:
                workers = available_cpus() if self._choice.concurrent else 1
                self._pool = ThreadPoolExecutor(workers, thread_name_prefix="edgeinfer")
            answer = Pending[dict[str, Array]]()
            self._pool.submit(self._answer, answer, feeds)
            return answer

    def _answer(self, answer: Future[dict[str, Array]], feeds: Feeds) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self.run(feeds))
        # Whatever it is belongs to who waits for it.
        except BaseException as error:
            answer.set_exception(error)

    def close(self) -> None:
        """Free the engine; runs under way end first, later ones raise ``ClosedError``."""
        with self._lock:
            pool, self._pool = self._pool, None
        self._life.close()
        if pool is not None:
            pool.shutdown(wait=False)

    def report(self, *, ops: bool = False, feeds: Feeds | None = None) -> SessionReport:
        """Say what runs where and why, and what else was considered.

        Args:
            ops: also what each operator costs, by the engine's own profiler; the artifact is
                opened once more for that and run some times.
            feeds: inputs for it; None takes those of the first test vector.

        Raises:
            NotAvailableError: the engine cannot say what operators cost.
            InputError: an input is not what the model takes.
        """
        from edgeinfer.runtime.operators import placement_of, profile_pair
        from edgeinfer.runtime.report import SessionReport

        choice, running = self._choice, self._choice.executable
        candidate, variant = choice.current
        pair = candidate.pair
        operators = None
        if ops:
            operators = profile_pair(
                *(self._bundle, variant, pair),
                feeds=None if feeds is None else self._inputs_of(feeds),
                options=LoadOptions(pair.device, choice.threads, fallback=True),
                isolate=choice.isolated,
            )
        return SessionReport(
            bundle=str(self._bundle.location),
            model=self._bundle.manifest.name,
            variant=pair.variant,
            precision=variant.precision,
            backend=pair.backend,
            version=candidate.version,
            device=pair.device,
            threads=choice.threads,
            policy=self._policy,
            machine=choice.machine,
            candidates=choice.ranking.candidates,
            rejected=choice.ranking.rejected,
            notes=(*choice.notes, *(running.notes if able(running, Noting) else ())),
            isolated=running.is_apart if able(running, Apart) else choice.isolated,
            edgeinfer=__version__,
            placement=placement_of(choice.executable),
            operators=operators,
        )

    def _inputs_of(self, feeds: Feeds) -> Feeds:
        return InputCheck(self.inputs)(feeds)

    def stats(self, *, reset: bool = False) -> SessionStats:
        """Say how many runs there were and how long they took.

        Args:
            reset: begin to count anew.

        Raises:
            UsageError: the session does not count.
        """
        if self._recorder is None:
            hint = "load with stats=True, or set EDGEINFER_STATS=1"
            raise UsageError(f"session: its runs are not counted; {hint}")
        return self._recorder.stats(reset)

    def verify(self) -> Verification:
        """Run all bundled vectors here and compare with the expected outputs.

        Raises:
            BundleError: a vector is altered.
            RunError: the engine failed.
            ClosedError: the session was closed.
        """
        from edgeinfer.metrics import budget_for, check, compare
        from edgeinfer.runtime.recheck import lost_channels
        from edgeinfer.runtime.report import VectorResult, Verification

        candidate, variant = self._choice.current
        budget = budget_for(variant.precision)
        results: list[VectorResult] = []
        records = self._bundle.manifest.vectors
        notes, judged = [], []
        vectors = list(zip(records, self._bundle.vectors(), strict=True))
        answers = [outputs for r, (_, outputs) in vectors if r.judged_at(variant.precision)]
        for record, (feeds, expected) in vectors:
            if not record.judged_at(variant.precision):
                continue
            if not fits(variant.constraints, feeds):
                notes.append(f"{record.file.path}: holds values that {variant.id} refuses")
                continue
            actual = self.run(feeds)
            metrics = {name: compare(want, actual[name]) for name, want in expected.items()}
            usual = {name: [a[name] for a in answers] for name in expected}
            breaches = tuple(
                f"output {name!r}: {breach}"
                for name, found in metrics.items()
                for breach in check(found, record.budget(budget.among(usual[name]), name))
            )
            results.append(VectorResult(record.file.path, record.origin, metrics, breaches))
            judged.append((expected, actual))
        lost = lost_channels([e for e, _ in judged], [a for _, a in judged], budget)
        if results and lost:
            results[0] = replace(results[0], breaches=(*results[0].breaches, *lost))
        backend = candidate.pair.backend
        return Verification(variant.id, backend, variant.precision, tuple(results), tuple(notes))


def _both(check: Callable[[Feeds], Feeds], values: ValueCheck) -> Callable[[Feeds], Feeds]:
    def checked(feeds: Feeds) -> Feeds:
        arrays = check(feeds)
        values(arrays)
        return arrays

    return checked


def _after(check: Callable[[Feeds], Feeds], run: Callable[[Feeds], R]) -> Callable[[Feeds], R]:
    def checked(feeds: Feeds) -> R:
        return run(check(feeds))

    return checked


def _as_given(feeds: Feeds) -> Feeds:
    return feeds


def _labels(bundle: Bundle, choice: Choice) -> dict[str, str]:
    pair = choice.candidate.pair
    return {
        # It leaves the process with every run, and is whatever the bundle says.
        "model": visible(bundle.manifest.name[:_LONGEST_LABEL]),
        "variant": pair.variant,
        "backend": pair.backend,
        "device": pair.device,
    }


def _freeing(executable: Executable, bundle: Bundle) -> Callable[[], None]:
    def free() -> None:
        # The engine may have mapped files that closing the bundle removes.
        try:
            executable.close()
        finally:
            if isinstance(executable, Changing):
                executable.after(bundle.close)
            else:
                bundle.close()

    return free


def _in_turn(call: Callable[P, R], turn: threading.Lock | None) -> Callable[P, R]:
    """Let one caller at a time in, for engines that take no more."""
    if turn is None:
        return call

    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with turn:
            return call(*args, **kwargs)

    return locked
