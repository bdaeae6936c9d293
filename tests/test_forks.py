"""What forked processes know of their parent."""

import gc
import os
import threading
import weakref
from concurrent.futures import wait
from pathlib import Path

import pytest

from edgeinfer import forks
from edgeinfer.bundle import scratch
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.errors import RunError
from edgeinfer.pending import Pending
from tests.forked import in_fork


@pytest.mark.parametrize("make", [forks.lock, forks.rlock])
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process(make: object) -> None:
    lock = make()  # type: ignore[operator]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert in_fork(lambda: lock.acquire(timeout=1)) is True
        assert not lock.acquire(blocking=False)
    finally:
        done.set()
        thread.join()


def test_what_is_watched_is_told_in_the_forked_process_only() -> None:
    class Owner:
        told = 0

        def forked(self) -> None:
            self.told += 1

    owner = Owner()
    forks.watch(owner)
    assert in_fork(lambda: owner.told) == 1
    assert owner.told == 0


def test_an_owner_that_is_at_fault_does_not_keep_others_from_knowing() -> None:
    class Owner:
        told = False

        def forked(self) -> None:
            self.told = True
            raise ValueError("at fault")

    owners = [Owner(), Owner()]
    for owner in owners:
        forks.watch(owner)
    assert in_fork(lambda: [owner.told for owner in owners]) == [True, True]


def test_futures_that_nobody_settles_are_errors_in_a_forked_process() -> None:
    pending, done, failed = Pending[int](), Pending[int](), Pending[int]()
    done.set_result(3)
    failed.set_exception(ValueError("no"))

    def look() -> tuple[str, int | None, str]:
        wait([pending])
        return type(pending.exception()).__name__, done.result(), str(failed.exception())

    assert in_fork(look) == ("RunError", 3, "no")
    assert not pending.done()
    pending.set_result(4)
    assert pending.result() == 4


def test_what_a_future_was_settled_with_goes_with_it() -> None:
    """It held itself, and so the outputs of each run, until the collector came."""

    class Outputs: ...

    gc.disable()
    try:
        pending, outputs = Pending[Outputs](), Outputs()
        kept = weakref.ref(outputs)
        pending.set_result(outputs)
        del pending, outputs
        assert kept() is None
    finally:
        gc.enable()


def test_a_future_says_what_to_do() -> None:
    pending = Pending[int]()
    error = in_fork(pending.exception)
    assert isinstance(error, RunError)
    assert str(error) == "it runs in the process that this one was forked from: run it here"


def test_a_fork_waits_for_what_must_not_be_divided() -> None:
    inside, go, log = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        with forks.undivided():
            inside.set()
            go.wait(60)
            log.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    threading.Timer(0.05, go.set).start()
    assert in_fork(lambda: list(log)) == ["done"]
    thread.join()


def test_a_thread_may_fork_in_what_it_must_not_divide_itself() -> None:
    with forks.undivided():
        assert in_fork(os.getpid) != os.getpid()


def test_engines_that_were_used_are_inherited_by_forked_processes() -> None:
    assert not forks.is_inherited("test-engine")
    forks.used("test-engine")
    assert not forks.is_inherited("test-engine")
    assert in_fork(lambda: forks.is_inherited("test-engine"))
    assert in_fork(lambda: in_fork(lambda: forks.is_inherited("test-engine")))


def test_scratch_folders_are_left_to_the_process_that_made_them() -> None:
    folder = Scratch()
    (folder.path / "file").write_bytes(b"x")
    assert in_fork(folder.cleanup) is None
    assert (folder.path / "file").exists()
    folder.cleanup()
    folder.cleanup()
    assert not folder.path.exists()


def test_what_a_killed_process_left_is_swept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_swept", set())
    mine = Scratch()
    # As a process that was killed leaves it: the folder, and a lock that nobody holds.
    left = tmp_path / "edgeinfer-left"
    left.mkdir(mode=0o700)
    (left / ".lock").touch()
    (left / "model.onnx").touch()
    half, fresh = tmp_path / "edgeinfer-half", tmp_path / "edgeinfer-fresh"
    half.mkdir(mode=0o700)
    os.utime(half, (0, 0))
    fresh.mkdir()
    strangers = tmp_path / "edgeinfer-notes"
    strangers.mkdir()
    (strangers / "file").touch()
    os.utime(strangers, (0, 0))
    scratch.sweep()
    assert left.exists(), "once in a process is enough"
    in_fork(scratch.sweep)
    assert not left.exists()
    assert not half.exists()
    assert fresh.exists()
    assert strangers.exists()
    assert mine.path.exists()
    mine.cleanup()


def test_garbage_of_the_parent_is_not_freed_in_a_forked_process() -> None:
    """What is in a ring is not told: to free an engine there waits for the parent's threads."""

    class Engine:
        def __del__(self) -> None:
            freed.append(os.getpid())

    freed: list[int] = []

    def left_in_a_ring() -> None:
        ring: list[object] = [Engine()]
        ring.append(ring)

    def collected() -> list[int]:
        gc.collect()
        return freed

    gc.collect()
    gc.disable()
    try:
        left_in_a_ring()
        forks.used("an engine")
        assert in_fork(collected) == []
        gc.collect()
        assert freed == [os.getpid()]
    finally:
        gc.enable()
        forks._used.discard("an engine")


def test_what_an_engine_has_once_is_not_freed_in_a_forked_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Modules let go of it when the interpreter ends, there too, where its threads are not."""

    class Core:
        pass

    monkeypatch.setattr(forks, "_owned", [])

    def is_there_after_the_last_name_of_it() -> bool:
        forks._owned.clear()
        names.clear()
        gc.collect()
        return seen() is not None

    names = [forks.owned(Core())]
    seen = weakref.ref(names[0])
    assert in_fork(is_there_after_the_last_name_of_it) is True
    assert not is_there_after_the_last_name_of_it()


def test_the_core_of_openvino_is_not_freed_in_a_forked_process() -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    from edgeinfer.backends.openvino import backend

    seen = weakref.ref(backend._core())

    def is_there_without_a_module() -> bool:
        backend._core.cache_clear()
        forks._owned.clear()
        gc.collect()
        return seen() is not None

    assert in_fork(is_there_without_a_module) is True
