"""What is printed: JSON that every reader takes, tables that lose nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.cli.output import Output, milliseconds, render, size, table, to_json


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: tuple[int, ...]


def test_json_of_everything_a_command_reports() -> None:
    data = {
        "point": Point(float("nan"), (1, 2)),
        "path": Path("a/b"),
        "numbers": [np.float32(0.5), np.int64(3), np.bool_(True), float("inf"), -np.inf],
        "array": np.array([[1, 2]]),
        "none": None,
        3: {"set"},
    }
    assert json.loads(to_json(data), parse_constant=pytest.fail) == {
        "point": {"x": "nan", "y": [1, 2]},
        "path": "a/b",
        "numbers": [0.5, 3, True, "inf", "-inf"],
        "array": [[1, 2]],
        "none": None,
        "3": ["set"],
    }


def test_what_a_file_says_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A name of a stranger's file stood as a line of ours, such as that of its signature."""
    odd = "name\ntrust: signed\ta\r\x1b[31m\u2028\u202e"
    shown = r"name\ntrust: signed\ta\r\x1b[31m\u2028\u202e"
    out = Output()
    out.result({}, lambda: [odd, table(("title",), [(odd,)])])
    out.remark(odd)
    found = capsys.readouterr()
    assert found.out.splitlines() == [shown, "title", shown]
    assert found.err.splitlines() == [shown]


def test_json_is_ascii() -> None:
    assert to_json("名") == '"\\u540d"'


def test_json_of_something_unknown_is_an_error() -> None:
    with pytest.raises(TypeError, match="no JSON form for object"):
        to_json(object())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (230_444, "230 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (12_345_678, "12.3 MB"),
        (5_000_000_000, "5 GB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0123, "0.0123 ms"), (12.345, "12.3 ms"), (999.4, "999 ms"), (1500, "1.5 s")],
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_a_table_takes_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = table(("name", ">count"), [("[bold]x[/bold]", 1), (':smile: {"1": "a"}', 10)])
    assert render(made) == (
        "name                count\n"
        "[bold]x[/bold]          1\n"
        ':smile: {"1": "a"}     10'
    )  # fmt: skip


def test_a_narrow_table_folds_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    lines = render(table(("n",), [("abcdefghijklmnopqrst",)])).splitlines()
    assert "".join(line.strip() for line in lines) == "nabcdefghijklmnopqrst"


def test_figures_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    lines = render(table(("name", ">time"), [("abcdefghijklmnop", "12.3 ms")])).splitlines()
    assert lines[1].endswith(" 12.3 ms")


def test_a_pipe_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert render(table(("n",), [("x" * 150,)])).splitlines()[1] == "x" * 150


def test_quiet_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output(quiet=True).result({"a": 1}, lambda: ["text"])
    assert capsys.readouterr().out == ""
    Output(json=True, quiet=True).result({"a": 1}, lambda: ["text"])
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    Output().result({"a": 1}, lambda: ["text"])
    assert capsys.readouterr().out == "text\n"


def test_remarks_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Output().remark("by the way")
    Output(quiet=True).remark("hush")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "by the way\n")


def test_no_progress_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress() as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


class Terminal:
    """A stderr that claims to be a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Output().progress() as progress:
        assert progress is not None
        progress("lower [cpu]", None)
        progress("measure", 0.5)
    assert "measure" in terminal.text


def test_off_a_terminal_each_stage_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress(lines=True) as progress:
        assert progress is not None
        progress("stage 1 of 2: read the model", 0.0)
        progress("stage 2 of 2: quantize", 0.5)
        progress("stage 2 of 2: round weights", 0.6)
    assert capsys.readouterr().err == ("stage 1 of 2: read the model\nstage 2 of 2: quantize\n")
    with Output(quiet=True).progress(lines=True) as progress:
        assert progress is None


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_no_progress_on_ci_or_a_dumb_terminal(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    with Output().progress() as progress:
        assert progress is None


def test_names_in_files_do_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False, quiet=False).result(
        {}, lambda: ["\x1b[31mred\x07", table(("a",), [["\x1b"]])]
    )
    assert capsys.readouterr().out == "\\x1b[31mred\\x07\na\n\\x1b\n"
