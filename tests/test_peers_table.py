"""The comparison with other engines tells losses first, and counts no engine that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import page, report
from benchmarks.peers.environments import OURS, Engine, engines, interpreters
from benchmarks.peers.files import Files
from benchmarks.peers.race import Result, Row, race

EVERY = engines()


def row(model: str, ours: float, **others: Result) -> Row:
    results = {OURS: Result(ms=[ours, ours, ours], engine="openvino"), **others}
    return Row(model, "fp32", 1, results)


def took(ms: float) -> Result:
    return Result(ms=[ms, ms, ms])


def test_every_engine_can_be_opened_and_installed() -> None:
    from benchmarks.peers.worker import OPENS

    for engine in EVERY.values():
        assert engine.opens in OPENS, engine.name
        assert all("==" in package for package in (*engine.packages, *engine.bare)), engine.name
        owner = EVERY[engine.environment]
        assert owner.packages or owner.name == OURS, engine.name


def test_the_best_peer_is_no_file_of_ours_and_no_lower_precision() -> None:
    other = row(
        "net", 2.0, onnxruntime=took(4.0), litert=took(1.0), **{"openvino-default": took(1)}
    )
    best = report.best_peer(other, EVERY)
    assert best is not None
    assert (best.other, best.middle) == ("onnxruntime", 0.5)


def test_ratios_are_of_turns_of_the_same_round() -> None:
    mine, theirs = Result(ms=[1.0, 10.0, 2.0]), Result(ms=[2.0, 20.0, 4.0])
    found = report.ratio(Row("net", "fp32", 1, {OURS: mine, "mnn": theirs}), "mnn")
    assert found is not None
    assert (found.low, found.middle, found.high) == (0.5, 0.5, 0.5)


def test_losses_stand_first_and_in_red() -> None:
    rows = [row("won", 1.0, onnxruntime=took(2.0)), row("lost", 3.0, onnxruntime=took(2.0))]
    record = {
        "machine": "a machine",
        "date": "2026-11-29",
        "command": "make bench",
        "rounds": 3,
        "versions": {"onnxruntime": "1"},
        "rows": [r.to_json() for r in rows],
    }
    shown = page.page(record, EVERY)
    assert shown.index('<tr class="loss"><td>lost</td>') < shown.index("<tr><td>won</td>")
    text = report.markdown(record, EVERY)
    assert "| **1.50 (1.50-1.50): onnxruntime** |" in text
    assert text.index("| lost |") < text.index("| won |")


def test_an_engine_without_times_is_told_with_its_reason() -> None:
    wrong = Result(state="wrong", said="off by 0.5 of the largest value")
    other = row("net", 2.0, mnn=wrong, onnxruntime=took(2.0))
    assert report.cell(other, "mnn") == "wrong"
    assert report.failures([other]) == {("mnn", "wrong: off by 0.5 of the largest value"): ["net"]}


def test_rows_come_back_from_json() -> None:
    whole = row("net", 2.0, mnn=took(1.0))
    assert Row.read(whole.to_json()) == whole


class _Given(Files):
    """A model that is there already."""

    def __init__(self, folder: Path, kind: str = "fp32") -> None:
        self.kind, self.folder, self.given = kind, folder, folder / "feeds.npz"
        self.feeds = {"x": np.ones((1, 4), np.float32)}
        np.savez(self.given, x=self.feeds["x"])

    @property
    def expected(self) -> dict[str, object]:
        return {"y": np.full((1, 4), 2.0, np.float32)}

    def path(self, file: str, python: Path) -> Path:
        return self.folder / file


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("lambda: [given['x'] * 2]", "ran"),
        ("lambda: [given['x'] * 3]", "wrong"),
        ("lambda: missing()", "failed"),
        ("lambda: __import__('nothing_of_that_name')", "not installed"),
        ("lambda: __import__('os').abort()", "failed"),
    ],
)
def test_an_engine_that_is_wrong_fails_or_is_absent_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, state: str
) -> None:
    from benchmarks.peers import race as module

    lines = Path(module.__file__).with_name("worker.py").read_text(encoding="utf-8")
    opened = f"OPENS['made'] = lambda file, given, threads: {body}\n"
    fake = tmp_path / "worker.py"
    fake.write_text(lines.replace("class Worker:", f"{opened}\nclass Worker:"), encoding="utf-8")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "race.py"))
    made = Engine(name="made", environment="made", file="file")
    here = interpreters({"made": made}, None)
    found = race(_Given(tmp_path), {"made": made}, here, [0], 1, 2).results["made"]
    assert found.state == state, found.said
    assert len(found.ms) == (2 if state == "ran" else 0)


def test_an_environment_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    made = Engine(name="made", environment="made")
    found = race(_Given(tmp_path), {"made": made}, {"made": "no such package"}, [0], 1, 2)
    assert found.results["made"].state == "not installed"
    assert found.results["made"].said == "no such package"
