"""What takes an engine down is an exception here, and everything else is as without a process."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.process.isolated import IsolatedBackend, IsolatedExecutable
from edgeinfer.backends.testing import run_checks
from edgeinfer.errors import ClosedError, CrashedError, LoadError, RunError
from edgeinfer.types import TensorSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

X, Y = TensorSpec("x", "float32", (None,)), TensorSpec("x_out", "float32", (None,))
ONES = np.ones(4, np.float32)
Load = Callable[..., IsolatedExecutable]


@pytest.fixture
def load(faulty_engines: Path, tmp_path: Path) -> Load:
    def make(does: str, **limits: float) -> IsolatedExecutable:
        path = tmp_path / "m.onnx"
        path.write_text(does)
        backend = IsolatedBackend("faulty", run_s=limits.get("run_s"), load_s=limits.get("load_s"))
        return backend.load(Artifact("onnx", path, (X,), (Y,)), LoadOptions())

    return make


ENDS = {
    "abort": "SIGABRT: terminate called after throwing an instance of 'std::bad_alloc'",
    "segv": "SIGSEGV",
    "kill": "SIGKILL, as when memory runs out",
    "exit": "exit code 7",
    "memory": "out of memory",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", ENDS)
def test_a_crash_in_a_run(load: Load, fault: str) -> None:
    with pytest.raises(CrashedError) as caught:
        load(f"run:{fault}").run({"x": ONES})
    error = caught.value
    assert (error.engine, error.stage, error.how) == ("faulty", "run", ENDS[fault])
    assert str(error) == f"faulty: its process ended while it was to run: {ENDS[fault]}"
    assert error.exit_code == 3


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", ENDS)
def test_a_crash_while_it_loads(load: Load, fault: str) -> None:
    with pytest.raises(CrashedError) as caught:
        load(f"load:{fault}")
    assert (caught.value.stage, caught.value.how) == ("load m.onnx", ENDS[fault])


def test_what_hangs_is_stopped(load: Load) -> None:
    executable = load("run:hang", run_s=0.3)
    assert executable._process is not None
    pid = executable._process._child.pid
    start = time.monotonic()
    with pytest.raises(CrashedError, match=r"while it was to run: no answer for 0\.3 s"):
        executable.run({"x": ONES})
    assert time.monotonic() - start < 10
    assert not _exists(pid)
    with pytest.raises(CrashedError, match=r"to load m\.onnx: no answer for 0\.3 s"):
        load("load:hang", load_s=0.3)


@pytest.mark.parametrize("fault", ["segv", "hang"])
def test_a_crashing_probe_is_a_reason(
    faulty_engines: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("FAULTY_PROBE", fault)
    with IsolatedBackend("faulty", load_s=1.0) as backend:
        probe = backend.probe()
    assert not probe.available
    assert "its process ended while it was to look for its devices" in probe.reason


def test_the_next_run_starts_it_again(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    executable = load("first:segv")
    with pytest.raises(CrashedError):
        executable.run({"x": ONES})
    np.testing.assert_array_equal(executable.run({"x": ONES})["x_out"], ONES * 2)
    assert caplog.messages == ["faulty was started again after a crash: SIGSEGV"]


def test_what_always_crashes_is_left_alone_for_a_while(load: Load) -> None:
    executable = load("run:segv")
    for _ in range(2):
        with pytest.raises(CrashedError):
            executable.run({"x": ONES})
    start = time.monotonic()
    with pytest.raises(CrashedError, match=r"SIGSEGV; it will be started again in 0\.\d s"):
        executable.run({"x": ONES})
    assert time.monotonic() - start < 0.1
    time.sleep(0.3)
    with pytest.raises(CrashedError) as caught:
        executable.run({"x": ONES})
    assert "started again in" not in str(caught.value)


def test_a_process_killed_from_outside(load: Load) -> None:
    executable = load("echo")
    assert executable._process is not None
    os.kill(executable._process._child.pid, signal.SIGKILL)
    with pytest.raises(CrashedError, match="SIGKILL"):
        executable.run({"x": ONES})
    np.testing.assert_array_equal(executable.run({"x": ONES})["x_out"], ONES * 2)


def test_what_the_engine_says_itself_is_said_here(load: Load) -> None:
    with pytest.raises(LoadError, match="not today"):
        load("refuse")
    executable = load("first:refuse")
    with pytest.raises(RunError, match="a shape that does not fit") as caught:
        executable.run({"x": ONES})
    assert "faults.py" in str(caught.value.__cause__)
    np.testing.assert_array_equal(executable.run({"x": ONES})["x_out"], ONES * 2)


@pytest.mark.parametrize("first", ["refuse", "kill"])
def test_what_cannot_be_opened_anew_now_is_a_failed_run(
    load: Load, tmp_path: Path, first: str
) -> None:
    executable = load(f"run:{first}")
    with pytest.raises((RunError, CrashedError)):
        executable.run({"x": ONES})
    (tmp_path / "m.onnx").write_text("refuse")
    with pytest.raises(RunError, match=r"could not be opened anew for this run: .*tries again"):
        executable.run({"x": ONES})
    (tmp_path / "m.onnx").write_text("")
    np.testing.assert_array_equal(executable.run({"x": ONES})["x_out"], ONES * 2)


@pytest.mark.parametrize("where", ["receive", "view"])
def test_memory_that_is_short_here_leaves_no_answer_for_the_next_run(
    load: Load, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = load("")
    process = executable._process
    assert process is not None
    executable.run({"x": ONES})

    def fail(*_: object) -> None:
        raise MemoryError

    longer = np.full(9, 2.0, np.float32)
    with monkeypatch.context() as short:
        short.setattr(process._child if where == "receive" else process.memory, where, fail)
        with pytest.raises(MemoryError):
            executable.run({"x": longer})
    for x in (longer, 3 * longer, ONES, 5 * longer):
        np.testing.assert_array_equal(executable.run({"x": x})["x_out"], x * 2)


def test_tensors_of_all_kinds_and_sizes(load: Load) -> None:
    executable = load("echo")
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(3).astype(np.float32),
        rng.standard_normal((0, 4)),
        np.float64(2.5),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        rng.standard_normal((300, 1000)).astype(np.float16)[::2, ::3],
        np.array(["ä", "b"], object),
        rng.standard_normal((1000, 1000)).astype(np.float32),
        np.array([[1, 2]], np.uint8),
    ]
    for array in [*arrays, *reversed(arrays)]:
        for _ in range(2):
            (got,) = executable.run({"x": np.asarray(array)}).values()
            expected = array if np.asarray(array).dtype == object else np.asarray(array) * 2
            np.testing.assert_array_equal(got, expected)
            assert got.dtype == np.asarray(expected).dtype
            assert got.flags.owndata
    assert executable.run({}) == {}
    both = executable.run({"x": np.asarray(arrays[0]), "z": np.asarray(arrays[3])})
    np.testing.assert_array_equal(both["z_out"], np.asarray(arrays[3]) * 2)


def test_without_inputs_and_at_once(load: Load) -> None:
    assert load("echo").run({}) == {}


def test_results_are_kept_by_later_runs(load: Load) -> None:
    executable = load("echo")
    first = executable.run({"x": ONES})["x_out"]
    executable.run({"x": ONES * 3})
    np.testing.assert_array_equal(first, ONES * 2)


def test_closed_is_closed(load: Load) -> None:
    executable = load("echo")
    executable.close()
    executable.close()
    with pytest.raises(ClosedError):
        executable.run({"x": ONES})
    with pytest.raises(ClosedError):
        executable.bind({"x": ONES}, {"x_out": ONES.copy()})


def test_nothing_is_left_behind(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("echo").close()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for does in ("echo", "run:segv", "echo"):
        executable = load(does)
        assert executable._process is not None
        pid = executable._process._child.pid
        if does != "echo":
            with pytest.raises(CrashedError):
                executable.run({"x": ONES})
        del executable
        gc.collect()
        assert not _exists(pid)
    assert list(temporary.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_ends_with_its_parent(load: Load, faulty_engines: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("run:hang")
    script = (
        "import sys, threading, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from edgeinfer.backends.base import Artifact, LoadOptions\n"
        "from edgeinfer.backends.process.isolated import IsolatedBackend\n"
        "a = Artifact('onnx', Path(sys.argv[2]), (), ())\n"
        "e = IsolatedBackend('faulty').load(a, LoadOptions())\n"
        "print(e._process._child.pid, flush=True)\n"
        "e.run({'x': np.ones(1)})\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(faulty_engines), str(tmp_path / "m.onnx")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 20
    while _exists(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _exists(pid)


def _exists(pid: int) -> bool:
    """Whether it runs; one that nobody has asked about yet is over too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "reference"])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_conformance(name: str) -> None:
    """As the backend itself; its own known faults are not this wrapper's."""
    own = {o.check for o in run_checks(registry.get(name)) if o.status != "passed"}
    apart = {o.check for o in run_checks(IsolatedBackend(name)) if o.status != "passed"}
    assert apart <= own
