"""A model in a file is worked on by another process; nobody can tell but by memory."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import psutil
import pytest

import edgeinfer
from edgeinfer import errors
from edgeinfer.backends.process import answers, bounds, child
from edgeinfer.backends.process.answers import Listed
from edgeinfer.backends.process.isolation import IN_PROCESS
from edgeinfer.convert.lower.onnxruntime import target as onnx_target
from edgeinfer.convert.pipeline import entry, worker
from edgeinfer.convert.pipeline.clock import uncounted
from edgeinfer.errors import (
    CrashedError,
    EdgeInferError,
    Problem,
    SourceError,
    UsageError,
    VerifyError,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

NET = """<ir_version: 10, opset_import: ["": 21]> net (float[N,4] x) => (float[N,4] y)
    <float[4] w = {1.5, -2.0, 0.25, 3.0}> { a = Mul(x, w) y = Add(a, x) }"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def export(path: Any, **options: Any) -> entry.ExportResult:
    folder = path.parent if isinstance(path, Path) else options.pop("folder")
    return edgeinfer.export(
        path, folder / "net.edge", targets=["onnxruntime"], overwrite=True, **options
    )


@pytest.fixture(autouse=True)
def others(conversions_apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests before this one left behind are none of ours."""
    found = frozenset(psutil.Process().children(recursive=True))
    monkeypatch.setattr(sys.modules[__name__], "OTHERS", found)


OTHERS: frozenset[psutil.Process] = frozenset()


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p not in OTHERS]


HEAVY = ("onnx", "onnx_ir", "onnxscript", "sympy", "onnxruntime", "openvino", "torch")


def test_this_process_never_sees_a_graph_library_or_an_engine(net: Path) -> None:
    script = (
        "import sys, edgeinfer\n"
        "edgeinfer.export(sys.argv[1], sys.argv[2], targets=['cpu', 'openvino'])\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    # No `if __name__ == "__main__"`: the file is not run again by whatever is started.
    file = net.with_name("script.py")
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file), str(net), str(net.with_suffix(".edge"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_result_is_the_same(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[str]] = {"apart": [], "here": []}
    apart = export(net, progress=lambda what, _: told["apart"].append(what))
    assert children() == []
    monkeypatch.setenv(IN_PROCESS, "1")
    here = export(net, progress=lambda what, _: told["here"].append(what))
    assert told["apart"] == told["here"]
    assert told["apart"][:2] == ["stage 1 of 8: read the model", "stage 2 of 8: normalise"]
    assert told["apart"][-2:] == [
        "stage 7 of 8: verify onnxruntime (onnx)",
        "stage 8 of 8: write the result",
    ]
    first, second = apart.report.to_json(), here.report.to_json()
    for report in (first, second):
        del report["seconds"], report["variants"][0]["engines"][0]["latency_ms"]
    assert first == second
    assert apart.report.seconds.keys() == here.report.seconds.keys()
    for one, two in zip(apart.report.vectors, here.report.vectors, strict=True):
        np.testing.assert_array_equal(one.feeds["x"], two.feeds["x"])
    assert [v.file for v in apart.manifest.vectors] == [v.file for v in here.manifest.vectors]


def test_an_artifact_that_two_targets_share_is_verified_in_one_stage(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS, "1")
    told: list[str] = []
    edgeinfer.export(
        *(net, net.with_suffix(".edge")),
        targets=["onnxruntime", "rpi5"],
        progress=lambda what, _: told.append(what),
    )
    stages = [what for what in told if what.startswith("stage ")]
    assert [what.partition(": ")[2] for what in stages[-4:]] == [
        "lower rpi5 (tflite)",
        "verify onnxruntime, rpi5 (onnx)",
        "verify rpi5 (tflite)",
        "write the result",
    ]
    assert stages[-1].startswith(f"stage {len(stages)} of {len(stages)}: ")


def test_data_of_the_caller_goes_there(net: Path) -> None:
    x = np.array([[0.5, 1.0, -1.0, 2.0]], np.float32)
    y = x * np.array([2.5, -1.0, 1.25, 4.0], np.float32)
    result = export(net, data=[{"x": x, "y": y}])
    np.testing.assert_array_equal(result.report.vectors[0].feeds["x"], x)
    with pytest.raises(VerifyError, match="does not give the expected outputs") as caught:
        export(net, data=[{"x": x, "y": y + 1}])
    assert caught.value.report["name"] == "net"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["kill", "segv"])
def test_a_process_that_dies_is_told_with_its_stage(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def strike(what: str, _: float | None) -> None:
        if uncounted(what) == "compute expected outputs":
            (worker,) = children()
            worker.send_signal(number)

    with pytest.raises(CrashedError) as caught:
        export(net, progress=strike)
    error = caught.value
    # It may be a stage further by the time the signal arrives.
    assert error.engine == "converter"
    assert error.stage in ("compute expected outputs", "quantize", "lower onnxruntime (onnx)")
    assert error.how.startswith(number.name)
    assert str(error).endswith("; nothing was written")
    assert error.exit_code == 3
    assert [p.name for p in tmp_path.iterdir() if p != temporary] == ["net.onnx"]
    assert list(temporary.iterdir()) == []
    assert children() == []


def test_errors_come_back_as_they_are(net: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"signature is for \.tflite files") as caught:
        export(net, signature="main")
    assert "in _dispatch" in str(caught.value.__cause__)
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    "error",
    [
        errors.UnsupportedError("cpu", [Problem("n", "Foo", "unsupported_op", "unknown", "drop")]),
        errors.VerifyError("too far off", {"passed": False}),
        errors.InputError("x", "float32", "float64", "cast it"),
        errors.CrashedError("onnxruntime", "run", "SIGSEGV"),
        errors.OutputError("m.edge: cannot be written"),
    ],
)
def test_every_error_survives_the_way(error: EdgeInferError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def in_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have code run at the start of the process that reads the model."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('edgeinfer.convert.pipeline.worker' in a for a in sys.orig_argv):\n"
        + textwrap.indent(textwrap.dedent(code), "    ")
    )
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.sample(1)
@pytest.mark.parametrize("raw", ["pickle.dumps(Runs())", "b'3'", 'b\'["tuple","done",3]\''])
def test_what_it_answers_is_run_by_nobody(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: str
) -> None:
    """Whoever hands over the model is in the process by then."""
    mark = tmp_path / "mark"
    in_the_worker(
        tmp_path,
        monkeypatch,
        f"""
        import os, pickle, struct
        from edgeinfer.backends.process import child
        class Runs:
            def __reduce__(self):
                return os.mkdir, ({str(mark)!r},)
        def answer(connection, message):
            raw = {raw}
            connection.sendall(struct.pack("<IQ", 0, len(raw)) + raw)
        child.answer = answer
        """,
    )
    for act in (lambda: edgeinfer.inspect(net), lambda: export(net)):
        with pytest.raises(CrashedError, match="its answer is none"):
            act()
    assert not mark.exists()
    assert not (tmp_path / "net.edge").exists()


def test_an_error_of_pythons_own_is_no_finding(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever handed over the model may have answered it."""
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        from edgeinfer.backends.process import child
        forged = UnicodeDecodeError('u', b'1', 5, 1000, 'x')
        real = child.answer
        child.answer = lambda to, message: real(to, ("failed", forged, "a text"))
        """,
    )
    with pytest.raises(
        CrashedError, match=r"its process ended while .*: this is a bug, or .*: UnicodeDecode"
    ):
        edgeinfer.inspect(net)


_ELSEWHERE = {
    "file": "return with_files(tmp / 'precious' / 'x')",
    "dots": "return with_files(variants / '..' / '..' / 'precious' / 'x')",
    "link": "os.symlink(tmp / 'precious', variants / 'l'); return with_files(variants / 'l' / 'x')",
    "name": "return replace(made, written=(replace(written, name='../../precious'),))",
    "plain": "return replace(made, written=(replace(written, plain=tmp / 'precious' / 'x'),))",
    "later": "os.symlink(tmp / 'precious', variants / 'later'); return made",
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("code", _ELSEWHERE.values(), ids=_ELSEWHERE)
def test_it_says_nothing_of_files_elsewhere(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """What lies there would be taken into the bundle, or removed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "x").write_text("x")
    in_the_worker(
        tmp_path,
        monkeypatch,
        f"""
        import os
        from dataclasses import replace
        from pathlib import Path
        import edgeinfer.convert.pipeline.front as front
        prepare, tmp = front.Front.prepare, Path({str(tmp_path)!r})
        def hostile(self, variants, known=None):
            made = prepare(self, variants, known)
            written, = made.written
            def with_files(*files):
                lowered = replace(written.lowered, files=files)
                return replace(made, written=(replace(written, lowered=lowered),))
            {code}
        front.Front.prepare = hostile
        """,
    )
    with pytest.raises(CrashedError, match=r"is not where|no name of a folder|is a link"):
        export(net)
    assert (precious / "x").read_text() == "x"
    assert not (tmp_path / "net.edge").exists()


@pytest.mark.sweep
def test_integers_are_timed_beside_floats(tmp_path: Path) -> None:
    """The float model is there until it was timed, and goes then."""
    rng = np.random.default_rng(3)
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> net (float[8,64] x) => (float[8,64] y)'
        " { y = MatMul(x, w) }",
        initializers=[ir.tensor(rng.normal(size=(64, 64)).astype(np.float32), name="w")],
    )
    ir.save(model, tmp_path / "net.onnx")
    timed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "edgeinfer.convert.pipeline.stages.times_slower",
            lambda engines, artifact, plain, feeds: timed.append(plain.path.stat().st_size),
        )
        edgeinfer.export(
            *(tmp_path / "net.onnx", tmp_path / "net.edge"),
            targets=["cpu"],
            precision="int8",
            data=[{"x": rng.normal(size=(8, 64)).astype(np.float32)} for _ in range(16)],
        )
    assert timed
    assert not list((tmp_path).rglob("fp32-*"))


def test_a_failed_gate_is_explained_by_a_second_process(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowering writes a difference in the place of a product."""
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        from edgeinfer.convert.lower.onnxruntime.target import OnnxTarget
        right = OnnxTarget.prepare
        def wrong(self, model, *arguments):
            model = model.clone()
            for node in model.graph:
                if node.op_type == "Mul":
                    node.op_type = "Sub"
            return right(self, model, *arguments)
        OnnxTarget.prepare = wrong
        """,
    )
    told: list[str] = []
    with pytest.raises(VerifyError) as caught:
        export(net, progress=lambda what, _: told.append(what))
    assert told.count("stage 1 of 8: read the model") == told.count("read the model") == 1
    assert told[-1] == "look for the fault in onnxruntime (onnx)"
    (finding,) = caught.value.report["findings"].values()
    assert (finding["op"], finding["note"]) == ("Mul", "reproduced")
    saved = tmp_path / "net.edge.failing"
    assert "the smallest failing sub-model is in" in str(caught.value)
    assert sorted(p.name for p in saved.iterdir()) == [
        "README.txt", "expected.npz", "inputs.npz", "model.onnx",
    ]  # fmt: skip
    assert not (tmp_path / "net.edge").exists()


def test_an_engine_that_crashes_fails_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime 1.32 ends the process when it loads this; the rule that avoids it is off."""
    monkeypatch.setattr(onnx_target, "HALF_RULES", ())
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> net (float16[1,4,4] x) => (float16[4,1,4] y)'
        " { t = Transpose<perm=[1,0,2]>(x) y = MatMul(t, w) }",
        initializers=[ir.tensor(np.eye(4, dtype=np.float16), name="w")],
    )
    with pytest.raises(VerifyError) as caught:
        export(model, folder=tmp_path, precision="fp16")
    line = str(caught.value)
    assert "its process ended while it was to load model.onnx: SIGSEGV" in line
    assert "first diverging node MatMul" in line
    assert "the smallest failing sub-model is in" in line
    (finding,) = caught.value.report["findings"].values()
    assert len(finding["nodes"]) == 2
    assert "onnxruntime ends its process, to load model.onnx: SIGSEGV" in finding["breaches"][0]
    assert caught.value.report["variants"][0]["verdict"] == "fail"
    assert not (tmp_path / "net.edge").exists()
    assert children() == []


def test_warnings_and_log_lines_come_back(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        import edgeinfer.convert.pipeline.front as front, logging, warnings
        prepare = front.Front.prepare
        def loud(self, *given):
            logging.getLogger('edgeinfer.somewhere').warning('take %s', 'care')
            warnings.warn('old', DeprecationWarning)
            print('printed')
            return prepare(self, *given)
        front.Front.prepare = loud
        """,
    )
    with warnings.catch_warnings(record=True) as seen, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        export(net)
    assert ("edgeinfer.somewhere", logging.WARNING, "take care") in caplog.record_tuples
    assert ("old", DeprecationWarning) in [(str(w.message), w.category) for w in seen]


class Said:
    """A process that says what is given, and then that it is done."""

    def __init__(self, *messages: tuple[Any, ...]) -> None:
        self._messages = iter([*messages, ("done", "end")])

    def receive(self, _: float | None, listed: Listed) -> Any:
        text, raws = answers.encode(next(self._messages))
        return answers.decode(text, [bytearray(raw) for raw in raws], listed)


def heard(*messages: tuple[Any, ...], progress: Any = None) -> None:
    asked, process = worker._Asked((None, "inspect", (), ()), str, progress), Said(*messages)
    assert asked._waited(cast("child.Child", process), bounds.BoundedLook(0, [], 0)) == "end"


def test_a_warning_reads_no_file(tmp_path: Path) -> None:
    """Python shows the line that a warning names: of a pipe it would wait for one."""
    (tmp_path / "secret.py").write_text("secret = 3")
    os.mkfifo(tmp_path / "pipe")
    for name, line, where in (
        *(("secret.py", 1, "secret.py>:1"), ("secret.py", -1, "secret.py>:0")),
        *(("pipe", 1, "pipe>:1"), ("x", 1 << 70, "x>:0")),
    ):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            heard(("warning", "careful", "UserWarning", str(tmp_path / name), line))
        (one,) = warned
        shown = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
        assert shown == f"<converter: {where}: UserWarning: careful\n"


def test_what_is_logged_makes_no_loggers(caplog: pytest.LogCaptureFixture) -> None:
    before = len(logging.root.manager.loggerDict)
    logger = logging.getLogger("edgeinfer.convert")
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.ERROR, logger.name):
        for i in range(50):
            heard(("log", f"edgeinfer.convert.new{i}.a", 30, "hidden"))
            heard(("log", f"strange{i}", 10**30 + i, "shown"))
    assert len(logging.root.manager.loggerDict) <= before + 1
    assert [r.getMessage() for r in caplog.records] == ["shown"] * 50
    assert {r.levelno for r in caplog.records} == {logging.CRITICAL}
    assert caplog.records[3].name == "strange3"


def test_so_much_of_a_text_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    text = "x" * 2_000_000
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        heard(
            *(("stage", text, None), ("log", text, 40, text), ("limit", None, text)),
            ("warning", text, text, text, 1),
            progress=lambda what, share: told.append(what),
        )
    (record,) = caplog.records
    shown = [*told, record.name, record.getMessage(), str(warned[0].message), warned[0].filename]
    assert max(map(len, shown)) <= 1 << 14


def test_a_share_is_one_of_a_whole() -> None:
    shares: list[float | None] = []
    odd = (None, 0.0, 0.5, 1.0, -0.1, 1.5, float("nan"), float("inf"))
    heard(*(("stage", "x", one) for one in odd), progress=lambda _, share: shares.append(share))
    assert shares == [None, 0.0, 0.5, 1.0, *[None] * 4]


def test_what_it_prints_commands_no_terminal(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        import edgeinfer.convert.pipeline.front as front, logging, os, warnings
        prepare = front.Front.prepare
        evil = chr(27) + "]0;title" + chr(7)
        def loud(self, *given):
            logging.getLogger('edgeinfer.somewhere').warning('logged ' + evil)
            warnings.warn('warned ' + evil)
            os.write(1, ("out é " + evil).encode())
            os.write(2, ("err " + evil + chr(13)).encode())
            self._asked.progress('told ' + evil, None)
            return prepare(self, *given)
        front.Front.prepare = loud
        """,
    )
    told: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        export(net, progress=lambda what, _: told.append(what))
    shown = capfd.readouterr()
    words = [*told, *(str(w.message) for w in warned)]
    assert chr(27) not in shown.out + shown.err + "".join(words)
    assert shown.out == ""
    assert all(word in shown.err for word in ("out é", "err"))
    assert {"told \\x1b]0;title\\x07", "warned \\x1b]0;title\\x07"} <= set(words)


def test_interrupted_while_the_other_process_is_at_work(net: Path, tmp_path: Path) -> None:
    place, temporary = tmp_path / "place", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    process = psutil.Popen(
        [sys.executable, "-m", "edgeinfer", "convert", str(net), "-t", "all", "-o", "m.edge"],
        cwd=place,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (found := process.children()):
        assert process.poll() is None
        time.sleep(0.01)
    worker = found[0]
    time.sleep(0.3)
    # Even one that does nothing any more does not keep the user waiting.
    worker.suspend()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    *stages, last = err.splitlines()
    assert last == "edgeinfer: interrupted, nothing was written"
    assert all(line.startswith("stage ") for line in stages)
    assert not worker.is_running()
    assert [*place.iterdir(), *temporary.iterdir()] == []


# Ends where the step is above -1, as it is for zeros; LiteRT tries a new file with those.
COUNTING = """g (float[1] x, float[1] step) => (float[1] y)
    <float[1] ten = {10}, float[1] one = {1}, bool yes = {1}, int64 many = {4611686018427387904}> {
    y = Loop(many, yes, x) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] t)
        { more = Add(step, one) t = Add(s, more) less = Less(t, ten) d = Squeeze(less) }>
}"""


def test_an_engine_that_does_not_come_back_ends_the_conversion(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    from tests.convert.lower.tflite.run import lower

    source = tmp_path / "count.tflite"
    source.write_bytes(lower(COUNTING))
    step = np.full(1, -1, np.float32)
    np.savez(tmp_path / "data.npz", x=np.zeros(1, np.float32), step=step)
    start = time.monotonic()
    with pytest.raises(VerifyError, match=r"does not end: .*no end after 1 s"):
        export(source, data=tmp_path / "data.npz", time_limit_s=1.0)
    assert time.monotonic() - start < 200
    assert not children()
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".edge"] == []


LOOKS = ["check", "inspect", "export"]


def look_at(net: Path, look: str, **options: Any) -> Any:
    if look == "export":
        return export(net, **options)
    named = {"targets": ["onnxruntime"]} if look == "check" else {}
    return getattr(edgeinfer, look)(net, **named)


@pytest.mark.parametrize("look", LOOKS)
def test_what_takes_more_than_a_file_explains_is_ended(
    net: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CHECK_SPARE", 40 << 20)
    inspected = *worker._FUNCTIONS["inspect"][:2], 40 << 20
    monkeypatch.setattr(worker, "_FUNCTIONS", {"inspect": inspected})
    with pytest.raises(SourceError, match="takes more than 40 MB of memory, far more than a file"):
        look_at(net, look)
    assert not children()
    assert [p.name for p in net.parent.iterdir()] == ["net.onnx"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("look", LOOKS)
def test_a_model_is_read_without_a_network(
    net: Path, tmp_path: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "from edgeinfer.backends.process.confine import confine; print(*confine([]))"
    stands = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout
    if b"seccomp" not in stands:
        pytest.skip("this kernel has no seccomp filters")
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        import edgeinfer.convert.sources.onnx as onnx, edgeinfer.errors as errors, socket
        right = onnx.read_file
        def reaching(path):
            try:
                socket.socket()
            except PermissionError:
                raise errors.SourceError('there is no network') from None
            return right(path)
        onnx.read_file = reaching
        """,
    )
    with pytest.raises(SourceError, match="there is no network"):
        look_at(net, look)


def save_labelled(folder: Path) -> None:
    """Write a net and samples whose answers it knows."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[1,16] x) => (float[1,4] y)
        { y = MatMul(x, w) }"""
    weights = ir.tensor(rng.normal(size=(16, 4)).astype(np.float32), name="w")
    ir.save(ir.from_onnx_text(text, initializers=[weights]), folder / "net.onnx")
    x = rng.normal(size=(64, 1, 16)).astype(np.float32).cumsum(axis=2)
    labels = (x[:, 0] @ weights.numpy()).argmax(axis=1)
    np.savez(folder / "samples.npz", x=x[:, 0], labels=labels)


@pytest.mark.sweep
def test_a_search_is_remembered_by_the_process_that_waits(tmp_path: Path) -> None:
    """The other one may write nowhere but next to its model's artifacts."""
    save_labelled(tmp_path)
    data = {"precision": "auto", "calibration": tmp_path / "samples.npz"}
    export(tmp_path / "net.onnx", **data)
    (file,) = (Path(os.environ["EDGEINFER_CACHE"]) / "search").iterdir()
    before = file.stat().st_mtime_ns
    export(tmp_path / "net.onnx", **data)
    assert file.stat().st_mtime_ns == before, "measured again"


def test_the_users_own_measure_stays_in_the_users_process(tmp_path: Path) -> None:
    save_labelled(tmp_path)
    asked: list[int] = []

    def share(outputs: Any, labels: Any) -> float:
        asked.append(len(children()))
        answers = [each["y"].argmax(axis=-1) for each in outputs]
        return float(np.mean(np.concatenate(answers) == np.asarray(labels)))

    result = export(
        tmp_path / "net.onnx",
        precision="auto",
        calibration=tmp_path / "samples.npz",
        metric=share,
    )
    assert asked
    assert min(asked) > 0
    assert result.report.quantization is not None
    assert "share" in str(result.report.quantization)

    def broken(outputs: Any, labels: Any) -> float:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        export(
            tmp_path / "net.onnx",
            precision="auto",
            calibration=tmp_path / "samples.npz",
            metric=broken,
        )
    assert not children()


def test_a_run_that_takes_what_the_machine_has_is_ended(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "free_mb", lambda *_: 100)
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        import edgeinfer.convert.pipeline.front as front, time
        right = front.Front._ask_oracles
        def greedy(self, report):
            held = bytearray(b'a' * (500 << 20))
            time.sleep(60)
        front.Front._ask_oracles = greedy
        """,
    )
    with pytest.raises(SourceError, match="MB of memory, which is what this machine has left"):
        export(net)
    assert not children()


def test_stages_are_kept_by_a_process_that_may_write_nowhere_else(
    net: Path, tmp_path: Path
) -> None:
    export(net, keep=tmp_path / "kept")
    names = sorted(p.name for p in (tmp_path / "kept").iterdir())
    assert [n for n in names if n.endswith(".onnx")][:2] == ["1-read.onnx", "2-normalised.onnx"]
    # Found out by the process that reads.
    (tmp_path / "no.onnx").write_bytes(net.read_bytes()[:-20])
    with pytest.raises(SourceError):
        export(tmp_path / "no.onnx", keep=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_false_declarations_are_found_when_looking(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (int64[1, 5] t)
        { t = NonZero(x) }"""
    ir.save(ir.from_onnx_text(text), tmp_path / "net.onnx")
    found: Any = edgeinfer.inspect(tmp_path / "net.onnx")
    assert any("a trial run gives [1, 0]" in note for note in found.notes)


def test_looking_leaves_this_process_as_it_was(net: Path) -> None:
    assert edgeinfer.check(net, targets=["onnxruntime"]) == {"onnxruntime-onnx": []}
    found: Any = edgeinfer.inspect(net)
    assert (found.name, found.nodes) == ("net.onnx", 2)
    assert not children()
