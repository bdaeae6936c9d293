"""The loop around searching and measuring, with workers that play a part."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import NotAvailableError, OutputError
from edgeinfer.kernels.tuning import tune
from edgeinfer.kernels.tuning.database import FINAL, TRIED, Database, best
from edgeinfer.kernels.tuning.task import Task
from edgeinfer.kernels.tuning.tune import Tuner, TuningBudget, Where, WorkloadOutcome
from edgeinfer.kernels.tuning.worker import LostError
from tests.clock import Clock

Answer = Callable[[Any], Any]


class Part:
    """Plays both workers. An order is ``[number]``, and takes as many microseconds."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, list[Any]]] = []
        self.told: list[list[float | None]] = []
        self.closed = 0
        self.numbers = itertools.count(50, -1)
        self.own_us = 40.0
        self.on_candidate: Answer = lambda trace: (trace[0] * 1e-6, 0.01)
        self.on_open: Answer = lambda text: 3
        self.plans: list[Any] = []
        self.wrong: Answer = lambda trace: ""
        self.rounds = 4
        self.noise = itertools.cycle([1.0])

    def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        assert seconds > 0
        return getattr(self, f"_{method}")(*arguments)

    def close(self) -> None:
        self.closed += 1

    def _open(self, text: str, parallel: bool, history: list[Any]) -> Any:
        self.opened.append((text, history))
        return self.on_open(text)

    def _plans(self, text: str) -> list[Any]:
        return self.plans

    def _propose(self) -> list[Any]:
        self.rounds -= 1
        return [[next(self.numbers)] for _ in range(5)] if self.rounds >= 0 else []

    def _tell(self, seconds: list[float | None]) -> None:
        self.told.append(seconds)

    def _candidate(self, text: str, trace: Any) -> Any:
        return (self.own_us * 1e-6, 0.01) if trace is None else self.on_candidate(trace)

    def _compare(self, text: str, traces: Any, own: str, rounds: int) -> Any:
        times = [[t[0] * 1e-6] * rounds for t in traces]
        mine = [next(self.noise) * self.own_us * 1e-6 for _ in range(rounds)]
        return [*times, mine], [self.wrong(t) for t in traces]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    found = Part()
    monkeypatch.setattr(tune, "TuningWorker", lambda *_: found)
    monkeypatch.setattr(tune, "_PAUSE_S", 0.0)
    return found


WHERE = Where({"kind": "llvm"}, "x86-64-v3", "some CPU", 1, "gcc")
TASK = Task("k1", "matmul 8x8", "text", "own", nodes=["n"])


def _run(
    database: Database, *tasks: Task, where: Where = WHERE, **budget: Any
) -> list[WorkloadOutcome]:
    with Tuner(where, database, TuningBudget(**budget)) as tuner:
        return tuner.run(tasks or (TASK,))


def test_the_best_order_is_compared_and_kept(part: Part, tmp_path: Path) -> None:
    database = Database(tmp_path / "d.jsonl")
    (outcome,) = _run(database)
    assert outcome.verdict == "1.29 times as fast"
    assert outcome.final is not None
    assert (outcome.final.trace, outcome.final.us, outcome.final.n) == ([31], 31.0, 21)
    assert (outcome.trials, outcome.failed, outcome.share) == (20, 0, 1.0)
    lines = database.read().records
    assert [r.kind for r in lines] == [TRIED] * 21 + [FINAL]
    assert best(lines, "x86-64-v3")["k1"].trace == [31]
    assert part.closed == 2


def test_the_next_run_goes_on_from_what_was_measured(part: Part, tmp_path: Path) -> None:
    database = Database(tmp_path / "d.jsonl")
    _run(database)
    part.rounds = 1
    (outcome,) = _run(database)
    history = part.opened[1][1]
    assert sorted(s for _, s in history) == pytest.approx([i * 1e-6 for i in range(31, 51)])
    assert outcome.trials == 25
    assert outcome.final is not None
    assert outcome.final.trace == [26]
    # The own kernel was not measured anew.
    assert sum(r.trace is None and r.kind == TRIED for r in database.read().records) == 1


def test_figures_of_another_cpu_are_not_taken(part: Part, tmp_path: Path) -> None:
    database = Database(tmp_path / "d.jsonl")
    _run(database)
    other = Where(WHERE.target, WHERE.machine, "another CPU", 1, "gcc")
    part.rounds = 1
    _run(database, where=other)
    assert part.opened[1][1] == []


def test_an_order_that_ends_its_process_costs_itself(part: Part, tmp_path: Path) -> None:
    def candidate(trace: Any) -> Any:
        if trace[0] % 2:
            raise LostError("SIGSEGV")
        if trace[0] % 5 == 0:
            raise RuntimeError("first line\n  does not build")
        return trace[0] * 1e-6, 0.0

    part.on_candidate = candidate
    database = Database(tmp_path / "d.jsonl")
    (outcome,) = _run(database)
    assert (outcome.trials, outcome.failed) == (8, 12)
    assert outcome.final is not None
    assert outcome.final.trace == [32]
    errors = {r.error for r in database.read().records}
    assert errors == {"", "ended its process: SIGSEGV", "RuntimeError: does not build"}
    assert part.told[0] == [None, None, 48e-6, None, 46e-6]


def test_a_kernel_without_one_good_build_is_named(part: Part, tmp_path: Path) -> None:
    def candidate(trace: Any) -> Any:
        raise RuntimeError("no")

    part.on_candidate = candidate
    (outcome,) = _run(Database(tmp_path / "d.jsonl"))
    assert outcome.final is None
    assert not outcome.is_better
    assert outcome.verdict == ("own kernel kept: all 20 orders failed, such as: RuntimeError: no")


def test_a_search_that_ends_its_process_is_told(part: Part, tmp_path: Path) -> None:
    def crash(text: str) -> int:
        raise LostError("SIGSEGV")

    part.on_open = crash
    (outcome,) = _run(Database(tmp_path / "d.jsonl"))
    assert outcome.verdict.startswith("own kernel kept: the search ended its process: SIGSEGV")


def test_an_own_kernel_that_cannot_be_measured_is_told(part: Part, tmp_path: Path) -> None:
    part._candidate = lambda text, trace: 1 / 0  # type: ignore[method-assign]
    (outcome,) = _run(Database(tmp_path / "d.jsonl"))
    assert "its own kernel could not be measured: ZeroDivisionError" in outcome.verdict
    assert part.opened == []


def test_wrong_numbers_are_never_chosen(part: Part, tmp_path: Path) -> None:
    part.wrong = lambda trace: "wrong numbers" if trace[0] < 33 else ""
    database = Database(tmp_path / "d.jsonl")
    (outcome,) = _run(database)
    assert outcome.final is not None
    assert outcome.final.trace == [33]
    part.wrong, part.rounds = (lambda trace: "wrong numbers"), 1
    (outcome,) = _run(database)
    assert outcome.verdict == "own kernel kept: wrong numbers"
    # The last word is that there is none.
    assert best(database.read().records, "x86-64-v3")["k1"].trace is None


def test_what_is_no_faster_is_not_better(part: Part, tmp_path: Path) -> None:
    part.own_us = 31.5
    (outcome,) = _run(Database(tmp_path / "d.jsonl"))
    assert outcome.verdict == "own kernel kept: the best order is 1.02 times as fast"
    assert not outcome.is_better


def test_a_gain_within_the_noise_is_not_better(part: Part, tmp_path: Path) -> None:
    # Every third round tells the reverse of the median.
    part.noise = itertools.cycle([1.0, 1.0, 0.7])
    database = Database(tmp_path / "d.jsonl")
    (outcome,) = _run(database)
    assert outcome.final is not None
    assert (outcome.final.gain, outcome.final.sure) == pytest.approx((40 / 31, 28 / 31))
    assert not outcome.is_better
    assert outcome.verdict == (
        "own kernel kept: the best order is 1.29 times as fast by its median, in a quarter of the "
        "rounds 0.90 or less"
    )
    assert not best(database.read().records, "x86-64-v3")["k1"].won


def test_a_gain_above_the_noise_is_better(part: Part, tmp_path: Path) -> None:
    part.noise = itertools.cycle([1.0, 1.4, 0.9])
    (outcome,) = _run(Database(tmp_path / "d.jsonl"))
    assert outcome.final is not None
    assert outcome.final.sure == pytest.approx(36 / 31)
    assert outcome.is_better


def test_a_device_that_is_gone_ends_the_run_and_loses_nothing(part: Part, tmp_path: Path) -> None:
    def candidate(trace: Any) -> Any:
        if trace[0] < 45:
            raise ConnectionError("127.0.0.1:9090: nobody there")
        return trace[0] * 1e-6, 0.0

    part.on_candidate = candidate
    database = Database(tmp_path / "d.jsonl")
    place = Where(WHERE.target, WHERE.machine, "far", 1, "gcc", device="127.0.0.1:9090")
    with pytest.raises(NotAvailableError, match=r"the device is gone: .*nobody there; 7 meas"):
        _run(database, where=place)
    assert len(database.read().records) == 7
    part.on_candidate, part.rounds = (lambda trace: (trace[0] * 1e-6, 0.0)), 2
    (outcome,) = _run(database, where=place)
    assert len(part.opened[1][1]) == 6
    assert outcome.is_better


def test_a_device_that_comes_back_costs_a_wait(part: Part, tmp_path: Path) -> None:
    seen: list[int] = []

    def candidate(trace: Any) -> Any:
        if trace[0] == 44 and len(seen) < 2:
            seen.append(1)
            raise ConnectionError("restarting")
        return trace[0] * 1e-6, 0.0

    part.on_candidate = candidate
    place = Where(WHERE.target, WHERE.machine, "far", 1, "gcc", device="127.0.0.1:9090")
    (outcome,) = _run(Database(tmp_path / "d.jsonl"), where=place)
    assert (outcome.trials, outcome.failed, len(seen)) == (20, 0, 2)


def test_a_full_disk_ends_the_run(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "d.jsonl")
    add, count = Database.add, itertools.count()

    def full(self: Database, record: Any) -> None:
        if next(count) == 9:
            raise OutputError("no space left")
        add(self, record)

    monkeypatch.setattr(Database, "add", full)
    with pytest.raises(OutputError, match="no space left"):
        _run(database)
    assert len(database.read().records) == 9
    assert part.closed == 2


def test_ctrl_c_ends_the_workers_and_keeps_what_was_measured(part: Part, tmp_path: Path) -> None:
    def candidate(trace: Any) -> Any:
        if trace[0] == 44:
            raise KeyboardInterrupt
        return trace[0] * 1e-6, 0.0

    part.on_candidate = candidate
    database = Database(tmp_path / "d.jsonl")
    with pytest.raises(KeyboardInterrupt):
        _run(database)
    assert len(database.read().records) == 7
    assert part.closed == 2


def test_small_parts_and_late_ones_are_told(part: Part, tmp_path: Path) -> None:
    budget = TuningBudget()

    def candidate(text: str, trace: Any) -> Any:
        if text == "100":
            budget.until = time.monotonic()
        return float(text) * 1e-6, 0.0

    part._candidate = candidate  # type: ignore[method-assign]
    large = Task("large", "large", "100", "100", calls=5)
    tiny = Task("tiny", "tiny", "1", "1")
    late = Task("late", "late", "3", "3")
    with Tuner(WHERE, Database(tmp_path / "d.jsonl"), budget) as tuner:
        found = {o.task.key: o for o in tuner.run([tiny, large, late])}
    look = "own kernel kept: the time for a first look at all kernels was over before its turn"
    assert (found["late"].verdict, found["late"].before_us) == (look, None)
    assert found["large"].share == pytest.approx(500 / 501)
    assert found["large"].verdict == "own kernel kept: the time was over before its turn"
    assert found["tiny"].verdict == "own kernel kept: not tuned, too small a part of the time"


def test_a_first_look_leaves_half_of_the_time(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty kernels of 50 ms each, in a second: less than half of them are looked at."""
    measured: list[str] = []
    clock = Clock()
    monkeypatch.setattr(tune, "time", clock)

    def candidate(text: str, trace: Any) -> Any:
        clock.sleep(0.05)
        if trace is None:
            measured.append(text)
        return 1e-5, 0.0

    part._candidate = candidate  # type: ignore[method-assign]
    tasks = [Task(str(i), str(i), str(i), str(i)) for i in range(40)]
    outcomes = _run(Database(tmp_path / "d.jsonl"), *tasks, minutes=1 / 60)
    assert clock.now < 3
    assert 0 < len(measured) <= 11
    assert sum("first look" in o.problem for o in outcomes) == 40 - len(measured)
    # What was measured is not measured again, so the next run sees the others.
    before = len(measured)
    _run(Database(tmp_path / "d.jsonl"), *tasks, minutes=1 / 60)
    assert len(set(measured)) == len(measured) > before


def test_the_time_left_is_told(part: Part, tmp_path: Path) -> None:
    lines: list[tuple[str, float | None]] = []
    database = Database(tmp_path / "d.jsonl")
    with Tuner(WHERE, database, TuningBudget(minutes=2), lambda *x: lines.append(x)) as tuner:
        tuner.run([TASK])
    assert lines[1][0] == "kernel 1 of 1: matmul 8x8, - of 40 us after 0; 1:59 left"
    assert lines[2][0].startswith("kernel 1 of 1: matmul 8x8, 46 of 40 us after 5; 1:")
    assert 0 <= (lines[2][1] or 0) < 0.2


def test_own_kernels_are_measured_by_all_at_once(part: Part, tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def candidate(text: str, trace: Any) -> Any:
        if trace is None:
            # Broken, and with it the test, unless three of them are under way.
            together.wait(timeout=20)
        return float(text) * 1e-6, 0.0

    part._candidate = candidate  # type: ignore[method-assign]
    where = Where(WHERE.target, WHERE.machine, "c", 1, "gcc", workers=3)
    tasks = [Task(name, name, name, name) for name in ("3", "5", "2")]
    found = _run(Database(tmp_path / "d.jsonl"), *tasks, where=where, **{"tasks": 0})
    assert [(o.task.key, o.before_us) for o in found] == [("5", 5.0), ("3", 3.0), ("2", 2.0)]


def test_several_measure_at_once(part: Part, tmp_path: Path) -> None:
    where = Where(WHERE.target, WHERE.machine, "c", 1, "gcc", workers=3, cpus=(0, 1))
    (outcome,) = _run(Database(tmp_path / "d.jsonl"), where=where)
    assert outcome.trials == 20
    assert part.told[0] == pytest.approx([i * 1e-6 for i in range(50, 45, -1)])
    assert part.closed == 4


def test_on_a_gpu_plans_of_a_rule_are_measured_in_place_of_a_search(
    part: Part, tmp_path: Path
) -> None:
    part.plans = [[30], [20], [25]]
    where = replace(WHERE, target={"kind": "cuda", "arch": "sm_90"})
    with Tuner(where, Database(tmp_path / "d.jsonl"), TuningBudget(1.0, 8, 4)) as tuner:
        (outcome,) = tuner.run([TASK])
    assert part.opened == []
    assert outcome.trials == 3
    assert outcome.final is not None
    assert outcome.final.trace == [20]


def _shares(
    database: Path, engine_us: dict[str, float], **budget: Any
) -> dict[str, WorkloadOutcome]:
    tasks = [replace(TASK, key=k, title=k) for k in ("a", "b", "c")]
    with Tuner(WHERE, Database(database), TuningBudget(**budget)) as tuner:
        return {o.task.key: o for o in tuner.run(tasks, engine_us)}


def test_what_is_hot_is_what_the_engine_takes_long_for(part: Part, tmp_path: Path) -> None:
    found = _shares(tmp_path / "d.jsonl", {"b": 30.0, "c": 10.0}, tasks=1)
    # Own kernels take 40 us each: of the one that the engine does not name, as much as of others.
    assert list(found) == ["b", "a", "c"]
    assert [o.share for o in found.values()] == pytest.approx([1 / 2, 1 / 3, 1 / 6])
    assert [found[k].engine_us for k in "abc"] == [None, 30.0, 10.0]
    assert [o.trials for o in found.values()] == [20, 0, 0]
    assert found["a"].verdict == "own kernel kept: not tuned, all hotter ones were requested"
    first = [r.key for r in Database(tmp_path / "d.jsonl").read().records][:3]
    assert first == ["b", "c", "a"]


def test_a_kernel_that_nobody_measured_has_no_share(part: Part, tmp_path: Path) -> None:
    found = _shares(tmp_path / "d.jsonl", {"b": 30.0}, minutes=0.0)
    assert {k: o.share for k, o in found.items()} == {"b": 1.0, "a": None, "c": None}
    assert all("first look at all kernels was over" in o.verdict for o in found.values())


def test_shares_are_of_the_whole_model(part: Part, tmp_path: Path) -> None:
    tasks = [replace(TASK, key=k, title=k) for k in ("a", "b")]
    with Tuner(WHERE, Database(tmp_path / "d.jsonl"), TuningBudget()) as tuner:
        found = tuner.run(tasks, {"a": 30.0, "b": 0.5}, 100.0)
    assert {o.task.key: o.share for o in found} == {"a": 0.3, "b": 0.005}
    assert [o.trials for o in found] == [20, 0]


def test_a_search_that_fails_costs_its_kernel_only(part: Part, tmp_path: Path) -> None:
    def on_open(text: str) -> int:
        if text == "empty":
            raise ValueError("Cannot tile a loop of nothing")
        return 3

    part.on_open = on_open
    empty = replace(TASK, key="k0", text="empty")
    found = {o.task.key: o for o in _run(Database(tmp_path / "d.jsonl"), empty, TASK)}
    said = "own kernel kept: the search failed: ValueError: Cannot tile a loop of nothing"
    assert found["k0"].verdict == said
    assert found["k1"].is_better
