"""Engines that come and go: copies of a bundle, and memory that runs take beyond loading."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from benchmarks.tiny import MLP, bundle
from edgeinfer.errors import BundleError, ClosedError, MemoryBudgetError, SignatureError
from edgeinfer.machine.cpu import Cluster, Cpu
from edgeinfer.machine.fingerprint import Facts
from edgeinfer.machine.pages import resident_mb
from edgeinfer.runtime import fleet, memory_budget
from edgeinfer.runtime.fleet import Runtime
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array

MakeBundle = Callable[..., Path]


def feeds(rows: int = 1) -> dict[str, Array]:
    return {"x": np.ones((rows, 3), np.float32), "k": np.arange(rows)}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ProfileDB]:
    with ProfileDB(tmp_path / "history.sqlite") as db:
        yield db


class Memory:
    """Resident memory as a test would have it: 100 MB an engine, 1 MB a row of a run."""

    def __init__(self, fakes: Any) -> None:
        self.fakes = fakes
        self.kept: dict[str, int] = {}

    def watch(self, name: str) -> None:
        fake = self.fakes.add(name)
        load = fake.load

        def loaded(artifact: Any, options: Any) -> Any:
            executable = load(artifact, options)
            run, close = executable.run, executable.close

            def running(given: Any) -> Any:
                self.kept[name] = max(self.kept.get(name, 0), len(given["x"]))
                return run(given)

            def closing() -> None:
                self.kept.pop(name, None)
                close()

            executable.run, executable.close = running, closing
            return executable

        fake.load = loaded

    def __call__(self) -> float:
        engines = sum(len(fake.open) for fake in self.fakes.values())
        return 100.0 * engines + sum(self.kept.values())


@pytest.fixture
def memory(fakes: Any, monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory(fakes)
    monkeypatch.setattr(memory_budget, "resident_mb", made)
    return made


def test_what_runs_take_counts_and_the_least_recently_used_goes(
    memory: Memory, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    for name in "ab":
        memory.watch(name)
    with Runtime(threads=1, memory_mb=250, history=history) as runtime:
        a, b = (runtime.add(make_bundle(n, name=f"{n}.edge", vectors=0), name=n) for n in "ab")
        a.run(feeds())
        b.run(feeds(20))
        assert b.stats().memory_mb == pytest.approx(120, abs=1)
        assert (a.stats().loaded, b.stats().loaded) == (True, True)
        b.run(feeds(60))
        assert b.stats().memory_mb == pytest.approx(160, abs=1)
        assert (a.stats().loaded, b.stats().loaded) == (False, True)
        a.run(feeds())
        assert (a.stats().loaded, b.stats().loaded) == (True, False)
        assert memory() <= 250


def test_one_that_grows_beyond_the_budget_goes_after_its_run_and_says_so(
    memory: Memory,
    make_bundle: MakeBundle,
    history: ProfileDB,
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory.watch("a")
    with Runtime(threads=1, memory_mb=150, history=history) as runtime:
        a = runtime.add(make_bundle("a", vectors=0), name="a")
        with caplog.at_level(logging.WARNING, "edgeinfer"):
            outputs = a.run(feeds(90))
        np.testing.assert_array_equal(outputs["double"], np.full((90, 3), 2.0))
        assert not a.stats().loaded
        assert memory() == 0
        assert "its runs take 190 MB and memory_mb is 150" in caplog.text
        # It is loaded anew as it was, not refused for what one run took.
        a.run(feeds())
        assert (a.stats().loaded, a.stats().loads) == (True, 2)


def test_without_a_budget_nothing_is_measured(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("a")
    asked: list[None] = []

    def counted() -> float:
        asked.append(None)
        return 0.0

    monkeypatch.setattr(memory_budget, "resident_mb", counted)
    with Runtime(threads=1, history=history) as runtime:
        a = runtime.add(make_bundle("a", vectors=0))
        a.run(feeds())
        loading = len(asked)
        a.run(feeds(50))
    assert len(asked) == loading


def test_a_call_that_comes_late_loads_nothing_again(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fakes.add("one")
    with Runtime(threads=1, history=history) as runtime:
        model = runtime.add(make_bundle(("one",)))
        model.run(feeds())
        model.close()
        # As for a call that had looked before.
        model.is_closed = False
        with pytest.raises(ClosedError, match="closed while a call waited"):
            model.engine.acquire(object())
        assert fake.open == []
        again = runtime.add(model.engine.path)

        def closed_meanwhile(*args: Any, **options: Any) -> Any:
            session = edgeinfer.load(*args, **options)
            again.close()
            return session

        monkeypatch.setattr(memory_budget, "load", closed_meanwhile)
        with pytest.raises(ClosedError):
            again.engine.acquire(object())
        assert fake.open == []


def test_a_name_means_one_bundle_until_it_is_added_anew(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB
) -> None:
    for name in ("one", "two"):
        fakes.add(name)
    place = make_bundle("one", name="live.edge", vectors=0)
    other = make_bundle("two", name="other.edge", vectors=0)
    with Runtime(threads=1, history=history, memory_mb=4000) as runtime:
        model = runtime.add(place, name="live")
        model.run(feeds())
        os.replace(other, place)
        model.run(feeds())
        assert model.engine.unload_idle()
        with pytest.raises(BundleError, match="another bundle than the one that was added"):
            model.run(feeds())
        model.close()
        runtime.add(place, name="live").run(feeds())


def test_copies_of_a_bundle_share_one_engine(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, tmp_path: Path
) -> None:
    fake = fakes.add("a")
    path = make_bundle("a", vectors=0)
    copy = tmp_path / "copy.edge"
    shutil.copy(path, copy)
    with Runtime(threads=1, history=history) as runtime:
        models = [runtime.add(p, name=str(i)) for i, p in enumerate([path, copy, path])]
        for model in models:
            model.run(feeds())
        assert (fake.loads, len(fake.open)) == (1, 1)
        for model in models[:2]:
            model.close()
        models[2].run(feeds())
        # Each copy is judged by itself: that one was loaded says nothing of another's signature.
        with pytest.raises(SignatureError):
            runtime.add(copy, name="signed", require_signature=True)


def test_a_runtime_keeps_within_the_process_too(
    fakes: Any, history: ProfileDB, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "edgeinfer"):
        runtime = Runtime(threads=1000, history=history)
    runtime.close()
    assert runtime.threads <= len(os.sched_getaffinity(0))
    assert "1000 threads were requested" in caplog.text


def test_a_runtime_s_own_threads_are_on_the_fast_cores(
    fakes: Any, make_bundle: MakeBundle, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("one CPU has no slower one next to it")
    kinds = (Cluster("big", (mine[-1],), 3000), Cluster("little", tuple(mine[:-1]), 1000))
    facts = Facts("linux", "x86_64", Cpu("two kinds", (), kinds))
    monkeypatch.setattr(fleet, "known_facts", lambda: facts)
    fake = fakes.add("a")
    seen: list[set[int]] = []
    load = fake.load

    def loaded(artifact: Any, options: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return load(artifact, options)

    fake.load = loaded
    with Runtime(history=history) as runtime:
        assert runtime.threads == 1
        model = runtime.add(make_bundle("a", vectors=0))
        assert runtime._scheduler.threads == 1
        model.submit(feeds()).exception(timeout=10)
    assert seen == [{mine[-1]}]
    assert sorted(os.sched_getaffinity(0)) == mine


def test_weights_of_one_bundle_are_in_memory_once(tmp_path: Path, history: ProfileDB) -> None:
    """A real engine: ten models of 32 MB of weights, three copies of the file."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    wide (float[1,2048] x, float[2048,4096] w) => (float[1,4096] y) { y = MatMul(x, w) }"""
    given = {"x": np.ones((1, 2048), np.float32)}
    path = bundle(text, tmp_path / "wide.edge", given)
    copies = [path, *(tmp_path / f"{i}.edge" for i in range(2))]
    for copy in copies[1:]:
        shutil.copy(path, copy)
    with Runtime(threads=1, history=history) as runtime:
        models = [runtime.add(copies[i % 3], name=str(i), measure=False) for i in range(10)]
        expected = models[0].run(given)["y"]
        before = resident_mb()
        for model in models[1:]:
            np.testing.assert_array_equal(model.run(given)["y"], expected)
        assert resident_mb() - before < 16
        assert sum(stats.loads for stats in runtime.stats().values()) == 10  # each tells the same
        assert models[9].engine is models[0].engine


def test_a_process_of_its_own_counts(tmp_path: Path, history: ProfileDB) -> None:
    path = bundle(MLP, tmp_path / "mlp.edge", {"x": np.ones((1, 16), np.float32)})
    with Runtime(threads=1, memory_mb=4000, history=history) as runtime:
        here = runtime.add(path, name="here", measure=False)
        apart = runtime.add(path, name="apart", measure=False, isolate=True)
        for model in (here, apart):
            model.run({"x": np.ones((1, 16), np.float32)})
        # An interpreter with NumPy and an engine.
        assert here.stats().memory_mb < 20 < apart.stats().memory_mb
    with Runtime(threads=1, memory_mb=20, history=history) as runtime:
        apart = runtime.add(path, name="apart", measure=False, isolate=True)
        with pytest.raises(MemoryBudgetError):
            apart.run({"x": np.ones((1, 16), np.float32)})


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_engines_bring_no_threads_of_their_own(tmp_path: Path, history: ProfileDB) -> None:
    given = {"x": np.ones((1, 16), np.float32)}
    paths = [bundle(MLP, tmp_path / f"{i}.edge", given) for i in range(30)]
    with edgeinfer.load(paths[0], threads=1, measure=False, history=history) as session:
        session.run(given)
    before = len(list(Path("/proc/self/task").iterdir()))
    with Runtime(threads=2, history=history) as runtime:
        models = [runtime.add(p, name=p.stem, measure=False) for p in paths]
        for future in [model.submit(given) for model in models * 3]:
            future.result(30)
        assert sum(stats.loaded for stats in runtime.stats().values()) == 30
        assert len(list(Path("/proc/self/task").iterdir())) <= before + runtime.threads
