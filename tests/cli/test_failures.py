"""Every error is one line and the right exit code; JSON stays JSON."""

import errno
import json
import logging
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import click
import pytest

from edgeinfer import errors
from edgeinfer.cli.failures import guarded

EDGEINFER = Path(sysconfig.get_path("scripts"), "edgeinfer")


def failing(error: BaseException) -> click.Command:
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> None:
        raise error

    return command


CASES = [
    (errors.SourceError("m.onnx: not a model"), 1, "m.onnx: not a model"),
    (errors.BundleError("m.edge is altered"), 1, "m.edge is altered"),
    (errors.UsageError("no such thing"), 2, "no such thing"),
    (errors.NotAvailableError("not installed: pip install x"), 3, "not installed: pip install x"),
    (errors.OutputError("o: cannot be written"), 3, "o: cannot be written"),
    (MemoryError(), 3, "out of memory, nothing was written"),
    (OSError(errno.ENOSPC, "No space left on device"), 3, "No space left on device"),
    (PermissionError(errno.EACCES, "Permission denied", "/f"), 3, "/f: Permission denied"),
    (KeyboardInterrupt(), 130, "interrupted, nothing was written"),
    (KeyboardInterrupt("half of it is kept"), 130, "interrupted, half of it is kept"),
    (click.UsageError("No such option"), 2, "No such option; see 'edgeinfer --help'"),
    (
        RuntimeError("line one\nline two"),
        70,
        "this is a bug: RuntimeError: line one line two; please report it with what "
        "EDGEINFER_DEBUG=1 prints",
    ),
]


@pytest.mark.parametrize(("error", "code", "line"), CASES, ids=lambda v: type(v).__name__)
def test_one_line_and_a_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(failing(error), []) == code
    captured = capsys.readouterr()
    assert captured.err == f"edgeinfer: {line}\n"
    assert captured.out == ""


@pytest.mark.parametrize(("error", "code", "line"), CASES, ids=lambda v: type(v).__name__)
def test_json_on_stdout(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(failing(error), ["--json"]) == code
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["message"] == line
    assert told["exit_code"] == code


def test_fields_of_an_error_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    problem = errors.Problem("n", "Foo", "unsupported_op", "not known", "use Bar")
    guarded(failing(errors.UnsupportedError("cpu", [problem])), ["--json"])
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["target"] == "cpu"
    assert told["problems"] == [
        {
            "node": "n",
            "op": "Foo",
            "reason": "unsupported_op",
            "detail": "not known",
            "hint": "use Bar",
        }
    ]


def test_no_field_says_what_the_process_does(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.UsageError("no")
    vars(error).update(type="Fine", message="all is well", exit_code=0, more=1)
    assert guarded(failing(error), ["--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert told == {"type": "UsageError", "message": "no", "exit_code": 2, "more": 1}


def test_a_report_with_infinity_stays_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(failing(errors.VerifyError("breach", {"sqnr": float("inf")})), ["--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["error"]
    assert told["report"] == {"sqnr": "inf"}


def test_the_traceback_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_DEBUG", "1")
    guarded(failing(errors.UsageError("no")), [])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def warning(then: BaseException | None = None) -> click.Command:
    @click.command()
    @click.option("--quiet", "-q", is_flag=True)
    def command(quiet: bool) -> None:
        for _ in range(2):
            logging.getLogger("edgeinfer").warning("gpu left out:\n%s", "too slow")
        if then is not None:
            raise then

    return command


def test_warnings_are_told_once_after_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(warning(), []) == 0
    assert capsys.readouterr().err == "edgeinfer: warning: gpu left out: too slow\n"
    assert guarded(warning(click.exceptions.Exit(1)), []) == 1
    assert capsys.readouterr().err == "edgeinfer: warning: gpu left out: too slow\n"


def test_warnings_of_a_command_that_runs_on_have_a_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def serve() -> None:
        for number in range(1000):
            logging.getLogger("edgeinfer").warning("request %d failed", number // 2)

    assert guarded(serve, []) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (101, "edgeinfer: warning: and 800 more")


def test_warnings_are_not_told_before_an_error_or_when_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(warning(errors.UsageError("no")), []) == 2
    assert capsys.readouterr().err == "edgeinfer: no\n"
    assert guarded(warning(), ["-q"]) == 0
    assert capsys.readouterr().err == ""


def test_no_line_of_an_error_but_the_first_begins_as_ours_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = errors.UsageError("m\ntrust: signed\n  node\n\nedgeinfer: fine")
    assert guarded(warning(error), []) == 2
    lines = capsys.readouterr().err.split("\n")
    assert lines == ["edgeinfer: m", "  trust: signed", "  node", "", "  edgeinfer: fine", ""]


def test_usage_errors_point_to_the_help(cli: Any) -> None:
    result = cli("convert", "m.onnx")
    assert (result.code, result.out) == (2, "")
    expected = "Missing option '-t' / '--target'; see 'edgeinfer convert --help'"
    assert result.err == f"edgeinfer: {expected}\n"


def test_usage_errors_as_json(cli: Any) -> None:
    result = cli("targets", "--json", "--nonsense")
    assert result.code == 2
    assert json.loads(result.out)["error"]["type"] == "UsageError"


def test_a_json_flag_after_the_end_of_options_is_an_argument(cli: Any) -> None:
    result = cli("inspect", "--", "--json")
    assert (result.code, result.out) == (2, "")
    assert result.err == "edgeinfer: --json: no such file\n"


def run_process(*argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([EDGEINFER, *argv], capture_output=True, check=False, **options)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([EDGEINFER, "targets"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [EDGEINFER, "targets"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert done.stderr == b"edgeinfer: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX descriptors")
def test_a_missing_stdout() -> None:
    done = subprocess.run(
        f"'{EDGEINFER}' targets >&-", shell=True, stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_names_that_the_terminal_cannot_show() -> None:
    done = run_process("inspect", "naïve 名.onnx", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert done.stderr.endswith(b": no such file\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_termination_unwinds(tmp_path: Path) -> None:
    script = (
        "import time, click, sys\n"
        "from edgeinfer.cli.failures import guarded, terminate_cleanly\n"
        "@click.command()\n"
        "def command():\n"
        "    try:\n"
        "        print('up', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('down', flush=True)\n"
        "terminate_cleanly(); sys.exit(guarded(command, []))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.05)
    process.terminate()
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (143, "down\n")
