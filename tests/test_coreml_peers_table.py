"""The comparison of Core ML converters says where we are not ahead."""

from pathlib import Path

import pytest

from benchmarks.coreml_peers.__main__ import _read, _write
from benchmarks.coreml_peers.rows import Row, Side
from benchmarks.coreml_peers.summary import broken, table
from benchmarks.coreml_peers.tools import Installed

PEERS = ("onnx2coreml", "onnxsim")


def installed(converts: float, checks: float) -> Installed:
    return Installed((Path("site"),), Path("bytecode"), converts, checks)


THERE = {"edgeinfer": installed(200, 200), **{n: installed(213, 293) for n in PEERS}}


def good(**other: object) -> Side:
    side = Side(made=True, right=True, db=99.0, ops=10, bytes=1000, timed=1.0, open_right=True)
    for name, value in other.items():
        setattr(side, name, value)
    return side


def rows(ours: Side, theirs: Side) -> list[Row]:
    return [Row("net", 60.0, {"edgeinfer": ours, **dict.fromkeys(PEERS, theirs)})]


def test_ahead_everywhere_says_nothing() -> None:
    assert broken(rows(good(), good(timed=1.1)), THERE) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (good(right=False, said="3 dB"), good(), "right: 0, onnxsim 1"),
        (good(right=False), good(), "wrong numbers: 1, onnxsim 0"),
        (good(made=False, right=False), good(), "converted: 0, onnxsim 1"),
        (good(open_right=False, open_said="no"), good(), "net with open sizes: no"),
        (good(open_right=False), good(), "open sizes: 0, onnxsim 1"),
        (good(timed=1.2), good(), "CPU time: 1.200 times that of onnxsim, median of 1"),
        (good(ops=11), good(), "operations: 1.100 times that of onnxsim, median of 1"),
        (good(bytes=1010), good(), "bytes: 1.010 times that of onnxsim, median of 1"),
    ],
)
def test_each_column_is_looked_at(ours: Side, theirs: Side, said: str) -> None:
    assert said in broken(rows(ours, theirs), THERE)


def test_both_installs_are_looked_at() -> None:
    there = {**THERE, "edgeinfer": installed(240, 293)}
    found = broken(rows(good(), good()), there)
    assert found == [
        line
        for name in PEERS
        for line in (
            f"install that converts: 240 MB, {name} 213 MB",
            f"install that checks numbers: 293 MB, {name} 293 MB",
        )
    ]


def test_parts_of_a_run_are_put_together(tmp_path: Path) -> None:
    made = rows(good(), good(said="x", open_right=None))
    _write(tmp_path / "a.json", made, THERE, ["x"])
    assert list(_read(tmp_path / "a.json")) == made
    text = table([*made, *_read(tmp_path / "a.json")], THERE)
    assert "| converted, of 2 | 2 | 2 | 2 |" in text
    assert "10; ours 10, 1.00 (1.00 to 1.00) of it, 2 models" in text
    assert "| install that checks numbers | 200 MB | 293 MB | 293 MB |" in text
