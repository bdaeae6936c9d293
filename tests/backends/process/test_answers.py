"""What a process answers is data: whoever reads it runs nothing of it."""

import json
import os
import pickle
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from edgeinfer import errors
from edgeinfer.backends.process import answers, child
from edgeinfer.backends.process.answers import Listed, NoAnswerError, NotPlainError
from edgeinfer.cli import failures


@dataclass(frozen=True)
class Inner:
    number: float
    kind: Literal["a", "b"] = "a"


@dataclass
class Outer:
    inner: tuple[Inner, ...]
    by_name: dict[str, Inner | None] = field(default_factory=dict)
    array: np.ndarray[Any, np.dtype[Any]] | None = None
    place: Path | None = None


LISTED = Listed(Outer)

_INPUT = ("name", "expected", "received")
_BYTES, _LETTERS, _LONG = ["bytes", 0], ["number", "|S4", [], 0], ["number", "<f16", [], 2]


def sent(message: object, listed: Listed = LISTED) -> Any:
    text, buffers = answers.encode(message)
    return answers.decode(text, [bytearray(raw) for raw in buffers], listed)


def read(plain: object, *buffers: bytes, listed: Listed = LISTED) -> Any:
    return answers.decode(json.dumps(plain).encode(), [bytearray(b) for b in buffers], listed)


def test_data_come_as_they_were() -> None:
    message = {
        "scalars": (None, True, 1 << 70, 0.1, "\ud800\x1b", float("inf")),
        3: [{1, 2}, frozenset("a"), b"bytes", Path("a/b")],
        "object": Outer((Inner(1.5), Inner(2, "b")), {"x": None}, None, Path("/tmp")),
        "types": [np.dtype("int8"), np.dtype(ml_dtypes.bfloat16), np.dtype("<M8[s]")],
        "number": np.float32(0.1),
    }
    got = sent(message)
    assert got == message
    assert type(got["number"]) is np.float32
    assert [type(one) for one in got[3]] == [set, frozenset, bytes, type(Path())]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 3), np.int64),
        np.array(2.5),
        np.array([1 + 2j, 3]),
        np.array(["a", "longer"]),
        np.array([["a"], [None]], object),
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.arange(4).astype(ml_dtypes.int4),
        np.array([True, False]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_as_they_were(array: np.ndarray[Any, Any]) -> None:
    got = sent([array, array])
    np.testing.assert_array_equal(got[0], array)
    assert (got[0].dtype, got[0].shape) == (array.dtype, array.shape)
    if array.dtype != object:
        assert got[0] is got[1]
        got[0][...] = 0


@pytest.mark.parametrize(
    "error",
    [
        errors.InputError("x", "one", "two"),
        errors.UnsupportedError("t", [errors.Problem("n", "Op", "unsupported_op", "why")]),
        errors.CrashedError("engine", "run", "SIGSEGV"),
        errors.VerifyError("why", {"rows": [{"sqnr": np.float32(2), "ok": True, "worst": None}]}),
        errors.VerifyError("why"),
        errors.DeadlineError("late"),
        OSError("why"),
        FileNotFoundError(2, "no", "/x"),
        PermissionError(13, "no", "/x"),
        KeyError("a"),
        UnicodeDecodeError("utf8", b"a", 0, 1, "x"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_as_they_were(error: Exception) -> None:
    got = sent(answers.portable(error))
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x\ny"),
        UnicodeDecodeError("u", b"1", 5, 1000, "x"),
        TimeoutError(),
        FileNotFoundError(2, "no", "/x"),
        RuntimeError("x\x1b[2J" * 999),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_pythons_own_are_an_end_of_the_process(error: Exception) -> None:
    with pytest.raises(child.ChildEndedError, match="this is a bug, or its file took") as caught:
        child.raise_answered(error, "where")
    assert type(error).__name__ in caught.value.how
    assert "\n" not in caught.value.how
    assert caught.value.how.isprintable()
    assert len(caught.value.how) < 500
    assert failures.describe(errors.CrashedError("a", "b", caught.value.how)).code == 3


@pytest.mark.parametrize(
    "error",
    [errors.UsageError("no"), MemoryError(), OSError(28, "full"), PermissionError(13, "no")],
)
def test_errors_that_say_something_are_raised_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        child.raise_answered(error, "where")
    assert caught.value is error
    assert "where" in str(error.__cause__)


def test_an_answer_of_another_form_is_none() -> None:
    process = child.Child("edgeinfer.convert.quantize.readback_apart", keep_errors=True)
    try:
        process.send(("/nowhere", "onnx"))
        with pytest.raises(child.ChildEndedError, match="its answer is none: it is tuple"):
            process.receive(60, form=tuple[str, int])
    finally:
        process.kill()


def test_a_process_whose_words_no_thread_can_read_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(errors.NotAvailableError, match=r"could be started: can't start new thread"):
        child.Child("edgeinfer.convert.quantize.readback_apart", keep_errors=True)
    assert not [*tmp_path.iterdir()]


class StrangeError(Exception):
    """No reader knows it."""


def test_other_errors_come_in_words() -> None:
    class KeyError(Exception):
        pass

    assert str(sent(answers.portable(StrangeError("why")))) == "StrangeError: why"
    assert type(answers.portable(KeyError("a"))) is RuntimeError
    # The command would take them for the end of its own input and output.
    assert str(sent(answers.portable(EOFError("end")))) == "EOFError: end"
    assert type(sent(answers.portable(OSError(32, "no pipe")))) is RuntimeError
    assert type(answers.portable(ValueError(object()))) is RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        object(),
        print,
        Inner,
        StrangeError(),
        np.zeros(1, [("a", "i4")]),
        np.zeros(1, np.dtype([("a", "O")])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_is_not_answered(value: object) -> None:
    with pytest.raises(NotPlainError):
        answers.encode([value])


@pytest.mark.parametrize(
    "plain",
    [
        ["object", "Path", "x"],
        ["object", "Listed"],
        ["object", "Inner", 1.0],
        ["object", "Inner", "x", "a"],
        ["object", "Inner", 1.0, "c"],
        ["object", "Outer", ["list"], ["dict"], None, None],
        ["object", "Outer", ["tuple", 1], ["dict"], None, None],
        ["object", "Outer", ["tuple"], ["dict", ["x", 1]], None, None],
        ["error", "SystemExit", ["tuple"], ["dict"]],
        ["error", "KeyboardInterrupt", ["tuple"], ["dict"]],
        ["error", "Exception", 3, ["dict"]],
        ["error", "Problem", ["tuple"], ["dict"]],
        ["error", "UsageError", ["tuple", "x"], ["dict", ["exit_code", 0]]],
        ["error", "UsageError", ["tuple", "x"], ["dict", ["type", "Fine"]]],
        ["error", "UsageError", ["tuple", "x"], ["dict", ["__notes__", 5]]],
        ["error", "UsageError", ["tuple", "x"], ["dict", [["tuple", 1], 2]]],
        ["error", "UsageError", ["tuple", ["dict"]], ["dict"]],
        ["error", "UsageError", ["list", "x"], ["dict"]],
        ["error", "UsageError", ["tuple", "x"], ["list"]],
        ["error", "InputError", ["tuple", "x"], ["dict"]],
        ["error", "InputError", ["tuple", "x"], ["dict", *([n, 1] for n in _INPUT)]],
        ["error", "UnsupportedError", ["tuple", "x"], ["dict", ["target", "t"], ["problems", 5]]],
        ["error", "VerifyError", ["tuple", "x"], ["dict", ["report", ["dict", ["a", _BYTES]]]]],
        ["error", "VerifyError", ["tuple", "x"], ["dict", ["report", ["dict", ["a", _LETTERS]]]]],
        ["error", "VerifyError", ["tuple", "x"], ["dict", ["report", ["dict", ["a", _LONG]]]]],
        ["error", "ValueError", ["tuple", "x"], ["dict", ["exit_code", 0]]],
        ["error", "BrokenPipeError", ["tuple", 32, "x"], ["dict"]],
        ["error", "OSError", ["tuple", 32, "x"], ["dict"]],
        ["error", "EOFError", ["tuple"], ["dict"]],
        ["error", "StopIteration", ["tuple"], ["dict"]],
        ["value", 1],
        ["__init__", 1, 2],
        ["object_", 1],
        ["array", "O", [1], 0],
        ["array", "object", [1], 0],
        ["array", "|V8", [1], 0],
        ["array", "i4,O", [1], 0],
        ["array", "<i4,O", [1], 0],
        ["array", "<f4", [1 << 40], 0],
        ["array", "<f4", [-1, -1], 0],
        ["array", "<f4", [2], 7],
        ["array", "<f8", [1], 0],
        ["dtype", "O8"],
        ["dtype", "<f8,O"],
        ["dtype", "<f8,<f8"],
        ["dtype", "<f8 "],
        ["array", "|b1", [4], 0],
        ["number", "|b1", [], 1],
        ["array", "<U1", [1], 0],
        ["number", "<U1", [], 0],
        ["number", "=U1", [], 0],
        ["array", "|u1", [4], -1],
        ["bytes", -1],
        ["list", ["bytes", 0], ["array", "|u1", [4], 0]],
        ["list", ["number", "<f4", [], 0], ["number", "<i4", [], 0]],
        ["dtype", "finfo"],
        ["dtype", ["a"]],
        ["set", ["list"]],
        ["path", 3],
        ["path", "a\0b"],
        [],
        [["list"]],
        {"a": 1},
    ],
    ids=repr,
)
def test_what_is_no_answer_is_refused(plain: object) -> None:
    with pytest.raises(NoAnswerError):
        read(plain, b"1234", b"\2", bytes(16), listed=Listed(Outer, folders=[Path("/")]))


@pytest.mark.parametrize("text", [b"\x80\x05.", b"", b"[" * 100_000, b"1" * 10_000, b'"\xff"'])
def test_what_is_no_text_of_an_answer_is_refused(text: bytes) -> None:
    with pytest.raises(NoAnswerError):
        answers.decode(text, [], LISTED)


def test_a_short_text_does_not_take_much_memory() -> None:
    with pytest.raises(NoAnswerError, match="MiB"):
        answers.decode(b"[" + b"[]," * 2_000_000 + b"1]", [], LISTED)


def test_what_was_sent_once_is_there_once() -> None:
    """However often it is named."""
    data = bytes(1 << 20)
    for one in (["bytes", 0], ["number", "|S1048576", [], 0], ["array", "|u1", [1 << 20], 0]):
        got = read(["list", *[one] * 1000], data)
        assert len({id(each) for each in got}) == 1
    texts = [np.str_("a\U0010ffff"), np.array(["\ud800", "b"]), np.array(["b"], ">U1")]
    for one, want in zip(sent([texts, texts])[1], texts, strict=True):
        np.testing.assert_array_equal(one, want)


P = sys.hash_info.modulus


@pytest.mark.parametrize(
    "plain",
    [
        ["set", *(i * P for i in range(1, 5_000))],
        ["frozenset", *(i * P for i in range(1, 5_000))],
        ["dict", *([i * P, 0] for i in range(1, 5_000))],
        ["set", *(["tuple", i * P, 1] for i in range(1, 5_000))],
    ],
    ids=["set", "frozenset", "dict", "tuples"],
)
def test_keys_of_one_hash_take_no_time(plain: object) -> None:
    """Each would be compared with all before it."""
    with pytest.raises(NoAnswerError, match="many keys of one hash"):
        read(plain)


def test_many_keys_are_no_trouble() -> None:
    message = {i: {f"{i}", (i, "x")} for i in range(1000)}
    assert sent(message) == message


def test_paths_lead_nowhere_else(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "out").symlink_to(tmp_path)
    listed = Listed(folders=[own])
    assert sent([own / "x", own], listed) == [own / "x", own]
    for place in (tmp_path, own / ".." / "x", own / "out" / "x", Path("x"), tmp_path / "own2"):
        with pytest.raises(NoAnswerError, match="is not where"):
            sent([place], listed)


MARK = "answers-mark"


class Runs:
    """Its pickle is a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARK,)


def answering(raw: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> child.Child:
    """Return a process that answers these bytes."""
    module = f"answers_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(
        "import time\nfrom edgeinfer.backends.process import child\n"
        f"connection, _ = child.connect()\nconnection.sendall({raw!r})\ntime.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    return child.Child(module, keep_errors=True)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (pickle.dumps(("done", Runs())), "its answer is none"),
        (b'["object","Child"]', "its answer is none"),
    ],
    ids=["pickle", "object"],
)
def test_a_process_runs_nothing_here(
    raw: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = answering(struct.pack("<IQ", 0, len(raw)) + raw, tmp_path, monkeypatch)
    try:
        with pytest.raises(child.ChildEndedError, match=why):
            process.receive(60)
    finally:
        process.kill()
    assert not Path(MARK).exists()


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<IQ", 0, 1 << 60),
        struct.pack("<IQ", (1 << 32) - 1, 2),
        struct.pack("<IQQQ", 2, 2, 1 << 60, 1 << 63),
    ],
    ids=["text", "count", "sizes"],
)
def test_an_answer_is_no_larger_than_the_memory(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "free_mb", lambda *_: 1000)
    process = answering(head, tmp_path, monkeypatch)
    try:
        with pytest.raises(child.ChildEndedError, match="more than what is free"):
            process.receive(60)
    finally:
        process.kill()
