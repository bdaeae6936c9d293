"""The second layer around a trial; each part is tried in a process that it then holds."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edgeinfer.backends.process import confine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has these")

_ASK = """
import os, socket, subprocess, sys
from pathlib import Path
from edgeinfer.backends.process.confine import confine
folder, other = Path(sys.argv[1]), Path(sys.argv[2])
stands = confine([folder])
def tried(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
print(",".join(stands))
print(tried(lambda: (folder / "x").write_text("x")))
print(tried(lambda: (other / "x").write_text("x")))
print(tried(lambda: (other / "there").read_text()))
print(tried(lambda: (other / "there").unlink()))
print(tried(lambda: socket.socket(socket.AF_INET)))
print(tried(lambda: socket.socket(socket.AF_UNIX)))
print(tried(lambda: subprocess.run(["true"])))
print(tried(lambda: os.kill(os.getppid(), 0)))
print(tried(lambda: os.kill(os.getpid(), 0)))
"""


@pytest.fixture
def folders() -> Iterator[tuple[Path, Path]]:
    """Two on a disk: shared memory, where tests keep their files, is everybody's."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        made = Path(base, "own"), Path(base, "other")
        for folder in made:
            folder.mkdir()
        yield made


def test_what_is_confined_can_do_nothing_to_others(folders: tuple[Path, Path]) -> None:
    folder, other = folders
    (other / "there").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(folder), str(other)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stands, *errors = done.stdout.splitlines()
    own, write, read, remove, inet, unix, run, parent, itself = map(int, errors)
    assert (own, read, itself) == (0, 0, 0)
    if "landlock" in stands:
        assert (write, remove) == (13, 13)
        assert (other / "there").exists()
    if "seccomp" in stands:
        assert (inet, unix, run, parent) == (1, 1, 1, 1)
    assert (folder / "x").read_text() == "x"


def test_a_kernel_with_both_gives_both(tmp_path: Path) -> None:
    has_landlock = "landlock" in _text("/sys/kernel/security/lsm")
    has_seccomp = "seccomp" in _text("/proc/self/status").lower()
    if platform.machine() not in ("x86_64", "aarch64") or not (has_landlock and has_seccomp):
        pytest.skip("this kernel has not both")
    asked = "from edgeinfer.backends.process.confine import confine; print(*confine([]))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout.split() == ["landlock", "seccomp"]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_jumps_of_the_filter_stay_inside(machine: str) -> None:
    code = confine.program(machine, 1)
    count = len(code) // 8
    assert count < 256
    for at in range(count):
        kind, yes, no = code[8 * at], code[8 * at + 2], code[8 * at + 3]
        if kind & 7 == 5:
            assert at + 1 + max(yes, no) < count
    assert code[-8] == 0x06


_FORK = """
import ctypes, os, sys, threading
from edgeinfer.backends.process.confine import confine
stands = confine([], programs=bool(sys.argv[1:]))
print("seccomp" in stands)
threads = [threading.Thread(target=sys.stdout.write, args=("thread ",)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
system = ctypes.CDLL(None, use_errno=True)
sys.stdout.flush()
child = system.fork()
if child == 0:
    os._exit(0)
print("forked" if child > 0 else ctypes.get_errno())
"""


@pytest.mark.parametrize("programs", [[], ["programs"]])
def test_what_starts_no_programs_makes_no_process(programs: list[str]) -> None:
    """One that forks without end took all the processes that its user may have."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK, *programs],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stands, *threads, made = done.stdout.split()
    assert threads == ["thread", "thread"]
    assert made == ("1" if stands == "True" and not programs else "forked")


_START = """
import subprocess, sys
from pathlib import Path
from edgeinfer.backends.process.confine import confine
folder, other = Path(sys.argv[1]), Path(sys.argv[2])
print(",".join(confine([folder], programs=True)))
for act in ("open(sys.argv[1] + '/y', 'w')", "open(sys.argv[2] + '/y', 'w')", "socket.socket()"):
    script = f"import socket, sys; {act}"
    started = [sys.executable, "-c", script, *sys.argv[1:]]
    print(int(subprocess.run(started, stderr=subprocess.DEVNULL).returncode == 0))
"""


def test_programs_that_it_starts_are_confined_too(folders: tuple[Path, Path]) -> None:
    folder, other = folders
    done = subprocess.run(
        [sys.executable, "-c", _START, str(folder), str(other)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stands, own, write, network = done.stdout.splitlines()
    assert own == "1"
    if "landlock" in stands:
        assert write == "0"
    if "seccomp" in stands:
        assert network == "0"


_STUCK = """
import sys, time
from edgeinfer.backends.process.child import Child
process = Child("stuck_in_an_engine")
print(process.pid, process.receive(60), flush=True)
time.sleep(60)
"""


def test_a_process_whose_parent_was_killed_ends_whatever_it_does(tmp_path: Path) -> None:
    """An engine holds the interpreter's lock, and waits for a pipe that nobody opens."""
    (tmp_path / "stuck_in_an_engine.py").write_text(
        "import ctypes\n"
        "from edgeinfer.backends.process import child\n"
        "connection, _ = child.connect()\n"
        "child.answer(connection, 'ready')\n"
        "ctypes.PyDLL(None).sleep(300)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", _STUCK],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert parent.stdout is not None
    pid, word = parent.stdout.readline().split()
    assert word == "ready"
    child = psutil.Process(int(pid))
    parent.kill()
    parent.wait()
    child.wait(100)


_TYPE = """
import errno, fcntl, os, pty, sys, termios
from edgeinfer.backends.process.confine import confine
_, terminal = pty.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
def typed(what):
    try:
        fcntl.ioctl(terminal, what, b"x")
    except OSError as error:
        return errno.errorcode[error.errno]
    return "typed"
stands = confine([])
fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
print(",".join(stands), typed(termios.TIOCSTI), typed(0x541C))
"""


def test_nothing_is_typed_into_the_terminal(tmp_path: Path) -> None:
    """A shell behind the command would run it."""
    done = subprocess.run(
        [sys.executable, "-c", _TYPE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stands, *typed = done.stdout.split(" ")
    if "seccomp" in stands:
        assert [word.strip() for word in typed] == ["EPERM", "EPERM"]


_END = """
import tempfile
from pathlib import Path
from edgeinfer.backends.process.child import Child
from edgeinfer.backends.process.confine import confine
confine([Path(tempfile.gettempdir())], programs=True)
process = Child("edgeinfer.backends.process.isolated_host")
process.kill()
print(process.how())
"""


def test_what_it_started_ends_without_a_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _END],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout in ("exit code 1\n", "SIGKILL, as when memory runs out\n")
