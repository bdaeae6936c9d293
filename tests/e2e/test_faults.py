"""Whatever fails under a program that loads models: what it is told, and that nothing is lost."""

import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import (
    BackendError,
    CrashedError,
    LoadError,
    NotAvailableError,
    OutputError,
    RunError,
)
from edgeinfer.runtime.profiledb import FILE, PROBLEM_S, ProfileDB
from edgeinfer.types import TensorSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

X, Y = TensorSpec("x", "float32", (4,)), TensorSpec("x_out", "float32", (4,))
ONES = np.ones(4, np.float32)

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, faulty_engines: Path) -> Make:
    """Write a bundle whose artifact says how engines are to fail."""

    def write(does: str, *engines: str, vectors: int = 1, name: str = "m") -> Path:
        path = tmp_path / f"{name}.edge"
        with BundleWriter(path, overwrite=True) as writer:
            file = writer.add_bytes("variants/v/m.onnx", does.encode())
            required = tuple(EngineRequirement(engine) for engine in engines)
            variant = Variant("v", "cpu", "onnx", "fp32", (file,), required)
            records = tuple(
                writer.add_vector((X,), (Y,), {"x": ONES}, {"x_out": ONES * 2}, "user")
                for _ in range(vectors)
            )
            source = SourceRecord("onnx", "f", "0" * 64)
            writer.finish(Manifest(name, (X,), (Y,), (variant,), records, source))
        return path

    return write


def works(session: edgeinfer.Session) -> bool:
    return bool(np.array_equal(session(ONES), ONES * 2))


# While it is chosen: the next engine is taken, and the report has the reason.

CHOSEN = {
    "load:stray": "faulty: m.onnx: unexpected RuntimeError while it was loaded: an error of the",
    "load:memory": "faulty: m.onnx: out of memory while it was loaded",
    "load:lost": "faulty: the device was lost",
    "refuse:": "faulty: not today",
    "run:stray": "unexpected RuntimeError in a run on 'x' float32[4]: an error of the engine's own",
    "run:memory": "out of memory in a run on 'x' float32[4]; smaller inputs",
    "run:lost": "faulty: the device was lost",
    "run:numbers": "wrong numbers in vector 0, output 'x_out'",
    "run:nan": "wrong numbers in vector 0, output 'x_out'",
    "run:shape": "output 'x_out': expected x_out: float32[4], the engine gave shape [3]",
    "run:rank": "output 'x_out': expected x_out: float32[4], the engine gave shape [1, 4]",
    "run:dtype": "output 'x_out': expected float32, the engine gave float64",
    "run:missing": "output 'x_out': expected x_out: float32[4], the engine did not give it",
    "run:other": "the engine did not give it (it gave 'x_out!')",
    "run:list": "output 'x_out': expected an array, the engine gave list",
    "run:nothing": "expected outputs by name, the engine gave NoneType",
    "after1:memory": "out of memory",
    "close:stray": "",
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("does", CHOSEN)
def test_a_fault_while_it_is_chosen_takes_the_next(make: Make, does: str) -> None:
    path = make(does, "faulty", "steady")
    with edgeinfer.load(path) as session:
        assert works(session)
        reasons = [r.reason for r in session.report().rejected]
        if CHOSEN[does]:
            assert session.report().backend == "steady"
            assert CHOSEN[does] in reasons[0]


@pytest.mark.sample(6)
@pytest.mark.parametrize("does", [d for d in CHOSEN if CHOSEN[d]])
def test_with_nothing_else_to_take_the_fault_is_the_message(make: Make, does: str) -> None:
    with pytest.raises(NotAvailableError) as caught:
        edgeinfer.load(make(does, "faulty"))
    assert "v on faulty (cpu): " in str(caught.value)
    assert CHOSEN[does] in str(caught.value)
    assert "\n" not in str(caught.value)


# Once it runs: an error of ours that says what and where; the session lives on.


@pytest.mark.parametrize("does", [d for d in CHOSEN if d.startswith("run:") and "num" not in d])
def test_a_fault_in_a_run_is_told_and_nothing_else_changes(make: Make, does: str) -> None:
    does = does.replace("run:", "first:")
    with edgeinfer.load(make(does, "faulty"), measure=False) as session:
        if does == "first:nan":
            assert np.isnan(session(ONES)).all()
            return
        with pytest.raises(RunError) as caught:
            session(ONES)
        assert CHOSEN[does.replace("first:", "run:")] in str(caught.value)
        # What it gives instead of an answer is the artifact's fault, and no one else's.
        is_of_artifact = does.partition(":")[2] not in ("stray", "memory", "lost")
        assert caught.value.exit_code == (1 if is_of_artifact else 3)
        assert works(session)


@pytest.mark.parametrize("fault", ["stray", "memory", "lost"])
def test_bound_runs_tell_the_same(make: Make, fault: str) -> None:
    with edgeinfer.load(make(f"first:{fault}", "faulty"), measure=False) as session:
        bound = session.bind({"x": ONES})
        with pytest.raises(RunError, match=r"lost|out of memory|unexpected RuntimeError"):
            bound()
        np.testing.assert_array_equal(bound()["x_out"], ONES * 2)


def test_an_engine_that_cannot_be_closed_gives_its_bundle_back(make: Make) -> None:
    # Drivers of devices that are here stay open from the first look at them.
    edgeinfer.load(make("", "faulty"), measure=False).close()
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    session = edgeinfer.load(make("close:stray", "faulty"), measure=False)
    with pytest.raises(RunError, match="unexpected RuntimeError while it was closed"):
        session.close()
    session.close()
    if before:
        assert set(os.listdir("/proc/self/fd")) == before


# The device.


def test_a_lost_device_is_told_and_comes_back(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("FAULTY_GONE", str(gone))
    path = make("", "faulty")
    with edgeinfer.load(path) as session:
        gone.touch()
        with pytest.raises(RunError, match="the device was lost"):
            session(ONES)
        with pytest.raises(NotAvailableError, match="its device is gone; plug it in"):
            edgeinfer.load(path)
        gone.unlink()
        assert works(session)
    with edgeinfer.load(path) as session:
        assert works(session)


def test_an_accelerator_that_fails_is_not_replaced_in_silence(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTY_KIND", "gpu")
    path = make("load:lost", "faulty", "steady")
    with pytest.raises(LoadError, match=r"v on faulty \(gpu\): faulty: the device was lost; load"):
        edgeinfer.load(path)
    with edgeinfer.load(path, strict=False) as session:
        assert works(session)
        assert any("runs on the CPU because v on faulty" in n for n in session.report().notes)


# In a process of its own.

ENDS = {
    "abort": "SIGABRT: terminate called after throwing an instance of 'std::bad_alloc'",
    "segv": "SIGSEGV",
    "kill": "SIGKILL, as when memory runs out",
    "memory": "out of memory",
    "hang": "no answer for 0.5 s",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", ENDS)
def test_what_takes_an_engine_down_is_told_and_it_is_started_again(make: Make, fault: str) -> None:
    path = make(f"first:{fault}", "faulty")
    with edgeinfer.load(path, measure=False, isolate=True, run_timeout_s=0.5) as session:
        with pytest.raises(CrashedError) as caught:
            session(ONES)
        expected = f"faulty: its process ended while it was to run: {ENDS[fault]}"
        assert str(caught.value) == expected
        assert works(session)


def test_one_that_goes_down_while_it_is_chosen_is_passed_over(make: Make) -> None:
    path = make("load:abort", "faulty", "steady")
    with edgeinfer.load(path, isolate=True) as session:
        assert works(session)
        (rejected,) = session.report().rejected
    assert "its process ended while it was to load m.onnx: SIGABRT" in rejected.reason


def test_one_that_hangs_while_it_loads_is_passed_over(make: Make) -> None:
    path = make("load:hang", "faulty", "steady")
    with edgeinfer.load(path, isolate=True, load_timeout_s=5.0) as session:
        assert works(session)
        (rejected,) = session.report().rejected
    assert "load m.onnx: no answer for 5 s" in rejected.reason


def test_a_leak_is_bounded(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    path = make("run:leak", "faulty")
    options: dict[str, Any] = {"measure": False, "isolate": True, "memory_mb": 200.0}
    with edgeinfer.load(path, **options) as session, caplog.at_level(logging.WARNING, "edgeinfer"):
        until = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < until:
            assert works(session)
        assert works(session)
        notes = session.report().notes
    assert any("MB, memory_mb is 200: ended, and started anew by the next run" in n for n in notes)


# An engine that takes this very process down while it is tried.

TRY = """
    import sys
    import edgeinfer
    with edgeinfer.load(sys.argv[1]) as session:
        report = session.report()
        print(report.backend, report.isolated, *report.notes, *report.rejected, sep="|")
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_what_ended_the_process_is_tried_apart_the_next_time(make: Make) -> None:
    path = make("load:abort", "faulty", "steady")
    first = run(TRY, path)
    assert first.returncode == -signal.SIGABRT
    second = run(TRY, path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("steady|")
    assert "is tried in a process of its own, because process" in second.stdout
    assert "SIGABRT" in second.stdout
    # A problem of memory passes, so it is tried again: apart, for as long as it is suspected.
    third = run(TRY + TRY.partition("import edgeinfer")[2], path)
    assert third.returncode == 0, third.stderr
    for line in third.stdout.splitlines():
        assert line.startswith("steady|False")
        assert "is tried in a process of its own, because process" in line


def test_a_trial_that_is_broken_off_leaves_no_suspicion(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make("", "steady")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edgeinfer.runtime.bench.measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            edgeinfer.load(path)
    with edgeinfer.load(path) as session:
        assert not session.report().isolated
        assert not session.report().notes


# The history.


def damage(path: Path, how: str) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    match how:
        case "text":
            path.write_bytes(b"this was a database once " * 400)
        case "cut":
            path.write_bytes(path.read_bytes()[:5000])
        case "pages":
            data = path.read_bytes()
            path.write_bytes(data[:100] + b"\x55" * (len(data) - 100))
        case "columns":
            path.unlink()
            with sqlite3.connect(path) as db:
                db.execute("CREATE TABLE measured (artifact TEXT, speed REAL)")
            db.close()
        case "rows":
            with sqlite3.connect(path) as db:
                db.execute("UPDATE measured SET data = x'00ff', at = 'yesterday'")
            db.close()
        case "figures":
            with sqlite3.connect(path) as db:
                db.execute("""UPDATE measured SET data = '{"median_ms": -1.0, "runs": 3}'""")
            db.close()
        case "folder":
            path.unlink()
            path.mkdir()
        case "pipe":
            path.unlink()
            os.mkfifo(path)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("text", "history was damaged"),
        ("cut", ""),
        ("pages", "history was damaged"),
        ("columns", "history was damaged (its table has the columns artifact, speed)"),
        ("rows", ""),
        ("figures", ""),
        ("folder", "kept in memory only"),
        ("pipe", "kept in memory only"),
    ],
)
def test_a_corrupted_history_costs_a_measurement(make: Make, how: str, said: str) -> None:
    path = make("", "faulty", "steady")
    edgeinfer.load(path).close()
    place = Path(os.environ["EDGEINFER_CACHE"]) / FILE
    damage(place, how)
    with edgeinfer.load(path) as session:
        assert works(session)
        notes = " ".join(session.report().notes)
        assert all(c.measured and c.measured.median_ms >= 0 for c in session.report().candidates)
    assert said in notes
    assert notes == "" or str(place) in notes
    with edgeinfer.load(path) as session:
        assert works(session)


def test_a_history_damaged_while_it_is_open_stops_nothing(make: Make, tmp_path: Path) -> None:
    path = make("", "steady")
    place = tmp_path / "h.sqlite"
    with ProfileDB(place) as history:
        edgeinfer.load(path, history=history).close()
        damage(place, "text")
        with edgeinfer.load(path, history=history) as session:
            assert works(session)
        history.clear()
        assert all(str(place) in note for note in history.notes)
    with ProfileDB(place) as history, edgeinfer.load(path, history=history) as session:
        assert works(session)


@pytest.mark.sample(3)
@pytest.mark.parametrize("days", [-400, -0.01, 0.01, 2, 400, 40000])
def test_a_clock_that_was_set_costs_a_measurement_at_most(
    make: Make, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    path = make("first:refuse", "faulty", "steady")
    with edgeinfer.load(path) as session:
        assert session.report().backend == "steady"
    now = time.time() + days * 86_400
    monkeypatch.setattr(time, "time", lambda: now)
    with edgeinfer.load(path) as session:
        assert works(session)
        still = 0 <= days * 86_400 <= PROBLEM_S
        assert [r.backend for r in session.report().rejected] == (["faulty"] if still else [])


def test_a_clock_that_jumps_ahead_takes_no_file_from_under_another(make: Make) -> None:
    """A Pi has no clock of its own: it jumps by years when the network comes up."""
    from edgeinfer.bundle import unpacking

    bundle = make("", "steady")
    cache = Path(os.environ["EDGEINFER_CACHE"])
    with edgeinfer.load(bundle) as session:
        assert works(session)
    (unpacked,) = cache.rglob("m.onnx")
    with unpacking.partial_file(unpacked.parent) as (partial, stream):
        os.utime(partial, (0, 0))
        unpacked.unlink()
        edgeinfer.load(bundle).close()
        assert partial.exists()
        stream.write(b"")
    assert not partial.exists()


# The cache folder.


@pytest.mark.parametrize("place", ["/proc/edgeinfer", "/dev/null/x", "file"])
def test_a_cache_that_cannot_be_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / place))
    with edgeinfer.load(make("", "steady")) as session:
        assert works(session)
        notes = session.report().notes
    assert any("unpacked into a temporary folder" in note for note in notes)
    assert any("kept in memory only" in note for note in notes)
    assert not any("Errno" in note for note in notes)
    assert all(str(tmp_path / place) in note for note in notes)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory")
def test_a_full_disk_is_told_with_the_way_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def no_memory() -> None:
        raise NotAvailableError("there are no files in memory here")

    path = make("", "steady")
    monkeypatch.setattr("edgeinfer.bundle.archive.os.replace", full)
    with edgeinfer.load(path) as session:
        assert works(session)
        notes = session.report().notes
    reason = r"cannot be written \(No space left on device\)"
    assert any(re.fullmatch(rf"cache folder .* {reason}: .*", note) for note in notes), notes
    reason = r"cannot be written either \(No space left on device\)"
    expected = f"the temporary folder {reason}: unpacked into memory, again at every load"
    assert any(re.fullmatch(expected, note) for note in notes), notes
    monkeypatch.setattr("edgeinfer.bundle.archive.MemoryFiles", no_memory)
    with pytest.raises(OutputError, match="set EDGEINFER_CACHE or TMPDIR"):
        edgeinfer.load(path)
    assert not list(Path(os.environ["EDGEINFER_CACHE"]).rglob(".unpack-*"))


def test_processes_at_once_on_one_cache(make: Make) -> None:
    path = make("", "faulty", "steady", vectors=3)
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run(TRY, path), range(3)))
    assert [d.returncode for d in done] == [0, 0, 0], [d.stderr for d in done]
    assert all(d.stdout.strip().endswith("|False") for d in done), [d.stdout for d in done]
    with edgeinfer.load(path) as session:
        assert all(c.measured for c in session.report().candidates)
        assert not session.report().notes


def test_a_process_killed_while_it_tries_loses_nothing(make: Make) -> None:
    slow = make("load:hang", "faulty", "steady")
    command = [sys.executable, "-c", textwrap.dedent(TRY), str(slow)]
    victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cache = Path(os.environ["EDGEINFER_CACHE"])
    until = time.monotonic() + 60
    while not (cache / FILE).exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.5)
    victim.kill()
    victim.wait()
    path = make("", "steady", name="other")
    with edgeinfer.load(path) as session:
        assert works(session)
        assert not session.report().notes


# Many models in one runtime.


@pytest.mark.parametrize("fault", ["stray", "memory", "lost", "shape", "missing"])
def test_one_bad_model_spoils_no_other(make: Make, fault: str) -> None:
    good = make("", "steady", name="good")
    bad = make(f"run:{fault}", "faulty", name="bad")
    with edgeinfer.Runtime(threads=2) as runtime:
        fine = runtime.add(good)
        broken = runtime.add(bad, measure=False)
        futures = [(fine.submit({"x": ONES}), broken.submit({"x": ONES})) for _ in range(10)]
        for well, ill in futures:
            np.testing.assert_array_equal(well.result(30)["x_out"], ONES * 2)
            with pytest.raises(RunError, match=r"faulty"):
                ill.result(30)
        stats = runtime.stats()
    assert (stats["good"].calls.runs, sum(stats["bad"].calls.failures.values())) == (10, 10)


def test_a_runtime_closes_all_that_it_can(make: Make) -> None:
    bad = make("close:stray", "faulty", name="bad")
    good = make("", "steady", name="good")
    runtime = edgeinfer.Runtime(threads=1)
    models = [runtime.add(bad, measure=False), runtime.add(good)]
    for model in models:
        model(ONES)
    with pytest.raises(BackendError, match="while it was closed"):
        runtime.close()
    assert not models[1].engine.is_loaded
    assert threading.active_count() < 50


def test_a_model_that_hangs_is_stopped_and_others_go_on(make: Make) -> None:
    bad = make("run:hang", "faulty", name="bad")
    good = make("", "steady", name="good")
    with edgeinfer.Runtime(threads=2) as runtime:
        stuck = runtime.add(bad, measure=False, isolate=True, run_timeout_s=1.0)
        fine = runtime.add(good)
        fine(ONES)
        future = stuck.submit({"x": ONES})
        for _ in range(20):
            np.testing.assert_array_equal(fine(ONES), ONES * 2)
        with pytest.raises(CrashedError, match="no answer for 1 s"):
            future.result(30)
