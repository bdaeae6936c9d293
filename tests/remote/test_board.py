"""Commands on a device behind ssh, played by a program that runs the device's commands here."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.errors import EdgeInferError, NotAvailableError, UsageError
from edgeinfer.installed import BACKENDS
from edgeinfer.remote import board, printed, ssh
from tests.remote import stand_in_ssh

ECHO = """
import json, os, sys
print(json.dumps({"said": sys.argv[1:], "here": sorted(os.listdir()), "at": os.getcwd()}))
print("a remark", file=sys.stderr)
if "-o" in sys.argv:
    open("saved.json", "w").write("{}")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = f'#!/bin/sh\nexec "{sys.executable}" -S "{stand_in_ssh.__file__}" "$@"\n'
    monkeypatch.setenv(ssh.CLIENT, str(executable(tmp_path / "ssh", stand_in)))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device on which ``python -m edgeinfer`` is a program that says what it was given."""
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "empty.py").touch()
    files = [("__main__.py", tmp_path / "echo.py"), ("__init__.py", tmp_path / "empty.py")]
    monkeypatch.setattr(board, "_package", lambda: iter(files))
    return f"ssh://pi@board{sys.executable}"


def left(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "temporary")


def test_words_files_and_what_comes_back(
    echo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("x")
    words = ["bench", "a b", "'; rm -rf x", "$HOME", "-o", "saved.json"]
    files = {"0/in/inner": tmp_path / "folder" / "inner", "1/echo.py": tmp_path / "echo.py"}
    answer = board.run(echo, words, files, output="saved.json", environment={"CODE": "3"})
    assert answer.code == 3
    assert '"said": ["bench", "a b", "\'; rm -rf x", "$HOME", "-o", "saved.json"]' in answer.said
    assert '"here": ["0", "1"]' in answer.said
    assert answer.wrote == b"{}"
    assert capsys.readouterr().err == "a remark\n"
    assert left(tmp_path) == []


def test_a_file_that_was_not_written_is_none(echo: str) -> None:
    assert board.run(echo, ["verify"], {}, output="saved.json").wrote is None


def test_what_a_shell_prints_at_login_is_no_answer(echo: str, tmp_path: Path) -> None:
    noisy = executable(
        tmp_path / "python",
        f'#!/bin/sh\necho "Welcome to the board"\nexec "{sys.executable}" "$@"\n',
    )
    answer = board.run(f"ssh://pi@board{noisy}", ["verify"], {})
    assert answer.code == 0
    assert "Welcome" not in answer.said


def test_a_device_that_cannot_be_reached() -> None:
    with pytest.raises(NotAvailableError, match="ssh: nobody@board: Permission denied"):
        board.run("ssh://nobody@board", ["verify"], {})
    with pytest.raises(NotAvailableError, match=r"': ssh: Could not resolve"):
        board.run("ssh://nowhere", ["verify"], {})
    with pytest.raises(UsageError, match="expected ssh://"):
        board.run("board:22", ["verify"], {})


def test_a_device_without_that_python(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(NotAvailableError, match=f"no {missing} there; ssh://HOST/PYTHON"):
        board.run(f"ssh://pi@board{missing}", ["verify"], {})


def test_a_device_whose_python_is_too_old(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(board.__file__).with_name("there.py").read_text()
    patched = text.replace("LEAST = (3, 10)", "LEAST = (99, 0)")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: patched)
    with pytest.raises(NotAvailableError, match=r"Python 3\.10 or newer is needed and this is 3\."):
        board.run(echo, ["verify"], {})


def test_a_program_that_ends_without_an_answer(tmp_path: Path) -> None:
    dying = executable(tmp_path / "python", "#!/bin/sh\necho killed >&2\nexit 9\n")
    with pytest.raises(NotAvailableError, match="killed"):
        board.run(f"ssh://pi@board{dying}", ["verify"], {"0/x": Path(board.__file__)})


ANSWERS = (
    "no JSON",
    "[]",
    "{}",
    '{"code": 0}',
    '{"code": 0, "sizes": []}',
    '{"code": 0, "sizes": 3}',
    '{"code": 0, "sizes": [-1]}',
    '{"code": 0, "sizes": [-1, 60]}',
    '{"code": 0, "sizes": [1, 1, 1]}',
    '{"code": "x", "sizes": [0]}',
    '{"code": 0, "sizes": [1e9]}',
    '{"code": 0, "sizes": [true]}',
    '{"code": Infinity, "sizes": [0]}',
    "[" * 4000,
)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_any_kind_is_an_error_in_words(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer)
    # As Python is called: -c TEXT MARK ...
    text = f'#!/bin/sh\nprintf "\\n%s " "$3"; cat "{tmp_path}/answer"; echo; yes | head -c 200000\n'
    device = executable(tmp_path / "python", text)
    with pytest.raises(EdgeInferError, match="no answer that this version knows"):
        board.run(f"ssh://pi@board{device}", ["verify"], {})


def test_an_answer_that_trickles_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter now and then kept the command here for as long as the device liked."""
    monkeypatch.setattr(board, "_REST_S", 0.1)
    monkeypatch.setattr(board, "_SLOWEST", 1 << 30)
    (tmp_path / "answer").write_text('{"code": 0, "sizes": [1000]}')
    text = f'#!/bin/sh\nprintf "\\n%s " "$3"; cat "{tmp_path}/answer"; echo; exec sleep 3\n'
    device = executable(tmp_path / "python", text)
    with pytest.raises(NotAvailableError, match="the connection ended with -9"):
        board.run(f"ssh://pi@board{device}", ["verify"], {})


def test_a_file_that_cannot_be_read_ends_it(echo: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeInferError, match=r"not everything was sent: .*none"):
        board.run(echo, ["verify"], {"0/none": tmp_path / "none"})
    wait(lambda: left(tmp_path) == [])


def test_one_that_waits_for_the_rest_ends_too(
    echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the pipe that its answer was to come from."""
    begun, package = tmp_path / "begun", list(board._package())
    text = f'#!/bin/sh\ntouch "{begun}"\nexec "{sys.executable}" "$@"\n'
    device = executable(tmp_path / "python", text)

    def once_it_has_begun() -> Iterator[tuple[str, Path]]:
        wait(begun.exists)
        yield from package

    monkeypatch.setattr(board, "_package", once_it_has_begun)
    with pytest.raises(EdgeInferError, match=r"not everything was sent: .*none"):
        board.run(f"ssh://pi@board{device}", ["verify"], {"0/none": tmp_path / "none"})
    wait(lambda: left(tmp_path) == [])


def test_a_code_beyond_those_of_a_process_is_a_failure(tmp_path: Path) -> None:
    answer = '{"code": 100000000000000000000000, "sizes": [0]}'
    text = f"#!/bin/sh\nprintf '\\n%s %s\\n' \"$3\" '{answer}'\n"
    device = executable(tmp_path / "python", text)
    assert board.run(f"ssh://pi@board{device}", ["verify"], {}).code == 1


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    endless = "#!/bin/sh\nhead -c 40000000 /dev/zero | tr '\\0' x >&2\nexit 1\n"
    device = executable(tmp_path / "python", endless)
    tracemalloc.start()
    try:
        with pytest.raises(NotAvailableError, match=r"x{100}"):
            board.run(f"ssh://pi@board{device}", ["verify"], {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_too_much_is_not_read(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MOST_SAID", 10)
    with pytest.raises(EdgeInferError, match="bytes; at most 10"):
        board.run(echo, ["verify"], {})


def test_one_that_prints_without_an_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed, "MOST_SAID", 1000)
    device = executable(tmp_path / "python", "#!/bin/sh\nyes | head -c 2000 >&2\nexit 3\n")
    with pytest.raises(NotAvailableError, match=r"board.*: it printed more than 1000 bytes"):
        board.run(f"ssh://pi@board{device}", ["verify"], {})


def test_the_command_there_ends_with_the_one_here(tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    (tmp_path / "echo.py").write_text("import time\nopen('began', 'w').close()\ntime.sleep(600)\n")
    here = (
        "import sys\nfrom pathlib import Path\nfrom edgeinfer.remote import board\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "files = [('__main__.py', folder / 'echo.py'), ('__init__.py', folder / 'empty.py')]\n"
        "board._package = lambda: iter(files)\n"
        f"board.run('ssh://pi@board{sys.executable}', ['verify'], {{}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", here])
    try:
        wait(lambda: bool(list((tmp_path / "temporary").glob("edgeinfer-*/files/began"))))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait(lambda: left(tmp_path) == [])


def wait(until: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not until():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_runtime_travels_without_what_converts() -> None:
    names = [name for name, _ in board._package()]
    assert "runtime/session.py" in names
    assert "backends/litert/backend.py" in names
    assert not [n for n in names if n.startswith(("convert/", "kernels/")) or "__pycache__" in n]
    described = board._distribution()
    assert f"[{BACKENDS}]\n" in described[next(n for n in described if "entry" in n)].decode()
