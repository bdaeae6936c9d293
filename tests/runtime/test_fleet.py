"""Many models at once: the right answers, in the right order, within both budgets."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    MemoryBudgetError,
    RunError,
    SignatureError,
    UsageError,
)
from edgeinfer.runtime import batches, memory_budget
from edgeinfer.runtime.batches import Batching
from edgeinfer.runtime.fleet import Runtime
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array, TensorSpec

MakeBundle = Callable[..., Path]


def feeds(n: int = 1, value: float = 1.0) -> dict[str, Array]:
    return {"x": np.full((n, 3), value, np.float32), "k": np.arange(n)}


def _note(ended: list[Any], what: object, _: object) -> None:
    ended.append(what)


@contextmanager
def held(fake: Any, model: Any) -> Iterator[Future[dict[str, Array]]]:
    """Have one call be inside the engine for as long as the block lasts."""
    fake.gate = threading.Event()
    running = model.submit(feeds())
    while not any(executable.inside for executable in fake.open):
        time.sleep(1e-3)
    try:
        yield running
    finally:
        fake.gate.set()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ProfileDB]:
    with ProfileDB(tmp_path / "history.sqlite") as db:
        yield db


@pytest.fixture
def runtime(history: ProfileDB) -> Iterator[Runtime]:
    with Runtime(threads=2, history=history) as made:
        yield made


def test_many_models_give_their_own_answers(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    for i in range(20):
        fakes.add(f"b{i}", bias=0.0)
        runtime.add(make_bundle(f"b{i}", name=f"{i}.edge", vectors=0), name=f"m{i}")
    futures = [
        (i, m.submit(feeds(2, value=i * 100 + j)))
        for j in range(10)
        for i, m in enumerate(runtime.models.values())
    ]
    for n, (i, future) in enumerate(futures):
        wanted = 2.0 * (i * 100 + n // 20)
        np.testing.assert_array_equal(future.result(10)["double"], np.full((2, 3), wanted))
    assert {name: s.calls.runs for name, s in runtime.stats().items()} == {
        f"m{i}": 10 for i in range(20)
    }


def test_engines_are_loaded_with_one_thread_at_the_first_use(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fake = fakes.add("fake")
    model = runtime.add(make_bundle("fake", vectors=0))
    assert fake.loads == 0
    double, k = model(feeds()["x"], k=feeds()["k"])
    np.testing.assert_array_equal(double, feeds()["x"] * 2)
    np.testing.assert_array_equal(k, [0])
    assert fake.loads == 1
    assert fake.open[0].options.threads == 1


def test_a_thread_that_rests_holds_nothing_of_its_last_run(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    """Of a server's largest requests each thread kept one, and its answer, for ever."""
    fakes.add("fake")
    model = runtime.add(make_bundle("fake", vectors=0))
    given = feeds()
    # With a time limit the caller's own thread runs nothing.
    outputs = model.submit(given).result(10)
    kept = [weakref.ref(array) for array in (*given.values(), *outputs.values())]
    del given, outputs
    end = time.monotonic() + 10
    while any(each() is not None for each in kept) and time.monotonic() < end:
        time.sleep(1e-3)
    assert [each() for each in kept] == [None] * len(kept)


def test_models_of_one_bundle_share_the_engine(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fake = fakes.add("fake")
    path = make_bundle("fake", vectors=0)
    a, b = runtime.add(path, name="a"), runtime.add(path, name="b")
    a.run(feeds())
    b.run(feeds())
    assert fake.loads == 1
    a.close()
    assert len(fake.open) == 1
    b.close()
    assert fake.open == []
    with pytest.raises(ClosedError):
        b.run(feeds())


def _order(runtime: Runtime, fakes: Any, make_bundle: MakeBundle, calls: list[Any]) -> list[int]:
    """Queue calls while the only thread is busy; return the order in which they ended."""
    fake = fakes.add("fake")
    model = runtime.add(make_bundle("fake", vectors=0))
    model.run(feeds())
    ended: list[int] = []
    futures = []
    with held(fake, model):
        for i, options in enumerate(calls):
            future = model.submit(feeds(), **options)
            future.add_done_callback(partial(_note, ended, i))
            futures.append(future)
    for future in futures:
        future.result(60)
    return ended


def test_order_is_priority_then_deadline_then_arrival(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    calls = [
        {},
        {"deadline_s": 20.0},
        {"deadline_s": 10.0},
        {"priority": 1.0},
        {"priority": -1.0},
        {},
    ]
    with Runtime(threads=1, history=history) as runtime:
        assert _order(runtime, fakes, make_bundle, calls) == [3, 2, 1, 0, 5, 4]


def test_owners_take_turns(fakes: Any, make_bundle: MakeBundle, history: ProfileDB) -> None:
    a, b = {"owner": b"a"}, {"owner": b"b"}
    calls = [a, a, a, a, b, {**a, "priority": 1.0}, b, {}, {"deadline_s": 9.0, **b}]
    with Runtime(threads=1, history=history) as runtime:
        assert _order(runtime, fakes, make_bundle, calls) == [5, 0, 4, 7, 1, 6, 8, 2, 3]


def test_an_owner_does_not_wait_for_the_batches_of_another(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake")
    ended: list[str] = []
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0), batching=Batching(size=4))
        model.run(feeds())
        before = model.stats().batches
        with held(fake, model):
            futures = [model.submit(feeds(value=i), owner=b"a") for i in range(14)]
            futures += [model.submit(feeds(value=i), owner=b"b") for i in (14, 15)]
            # It has room left, and is the next one.
            futures.append(model.submit(feeds(value=16), owner=b"a"))
            for future, name in zip(futures, "aaaabbbbccccddBBb", strict=True):
                future.add_done_callback(partial(_note, ended, name))
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(60)["double"], [[2.0 * i] * 3])
        assert "".join(ended) == "aaaaBBbbbbbccccdd"
        assert model.stats().batches - before == 6


def test_what_comes_too_late_is_not_started(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0))
        model.run(feeds())
        with held(fake, model) as first:
            late = model.submit(feeds(), deadline_s=0.05)
            time.sleep(0.06)
        with pytest.raises(DeadlineError, match=r"deadline passed .* ms ago; it waited"):
            late.result(60)
        first.result(60)


def test_least_recently_used_goes_first(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        fakes.add(name)
    monkeypatch.setattr(
        memory_budget, "resident_mb", lambda: 100.0 * sum(len(f.open) for f in fakes.values())
    )
    with Runtime(threads=2, memory_mb=250, history=history) as runtime:
        a, b, c = (runtime.add(make_bundle(n, name=f"{n}.edge", vectors=0), name=n) for n in "abc")
        for model in (a, b, a, c):
            model.run(feeds())
        assert [runtime.stats()[n].loaded for n in "abc"] == [True, False, True]
        b.run(feeds())
        assert [runtime.stats()[n].loaded for n in "abc"] == [False, True, True]
        assert runtime.stats()["b"].loads == 2
        assert runtime.stats()["b"].memory_mb == 100.0


def test_what_runs_is_waited_for_and_what_is_pinned_stays(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fakes.add("a")
    fakes.add("b")
    monkeypatch.setattr(
        memory_budget, "resident_mb", lambda: 100.0 * sum(len(f.open) for f in fakes.values())
    )
    with Runtime(threads=2, memory_mb=150, history=history) as runtime:
        a, b = (runtime.add(make_bundle(n, name=f"{n}.edge", vectors=0), name=n) for n in "ab")
        with held(fake, a) as slow:
            other = b.submit(feeds())
            time.sleep(0.1)
            assert not other.done()
        other.result(60)
        assert slow.done()
        assert not runtime.stats()["a"].loaded
    with Runtime(threads=2, memory_mb=150, history=history) as runtime:
        runtime.add(make_bundle("a", name="a2.edge", vectors=0), name="a", pinned=True)
        b = runtime.add(make_bundle("b", name="b2.edge", vectors=0), name="b")
        with pytest.raises(MemoryBudgetError, match="memory_mb is 150, and pinned models hold 100"):
            b.run(feeds())
        assert fakes["b"].open == []


def test_waiting_calls_run_as_one_batch_and_get_their_own_rows(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0), batching=Batching(size=4))
        model.run(feeds())
        before = model.stats().batches
        with held(fake, model) as busy:
            futures = [model.submit(feeds(1 + i % 2, value=i)) for i in range(8)]
        for i, future in enumerate(futures):
            rows = 1 + i % 2
            np.testing.assert_array_equal(
                future.result(60)["double"], np.full((rows, 3), 2.0 * i, np.float32)
            )
            np.testing.assert_array_equal(future.result()["k'"], np.arange(rows))
        busy.result()
        assert model.stats().batches - before == 3


def test_a_batch_waits_for_company_only_so_long(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fakes.add("fake")
    waiting = Batching(size=3, wait_ms=100_000)
    path = make_bundle("fake", vectors=0)
    model = runtime.add(path, name="full", batching=waiting)
    for future in [model.submit(feeds()) for _ in range(3)]:
        future.result(60)
    assert model.stats().batches == 1
    waiting = Batching(size=3, wait_ms=150)
    model = runtime.add(path, name="alone", batching=waiting)
    model.run(feeds())
    start = time.monotonic()
    model.submit(feeds()).result(60)
    assert time.monotonic() - start > 0.14


def test_a_failing_call_does_not_spoil_its_batch(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake", poison=13.0)
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0), batching=Batching(size=4))
        model.run(feeds())
        with held(fake, model) as busy:
            good, bad, fine = (model.submit(feeds(value=v)) for v in (1, 13, 2))
        assert good.result(60)["double"][0, 0] == 2
        assert fine.result(60)["double"][0, 0] == 4
        with pytest.raises(RunError, match="13"):
            bad.result(60)
        busy.result()
        assert model.stats().calls.failures == {"RunError": 1}


def test_shapes_that_differ_are_not_put_together() -> None:
    assert not batches.alike({"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))})
    assert batches.alike({"x": np.zeros((1, 3))}, {"x": np.zeros((2, 3))})


def test_engines_that_run_one_at_a_time_leave_the_other_thread_to_others(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    slow = fakes.add("slow", concurrent=False)
    fakes.add("quick")
    a = runtime.add(make_bundle("slow", name="a.edge", vectors=0), name="a")
    b = runtime.add(make_bundle("quick", name="b.edge", vectors=0), name="b")
    a.run(feeds())
    b.run(feeds())
    slow.gate = threading.Event()
    waiting = [a.submit(feeds()) for _ in range(4)]
    # One is inside and stays there; were both threads taken by it, the other would never run.
    try:
        assert b.submit(feeds()).result(30)["double"].shape == (1, 3)
        assert not any(future.done() for future in waiting)
    finally:
        slow.gate.set()
    for future in waiting:
        future.result(30)
    assert slow.most_inside == 1


def test_wide_runs_take_their_threads_and_are_not_starved(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fakes.add("wide", delay_s=0.05)
    fakes.add("narrow", delay_s=0.02)
    wide = runtime.add(make_bundle("wide", name="w.edge", vectors=0), name="w", threads=2)
    narrow = runtime.add(make_bundle("narrow", name="n.edge", vectors=0), name="n")
    wide.run(feeds())
    narrow.run(feeds())
    assert fakes["wide"].open[0].options.threads == 2
    ended: list[str] = []
    futures = []
    for name, model in (("n", narrow), ("w", wide), *(("n", narrow),) * 4):
        future = model.submit(feeds())
        future.add_done_callback(partial(_note, ended, name))
        futures.append(future)
    for future in futures:
        future.result(60)
    assert ended.index("w") == 1


def test_closing_cancels_what_waits_and_ends_what_runs(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake")
    runtime = Runtime(threads=1, history=history)
    model = runtime.add(make_bundle("fake", vectors=0))
    model.run(feeds())
    with held(fake, model) as running:
        waiting = model.submit(feeds())
        closing = threading.Thread(target=runtime.close)
        closing.start()
        with pytest.raises(CancelledError):
            waiting.result(60)
    closing.join(60)
    assert running.result()["double"].shape == (1, 3)
    with pytest.raises(CancelledError):
        waiting.result()
    assert fake.open == []
    with pytest.raises(ClosedError):
        model.submit(feeds())
    with pytest.raises(ClosedError):
        runtime.add(make_bundle("fake", vectors=0, name="other.edge"), name="other")


def test_errors_are_told_at_once_or_through_the_future(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fake = fakes.add("fake")
    path = make_bundle("fake", vectors=0)
    model = runtime.add(path, name="m")
    with pytest.raises(InputError):
        model.submit({"x": feeds()["x"]})
    fake.run_error = "fake: broken"
    with pytest.raises(RunError, match="broken"):
        model.run(feeds())
    fake.run_error = ""
    model.run(feeds())
    with pytest.raises(UsageError, match="there is a model 'm' already"):
        runtime.add(path, name="m")
    with pytest.raises(UsageError, match="expected 1 to 2"):
        runtime.add(path, name="n", threads=3)
    with pytest.raises(UsageError, match="size 2 or more"):
        runtime.add(path, name="n", batching=Batching(size=1))
    fixed = make_bundle(
        "fake",
        name="fixed.edge",
        vectors=0,
        inputs=(
            TensorSpec("x", "float32", (2, 3)),
            TensorSpec("k", "int64", (2,)),
        ),
    )
    with pytest.raises(UsageError, match="batches need one named first axis"):
        runtime.add(fixed, name="n", batching=Batching())
    for options in ({"threads": 0}, {"memory_mb": 0.0}):
        with pytest.raises(UsageError):
            Runtime(**options)


def test_calls_from_many_threads_lose_nothing(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fakes.add("fake")
    model = runtime.add(make_bundle("fake", vectors=0), batching=Batching(size=8))
    wrong: list[float] = []

    def caller(start: int) -> None:
        for i in range(start, start + 50):
            got = model.run(feeds(value=i))["double"][0, 0]
            if got != 2 * i:
                wrong.append(got)

    threads = [threading.Thread(target=caller, args=(i * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert model.stats().calls.runs == 400
    assert model.stats().batches <= 400


def test_who_waits_runs_it_without_another_thread(
    fakes: Any, make_bundle: MakeBundle, runtime: Runtime
) -> None:
    fake = fakes.add("fake")
    model = runtime.add(make_bundle("fake", vectors=0))
    before = set(threading.enumerate())
    for value in range(5):
        assert model.run(feeds(value=value))["double"][0, 0] == 2 * value
    assert set(threading.enumerate()) == before
    assert model.stats().calls.runs == 5
    assert fake.loads == 1


def test_who_waits_runs_brief_ones_of_others_but_no_long_ones(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    inside: dict[str, list[str]] = {"brief": [], "long": [], "mine": []}

    with Runtime(threads=1, history=history) as runtime:
        models = {}
        for name in inside:
            fakes.add(name)
            models[name] = runtime.add(make_bundle(name, name=f"{name}.edge", vectors=0), name=name)
            models[name].run(feeds())
        for name, model in models.items():
            _watch_threads(model, inside[name])
        here = threading.current_thread().name
        # The long one goes first and keeps the only place; the others wait behind it.
        with held(fakes["long"], models["long"]) as busy:
            others = [models["brief"].submit(feeds()) for _ in range(3)]
        assert models["mine"].run(feeds())["double"].shape == (1, 3)
        for future in (busy, *others):
            future.result(60)
        assert inside["long"]
        assert here not in inside["long"]
        assert len(inside["brief"]) == 3
        for _ in range(200):
            if here in inside["brief"]:
                break
            for future in [models["brief"].submit(feeds()) for _ in range(5)]:
                future.result()
        assert here in inside["brief"]


def _watch_threads(model: Any, seen: list[str]) -> None:
    run = model.execute

    def execute(calls: list[Any]) -> None:
        seen.append(threading.current_thread().name)
        run(calls)

    model.execute = execute


def test_a_caller_does_not_pass_what_is_more_urgent(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fake = fakes.add("fake")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0))
        model.run(feeds())
        ended: list[str] = []

        def mine() -> None:
            model.run(feeds(), priority=1.0)
            ended.append("mine")

        caller = threading.Thread(target=mine)
        with held(fake, model) as busy:
            urgent = model.submit(feeds(), priority=2.0)
            urgent.add_done_callback(partial(_note, ended, "urgent"))
            caller.start()
        caller.join(60)
        busy.result(60)
        urgent.result(60)
        assert ended == ["urgent", "mine"]


def test_an_interrupted_caller_leaves_its_place_and_tells_who_waits(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("fake")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0))
        model.run(feeds())

        def interrupted(calls: list[Any]) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(model, "execute", interrupted)
        # A run with a deadline is queued, and then run here.
        with pytest.raises(KeyboardInterrupt):
            model.run(feeds(), deadline_s=10.0)
        monkeypatch.undo()
        assert model.run(feeds())["double"].shape == (1, 3)
        assert model.submit(feeds()).result(60)["double"].shape == (1, 3)


def test_runs_left_by_callers_are_picked_up_at_once(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    fakes.add("fake")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0))
        model.run(feeds())
        for _ in range(50):
            first, second = model.submit(feeds()), model.submit(feeds())
            first.result()
            second.result(60)


def test_a_runtime_that_requires_signatures_loads_nothing_else(
    fakes: Any, make_bundle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.signer import new_keys, sign
    from edgeinfer.bundle.writer import put_signatures

    monkeypatch.delenv("EDGEINFER_TRUSTED_KEYS", raising=False)
    fakes.add("fake")
    path = make_bundle("fake")
    private, public = tmp_path / "a.pem", tmp_path / "a.pub"
    new_keys(private, public)
    with Runtime(require_signature=True) as runtime:
        with pytest.raises(SignatureError, match="no key is trusted"):
            runtime.add(path)
        with pytest.raises(SignatureError, match="no key is trusted"):
            runtime.add(path, require_signature=False)
    with Runtime(trusted=[public], require_signature=True) as runtime:
        with pytest.raises(SignatureError, match="is not signed"):
            runtime.add(path)
        with Bundle.open(path) as bundle:
            content, _ = sign(bundle.manifest_bytes(), private)
        put_signatures(path, content)
        model = runtime.add(path)
        x = np.ones((1, 3), np.float32)
        assert model.run({"x": x, "k": np.arange(1)})["double"].tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("threads", [1, 2])
def test_callbacks_may_wait_for_other_runs(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, threads: int
) -> None:
    fakes.add("fake", delay_s=0.002)
    with Runtime(threads=threads, history=history) as runtime:
        model = runtime.add(make_bundle("fake", vectors=0))
        got: list[float] = []

        def again(_: object) -> None:
            got.append(model.run(feeds(value=3))["double"][0, 0])
            got.append(model.submit(feeds(value=4)).result(60)["double"][0, 0])

        futures = [model.submit(feeds()) for _ in range(6)]
        for future in futures:
            future.add_done_callback(again)
        until = time.monotonic() + 10
        while len(got) < 12 and time.monotonic() < until:
            time.sleep(0.01)
        assert sorted(got) == [6.0] * 6 + [8.0] * 6
