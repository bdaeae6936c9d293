"""Engines that are kept: whole or not there, one builder at a time."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.engine_store import EngineKey, EngineStore, digest_of
from edgeinfer.errors import LoadError

KEY = EngineKey("a" * 64, {"TensorRT": "10.3.0", "device": "Orin"}, {"fp16": "1"})

BUILDER = """
import sys, time
from pathlib import Path
from edgeinfer.backends.engine_store import EngineKey, EngineStore
key = EngineKey("a" * 64, {"TensorRT": "10.3.0", "device": "Orin"}, {"fp16": "1"})
def make(folder):
    (folder / "engine").write_text("half")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "engine").write_text("whole " + sys.argv[3])
def waiting():
    print("waiting", flush=True)
store = EngineStore(Path(sys.argv[1]))
print((store.build(key, make, waiting) / "engine").read_text(), flush=True)
"""


def builder(root: Path, seconds: float, name: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", BUILDER, str(root), str(seconds), name]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def never(_: Path) -> None:
    raise AssertionError("built again")


def write(folder: Path) -> None:
    (folder / "engine").write_text("whole")


def quiet() -> None:
    pass


def test_a_builder_that_is_killed_leaves_nothing_and_blocks_nobody(tmp_path: Path) -> None:
    first = builder(tmp_path, 60, "one")
    assert line(first) == "building"
    second = builder(tmp_path, 0, "two")
    assert line(second) == "waiting"
    assert EngineStore(tmp_path).find(KEY) is None
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert [line(second), line(second)] == ["building", "whole two"]
    assert second.wait(timeout=20) == 0
    folder = EngineStore(tmp_path).build(KEY, never, quiet)
    assert (folder / "engine").read_text() == "whole two"
    assert list(tmp_path.rglob(".building-*")) == []


def test_of_two_builders_one_builds_and_the_other_takes_it(tmp_path: Path) -> None:
    first = builder(tmp_path, 1, "one")
    assert line(first) == "building"
    second = builder(tmp_path, 1, "two")
    assert [line(second), line(second)] == ["waiting", "whole one"]
    assert line(first) == "whole one"
    assert first.wait(timeout=20) == second.wait(timeout=20) == 0


def test_an_error_while_building_leaves_what_was_there(tmp_path: Path) -> None:
    store = EngineStore(tmp_path)
    folder = store.build(KEY, write, quiet)

    def fail(_: Path) -> None:
        raise LoadError("no")

    other = dataclasses.replace(KEY, options={"fp16": "0"})
    with pytest.raises(LoadError, match="no"):
        store.build(other, fail, quiet)
    assert store.find(KEY) == folder
    assert store.find(other) is None
    assert list(tmp_path.rglob(".building-*")) == []


@pytest.mark.parametrize("damage", ["cut", "gone", "record"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    store = EngineStore(tmp_path)
    folder = store.build(KEY, write, quiet)
    if damage == "cut":
        (folder / "engine").write_text("w")
    elif damage == "gone":
        (folder / "engine").unlink()
    else:
        (folder / "key.json").write_text("{")
    assert store.reason(KEY) == "its files are damaged"
    assert (store.build(KEY, write, quiet) / "engine").read_text() == "whole"
    assert store.reason(KEY) == ""


def test_every_fact_that_changed_is_named(tmp_path: Path) -> None:
    store = EngineStore(tmp_path)
    store.build(KEY, write, quiet)
    now = dataclasses.replace(KEY, facts={"TensorRT": "10.7.0", "device": "Thor"})
    assert store.reason(now) == (
        "it was built for TensorRT 10.3.0, this is 10.7.0; device Orin, this is Thor"
    )


def test_an_entry_that_another_process_removes_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EngineStore(tmp_path)
    store.build(KEY, write, quiet)
    (store._folder(KEY).parent / "0gone").symlink_to("nowhere")
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    now = dataclasses.replace(KEY, facts={"TensorRT": "10.7.0", "device": "Orin"})
    assert store.reason(now) == "it was built for TensorRT 10.3.0, this is 10.7.0"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = EngineStore(tmp_path / "file")
    with pytest.raises(LoadError, match=r"engine cache .*Not a directory; set EDGEINFER_CACHE"):
        store.build(KEY, write, quiet)


@pytest.mark.parametrize("name", ["m.onnx.data", "weights.bin", "parts/w.bin"])
def test_the_digest_covers_weights_in_their_own_file(name: str, tmp_path: Path) -> None:
    path, weights = tmp_path / "m.onnx", tmp_path / name
    path.write_bytes(b"\x0a location \x12" + name.encode())
    weights.parent.mkdir(exist_ok=True)
    (tmp_path / "notes.txt").write_text("not of the model")
    alone = digest_of(path)
    weights.write_bytes(b"w1")
    first = digest_of(path)
    weights.write_bytes(b"w2")
    assert len({alone, first, digest_of(path)}) == 3
    (tmp_path / "notes.txt").write_text("changed")
    weights.write_bytes(b"w1")
    assert digest_of(path) == first
    path.write_bytes(b"")
    assert digest_of(path) != alone
