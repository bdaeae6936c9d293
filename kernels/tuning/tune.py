"""The loop around searching and measuring: what is worth it, until the time is over."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np

from edgeinfer.errors import EdgeInferError, NotAvailableError
from edgeinfer.kernels.tuning.database import FINAL, TRIED, WORTH, Database, Record
from edgeinfer.kernels.tuning.relay import Relay
from edgeinfer.kernels.tuning.task import Task
from edgeinfer.kernels.tuning.worker import LostError, TuningWorker
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

_SEARCH, _MEASURE = "edgeinfer.kernels.tuning.search", "edgeinfer.kernels.tuning.measure"
_PATIENCE_S = 60.0
"""For one order: building takes up to seconds, and an order that takes longer is none to keep."""
_THINKING_S = 300.0
_LEAST_SHARE = 0.01
_FINALISTS, _FINAL_ROUNDS = 3, 21
_RECONNECTS, _PAUSE_S = 3, 2.0
_LAST_SHARE = 0.12
"""Of a workload's time, for the last comparison."""
_LOOK_SHARE = 0.5
"""Of the time that is left when it begins, in which all own kernels are measured."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Where:
    """A device, and how code is made and run for it.

    Attributes:
        target: TVM's, as ``workload.target`` takes it.
        machine: instruction set.
        cpu: name of the processor, or GPU.
        threads: Threads of parallel loops.
        linker: compiler driver that makes libraries.
        device: ``host:port``, ``host:port/key`` of a tracker, or empty for this machine.
        workers: processes that measure at once, each on a CPU of its own.
        cpus: that they stay on; empty lets them run anywhere.
        tvm: version that orders the loops.
    """

    target: Mapping[str, Any]
    machine: str
    cpu: str
    threads: int
    linker: str
    device: str = ""
    workers: int = 1
    cpus: tuple[int, ...] = ()
    tvm: str = ""


@dataclass(slots=True)
class WorkloadOutcome:
    """What became of a workload.

    Attributes:
        task: the workload.
        before_us: the converter's own kernel alone; None if it could not be measured.
        engine_us: what the target's best engine takes for a call of it; None if it does not tell.
        share: Share of the model's time in that engine; where it does not tell, by the own kernels.
            None if neither is known.
        final: the best order compared with the own kernel, in turns; None if there is none.
        trials: orders that have a figure, in all runs so far.
        failed: orders without one.
        problem: why nothing was found; empty if something was, or nothing was looked for.
    """

    task: Task
    before_us: float | None = None
    engine_us: float | None = None
    share: float | None = None
    final: Record | None = None
    trials: int = 0
    failed: int = 0
    problem: str = ""

    @property
    def is_better(self) -> bool:
        """Whether the tuned kernel is worth its place."""
        return self.final is not None and self.final.won

    @property
    def verdict(self) -> str:
        """One line."""
        if self.is_better and self.final is not None:
            return f"{self.final.gain:.2f} times as fast"
        if self.problem:
            return f"own kernel kept: {self.problem}"
        if self.final is None:
            is_small = (self.share or 0.0) < _LEAST_SHARE
            why = "too small a part of the time" if is_small else "all hotter ones were requested"
            return f"own kernel kept: not tuned, {why}"
        gain = f"own kernel kept: the best order is {self.final.gain:.2f} times as fast"
        if self.final.gain < WORTH:
            return gain
        return f"{gain} by its median, in a quarter of the rounds {self.final.sure:.2f} or less"


@dataclass(slots=True)
class TuningBudget:
    """How long, and how many orders of a workload at most."""

    minutes: float = 10.0
    trials: int = 512
    tasks: int = 24
    until: float = field(default=0.0)

    def start(self) -> None:
        """Start the clock; a tuner does so itself where nobody did before."""
        self.until = time.monotonic() + self.minutes * 60

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until - time.monotonic())


class Tuner:
    """Tunes workloads on one device into one database; a context manager that ends its processes.

    Args:
        where: the device.
        database: where every figure goes at once.
        budget: how long.
        progress: Called with what is being done.
        seed: Seed of the search.
    """

    def __init__(
        self,
        where: Where,
        database: Database,
        budget: TuningBudget,
        progress: Progress | None = None,
        seed: int = 1,
    ) -> None:
        self._where, self._database, self._budget = where, database, budget
        self._progress = progress
        self._search = TuningWorker(_SEARCH, dict(where.target), seed)
        self._relay = Relay(where.device) if where.device else None
        count = 1 if where.device else max(1, where.workers)
        self._measurers = [TuningWorker(_MEASURE, *self._setup(i)) for i in range(count)]
        self._known = [r for r in database.read().records if self._is_ours(r)]
        self._unfinished: list[tuple[WorkloadOutcome, list[Record]]] = []
        self._look_until = 0.0
        self.kept = 0

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._search, *self._measurers):
            worker.close()
        if self._relay is not None:
            self._relay.close()

    def run(
        self,
        tasks: Sequence[Task],
        engine_us: Mapping[str, float] | None = None,
        whole_us: float = 0.0,
    ) -> list[WorkloadOutcome]:
        """Tune what takes most of the time, until that is over.

        Args:
            tasks: all of a model.
            engine_us: what the target's best engine takes for them in a run of the model, by their
                keys, as far as it tells.
            whole_us: what it takes for a run of the model; there may be more in it than is tuned.

        Raises:
            NotAvailableError: the device is gone; what was measured is kept.
            OutputError: the database cannot be written; likewise.
        """
        if not self._budget.until:
            self._budget.start()
        self._look_until = time.monotonic() + self._budget.left_s * _LOOK_SHARE
        known = engine_us or {}
        # What is hottest is looked at first: the time for that may end before the last.
        looked = sorted(tasks, key=lambda t: -known.get(t.key, 0.0))
        outcomes = _hot(self._each(self._before, looked), known, whole_us)
        todo = [o for o in outcomes if not o.problem][: self._budget.tasks]
        todo = [o for o in todo if (o.share or 0.0) >= _LEAST_SHARE]
        for index, outcome in enumerate(todo):
            rest = sum(np.sqrt(o.share or 0.0) for o in todo[index:])
            seconds = self._budget.left_s * float(np.sqrt(outcome.share or 0.0) / rest)
            if self._budget.left_s <= 0:
                outcome.problem = "the time was over before its turn"
                continue
            until = time.monotonic() + seconds * (1 - _LAST_SHARE)
            self._tune(outcome, until, f"{index + 1} of {len(todo)}")
        # On a GPU they wait for one another by themselves, and compile side by side.
        self._each(lambda it, worker: self._finish(it[0], it[1], worker), self._unfinished)
        return outcomes

    def _setup(self, index: int) -> tuple[Any, ...]:
        where = self._where
        cpu = where.cpus[index % len(where.cpus)] if where.cpus and where.threads == 1 else None
        device = "" if self._relay is None else self._relay.address
        return (dict(where.target), where.threads, cpu, device, where.linker)

    def _is_ours(self, record: Record) -> bool:
        where = self._where
        mine = (where.machine, where.cpu, where.threads)
        return (record.machine, record.cpu, record.threads) == mine

    def _tell(self, what: str) -> None:
        if self._progress is None:
            return
        left = self._budget.left_s
        done = 1 - left / max(1e-9, self._budget.minutes * 60)
        minutes, seconds = divmod(int(left), 60)
        self._progress(f"{what}; {minutes}:{seconds:02d} left", done)

    # ---- what takes the time

    def _before(self, task: Task, worker: TuningWorker) -> WorkloadOutcome:
        """Measure the converter's own kernel, unless that was done."""
        self._tell(f"measure {task.title}")
        outcome = WorkloadOutcome(task)
        for record in self._history(task):
            if record.kind == TRIED and record.trace is None and record.us is not None:
                outcome.before_us = record.us
                return outcome
        if time.monotonic() >= min(self._look_until, self._budget.until):
            outcome.problem = "the time for a first look at all kernels was over before its turn"
            return outcome
        record = self._measured(task, None, worker)
        outcome.before_us = record.us
        if record.us is None:
            outcome.problem = f"its own kernel could not be measured: {record.error}"
        return outcome

    def _history(self, task: Task) -> list[Record]:
        return [r for r in self._known if r.key == task.key]

    # ---- one workload

    def _tune(self, outcome: WorkloadOutcome, until: float, place: str) -> None:
        task = outcome.task
        tried = {_text(r.trace): r for r in self._history(task) if r.kind == TRIED and r.trace}
        history = [(r.trace, None if r.us is None else r.us * 1e-6) for r in tried.values()]
        parallel = task.parallel and self._where.threads > 1
        try:
            is_planned = self._planned(task, tried, outcome, until, place)
            if not is_planned and not self._search.ask(
                "open", task.text, parallel, history, seconds=_THINKING_S
            ):
                outcome.problem = "there is nothing to choose"
            while not is_planned and not outcome.problem and len(tried) < self._budget.trials:
                if time.monotonic() > until:
                    break
                self._tell(f"kernel {place}: {task.title}, {_best(tried, outcome)}")
                proposed = self._search.ask("propose", seconds=_THINKING_S)
                if not proposed:
                    break
                found = self._measure_all(task, proposed)
                tried |= {_text(r.trace): r for r in found}
                seconds = [None if r.us is None else r.us * 1e-6 for r in found]
                self._search.ask("tell", seconds, seconds=_THINKING_S)
        except LostError as error:
            outcome.problem = f"the search ended its process: {error.how}"
        except EdgeInferError:
            raise
        except Exception as error:  # whatever TVM threw, for this kernel; others have their turn
            outcome.problem = f"the search failed: {_line(error)}"
        if self._has_trials(outcome, tried):
            ready = (outcome, list(tried.values()))
            if self._where.target["kind"] == "cuda":
                self._unfinished.append(ready)
            else:
                self._finish(*ready, self._measurers[0])

    def _planned(
        self,
        task: Task,
        tried: dict[str, Record],
        outcome: WorkloadOutcome,
        until: float,
        place: str,
    ) -> bool:
        """Measure the plans of a rule; returns whether one fits the workload."""
        if self._where.target["kind"] != "cuda":
            return False
        plans = self._search.ask("plans", task.text, seconds=_THINKING_S)
        left = [p for p in plans if _text(p) not in tried][: self._budget.trials]
        count = len(self._measurers) * 2
        for first in range(0, len(left), count):
            if time.monotonic() > until:
                break
            self._tell(f"kernel {place}: {task.title}, {_best(tried, outcome)}")
            found = self._measure_all(task, left[first : first + count])
            tried |= {_text(r.trace): r for r in found}
        return bool(plans)

    def _has_trials(self, outcome: WorkloadOutcome, tried: dict[str, Record]) -> bool:
        outcome.trials = sum(r.us is not None for r in tried.values())
        outcome.failed = len(tried) - outcome.trials
        if not outcome.trials:
            why = next((r.error for r in tried.values() if r.error), "")
            nothing = "the time was over before an order was measured"
            failed = f"all {len(tried)} orders failed, such as: {why}" if why else nothing
            outcome.problem = outcome.problem or failed
        return bool(outcome.trials)

    def _measure_all(self, task: Task, traces: Sequence[Any]) -> list[Record]:
        return self._each(lambda trace, worker: self._measured(task, trace, worker), traces)

    def _each(
        self, work: Callable[[Any, TuningWorker], _Found], items: Sequence[Any]
    ) -> list[_Found]:
        """Do work on each item, with whichever measuring process is free."""
        if len(self._measurers) == 1:
            return [work(item, self._measurers[0]) for item in items]
        free = list(self._measurers)
        lock = threading.Lock()

        def one(item: Any) -> _Found:
            with lock:
                worker = free.pop()
            try:
                return work(item, worker)
            finally:
                with lock:
                    free.append(worker)

        pool = ThreadPoolExecutor(len(self._measurers))
        try:
            return list(pool.map(one, items))
        finally:
            # Ctrl-C does not wait for what was not begun.
            pool.shutdown(wait=True, cancel_futures=True)

    def _measured(self, task: Task, trace: Any, worker: TuningWorker) -> Record:
        """Measure and keep one figure; whatever goes wrong is kept as well."""
        text = task.own if trace is None else task.text
        record = self._record(TRIED, task, trace)
        try:
            seconds, spread = self._ask(worker, "candidate", text, trace)
            record = replace(record, us=seconds * 1e6, spread=spread, n=5)
        except LostError as error:
            record = replace(record, error=f"ended its process: {error.how}")
        except NotAvailableError:
            raise
        except Exception as error:  # whatever TVM threw for this order
            record = replace(record, error=_line(error))
        self._keep(record)
        return record

    def _ask(self, worker: TuningWorker, *question: Any) -> Any:
        """Ask; a device that is gone is looked for again before it is given up.

        Raises:
            NotAvailableError: it is gone.
        """
        for attempt in range(_RECONNECTS):
            try:
                return worker.ask(*question, seconds=_PATIENCE_S)
            except ConnectionError as error:
                worker.close()
                lost = error
                time.sleep(_PAUSE_S * (attempt + 1))
            except Exception:
                if self._where.device:
                    # The other end's process may be gone with the order.
                    worker.close()
                raise
        what = "the device is gone" if self._where.device else "nothing can be measured"
        raise NotAvailableError(
            f"{what}: {lost}; {self.kept} measurements of this run are in "
            f"{self._database.path}, the same command goes on from there"
        ) from lost

    def _finish(self, outcome: WorkloadOutcome, tried: list[Record], worker: TuningWorker) -> None:
        """Measure the best against the own kernel, in turns, and check their numbers."""
        task = outcome.task
        self._tell(f"compare {task.title}")
        best = sorted((r for r in tried if r.us is not None), key=lambda r: r.us or 0.0)
        traces = [r.trace for r in best[:_FINALISTS]]
        record = replace(self._record(FINAL, task, None), trials=outcome.trials)
        try:
            question = ("compare", task.text, traces, task.own, _FINAL_ROUNDS)
            times, wrong = self._ask(worker, *question)
        except NotAvailableError:
            raise
        except Exception as error:
            how = error.how if isinstance(error, LostError) else _line(error)
            outcome.problem = f"the comparison failed: {how}"
            return
        right = [i for i, problem in enumerate(wrong) if not problem]
        if not right:
            outcome.problem = wrong[0]
            self._keep(replace(record, error=wrong[0]))
            return
        medians = [statistics.median(t) for t in times]
        sure = [sure_gain(times[-1], row) for row in times]
        winner = max(right, key=lambda i: sure[i])
        outcome.final = replace(
            record,
            trace=traces[winner],
            us=medians[winner] * 1e6,
            before_us=medians[-1] * 1e6,
            n=_FINAL_ROUNDS,
            spread=_spread(times[winner]),
            sure=sure[winner],
        )
        self._keep(outcome.final)

    def _record(self, kind: str, task: Task, trace: Any) -> Record:
        where = self._where
        return Record(
            kind,
            task.key,
            where.machine,
            where.cpu,
            where.threads,
            task.title,
            trace,
            tvm=where.tvm,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _keep(self, record: Record) -> None:
        self._database.add(record)
        self.kept += 1
        self._known.append(record)


def _hot(
    outcomes: list[WorkloadOutcome], engine_us: Mapping[str, float], whole_us: float
) -> list[WorkloadOutcome]:
    """Say what each takes of a run, the most first: in the engine, else in proportion to it."""
    own = {o.task.key: (o.before_us or 0.0) * o.task.calls for o in outcomes}
    both = [o.task.key for o in outcomes if own[o.task.key] and o.task.key in engine_us]
    scale = sum(engine_us[k] for k in both) / sum(own[k] for k in both) if both else 1.0
    times = {key: engine_us.get(key, us * scale) for key, us in own.items()}
    whole = max(whole_us, sum(times.values())) or 1.0
    for outcome in outcomes:
        key, calls = outcome.task.key, outcome.task.calls
        outcome.engine_us = engine_us[key] / calls if key in engine_us else None
        is_known = outcome.before_us is not None or key in engine_us
        outcome.share = times[key] / whole if is_known else None
    return sorted(outcomes, key=lambda o: -(o.share or 0.0))


def _text(trace: Any) -> str:
    return repr(trace)


def _line(error: Exception) -> str:
    lines = [x for x in str(error).strip().splitlines() if x.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()[:160]}" if lines else repr(error)


def _best(tried: Mapping[str, Record], outcome: WorkloadOutcome) -> str:
    figures = [r.us for r in tried.values() if r.us is not None]
    now = f"{min(figures):.3g}" if figures else "-"
    return f"{now} of {outcome.before_us or 0:.3g} us after {len(tried)}"


def sure_gain(before: Sequence[float], after: Sequence[float]) -> float:
    """How many times as fast three rounds in four at least were, each against its neighbour."""
    return float(np.quantile(np.divide(before, after), 0.25))


def _spread(times: Sequence[float]) -> float:
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
    return float((high - low) / 2 / middle)
