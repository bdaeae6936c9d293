"""Every command that reads a stranger's file does it by one rule: apart, bounded, confined."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import psutil
import pytest

import edgeinfer
from edgeinfer.convert.pipeline import worker
from edgeinfer.errors import CrashedError, SourceError
from tests.convert.llm import test_pipeline
from tests.convert.pipeline.test_worker import NET, in_the_worker

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes"),
    pytest.mark.usefixtures("conversions_apart"),
]


def net(folder: Path, name: str = "net.onnx") -> Path:
    ir.save(ir.from_onnx_text(NET.replace("[N,4]", "[2,4]")), folder / name)
    return folder / name


def tune(path: Path) -> Any:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from edgeinfer.convert.tuning.tune import TuningRequest, _workloads
    from edgeinfer.profiles import load

    order = TuningRequest("tvm-x86-64-v3")
    return _workloads(path, load(order.target), order, path.parent)


def compare(path: Path) -> Any:
    other = path.with_name("other.onnx")
    model = ir.from_onnx_text(NET.replace("[N,4]", "[2,4]").replace("1.5", "2.5"))
    ir.save(model, other)
    return edgeinfer.compare(path, other, precision="fp32")


def convert(path: Path) -> Any:
    return edgeinfer.export(path, path.with_suffix(".edge"), targets=["onnxruntime"])


GRAPHS: dict[str, Callable[[Path], Any]] = {
    "inspect": edgeinfer.inspect,
    "check": lambda path: edgeinfer.check(path, targets=["onnxruntime"]),
    "export": convert,
    "tune": tune,
    "compare": compare,
}
TEXTS: dict[str, Callable[[Path], Any]] = {
    "inspect": edgeinfer.inspect,
    "export": lambda path: edgeinfer.export(path, path.with_suffix(".edge")),
}
LOOKS = [
    *(pytest.param(look, False, id=name) for name, look in GRAPHS.items()),
    *(pytest.param(look, True, id=f"{name}-text") for name, look in TEXTS.items()),
]


def made(folder: Path, is_text: bool) -> Path:
    return test_pipeline.model(folder / "a.gguf") if is_text else net(folder)


def test_all_of_them_do_it(tmp_path: Path) -> None:
    """What is refused below is right."""
    path = net(tmp_path)
    graph: Any = edgeinfer.inspect(path)
    assert graph.nodes == 2
    assert edgeinfer.check(path, targets=["onnxruntime"]) == {"onnxruntime-onnx": []}
    machine, work = tune(path)
    assert (machine.name, work.open, work.graph.path.name) == ("x86-64-v3", 0, "profiled.onnx")
    assert [task.title for task in work.tasks]
    (row,) = compare(path).rows
    assert (row.op, row.node) == ("Mul", "Mul_0")
    info: Any = edgeinfer.inspect(made(tmp_path, True))
    assert (info.family, info.format) == ("llama", "gguf")


@pytest.mark.parametrize(("look", "is_text"), LOOKS)
def test_what_takes_more_than_it_explains_is_ended(
    look: Callable[[Path], Any], is_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CHECK_SPARE", 10 << 20)
    small = {task: (*where[:2], 10 << 20) for task, where in worker._FUNCTIONS.items()}
    monkeypatch.setattr(worker, "_FUNCTIONS", small)
    path = made(tmp_path, is_text)
    with pytest.raises(SourceError, match="which its size does not explain") as caught:
        look(path)
    # Nobody is told to switch off what protects from a stranger's file.
    assert "EDGEINFER_IN_PROCESS" not in str(caught.value)
    assert "that you made yourself" in str(caught.value)
    assert not [p for p in psutil.Process().children() if "pipeline.worker" in str(p.cmdline())]
    assert not path.with_suffix(".edge").exists()


@pytest.mark.parametrize("look", ["inspect", "check"])
def test_who_was_asked_to_look_says_nothing_of_its_bounds(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hands over the file may be in the process by then."""
    monkeypatch.setattr(worker, "_CHECK_SPARE", 10 << 20)
    small = {task: (*where[:2], 10 << 20) for task, where in worker._FUNCTIONS.items()}
    monkeypatch.setattr(worker, "_FUNCTIONS", small)
    path = net(tmp_path)
    in_the_worker(
        tmp_path,
        monkeypatch,
        """
        from edgeinfer.backends.process import channel
        announce = channel.announce
        def hostile(line):
            announce(line)
            line.tell("looked")
            line.tell("belongs", [sys.executable] * 1000)
        channel.announce = hostile
        """,
    )
    with pytest.raises(SourceError, match="which its size does not explain"):
        GRAPHS[look](path)


@pytest.mark.sample(each="is_text")
@pytest.mark.parametrize(("look", "is_text"), LOOKS)
def test_it_reaches_nobody_and_what_ends_it_ends_nothing_else(
    look: Callable[[Path], Any], is_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "from edgeinfer.backends.process.confine import confine; print(*confine([]))"
    stands = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout
    if b"seccomp" not in stands:
        pytest.skip("this kernel has no seccomp filters")
    path = made(tmp_path, is_text)
    in_the_worker(
        tmp_path,
        monkeypatch,
        f"""
        import os, signal, socket
        import edgeinfer.convert.sources.onnx as onnx
        import edgeinfer.convert.llm.gguf as gguf
        def reaching(path):
            try:
                socket.socket()
            except PermissionError:
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError("there is a network")
        {"gguf.read" if is_text else "onnx.read_file"} = reaching
        """,
    )
    with pytest.raises(CrashedError, match="SIGSEGV"):
        look(path)


@pytest.mark.parametrize(
    ("look", "is_text"),
    [
        (lambda path: edgeinfer.inspect(path, trust_source=True), False),
        (lambda path: edgeinfer.inspect(path, trust_source=True), True),
        (lambda p: edgeinfer.check(p, targets=["onnxruntime"], trust_source=True), False),
        (
            lambda p: edgeinfer.export(
                p, p.with_suffix(".edge"), targets=["onnxruntime"], trust_source=True
            ),
            False,
        ),
    ],
    ids=["inspect", "inspect-text", "check", "export"],
)
def test_who_vouches_for_a_file_gets_it_without_bounds(
    look: Callable[[Path], Any], is_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CHECK_SPARE", 10 << 20)
    small = {task: (*where[:2], 10 << 20) for task, where in worker._FUNCTIONS.items()}
    monkeypatch.setattr(worker, "_FUNCTIONS", small)
    assert look(made(tmp_path, is_text))
