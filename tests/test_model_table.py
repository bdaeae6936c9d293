"""The table of models is what was measured, and says what was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import model_table
from benchmarks.model_page import Row, page
from benchmarks.model_table import MODELS, PAGE, TARGETS, kept

HERE = Row(
    *("Net", "pictures", "cpu", "cpu-onnx-fp32", "onnx", "fp32", 2_500_000),
    error=1.5e-6,
    signal_db=120.4,
    verdict="pass",
    checked="onnxruntime 1.32.0",
)


def test_the_page_is_made_of_the_rows() -> None:
    assert page(kept()) == PAGE.read_text("utf-8"), "make models-table"


def test_every_model_has_a_row_for_every_target() -> None:
    rows = kept()
    names = {row.model for row in rows}
    assert len(names) >= 20
    assert any(row.task == "chat" for row in rows)
    for model in MODELS:
        if model.name in names:
            assert {row.target for row in rows if row.model == model.name} == set(TARGETS)


def test_rows_are_whole() -> None:
    for row in kept():
        if row.verdict == "refused":
            assert row.why, row
        else:
            assert row.size_bytes > 0, row
            assert row.error is not None or row.verdict == "not run", row
        assert (row.ms is None) == (not row.machine), row
        here = row.target == "cpu" and row.verdict != "refused"
        assert not here or (row.ms is None) == bool(row.why), row


def test_what_was_not_timed_says_so() -> None:
    assert (
        "| 2.50 | 1.5e-06 | 120 dB | pass | onnxruntime 1.32.0 | not measured | not measured |"
        in (page([HERE]))
    )
    timed = replace(HERE, ms=2.0, peer_ms=3.0, peer="plain onnxruntime", machine="A CPU")
    text = page([timed])
    assert "| 2 | 3 (onnxruntime, 1.50 times ours) |" in text
    assert "Times: A CPU." in text
    assert "| not measured |\n" in page([replace(timed, target="rpi5")])
    text = page([replace(HERE, why="too large to carry"), timed])
    assert text.count("Not timed: Net: too large to carry.\n") == 1


def test_a_time_that_is_missing_is_measured_without_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its artifact lies there; the other model is timed already, the third cannot be."""
    words: list[tuple[str, ...]] = []

    def run(*given: str) -> tuple[int, Any]:
        words.append(given)
        engines = {"onnxruntime": 2.0, "plain onnxruntime": 3.0}
        rows = [
            {"variant": HERE.variant, "engine": name, "median_ms": ms}
            for name, ms in engines.items()
        ]
        return 0, {"machine": {"cpu": "A CPU"}, "rows": rows}

    monkeypatch.setattr(model_table, "KEPT", tmp_path / "models.json")
    monkeypatch.setattr(model_table, "PAGE", tmp_path / "models.md")
    monkeypatch.setattr(model_table, "_command", run)
    models = [model_table.Model(name, "zoo:none.onnx", "x") for name in ("Net", "Timed", "Other")]
    monkeypatch.setattr(model_table, "MODELS", tuple(models))
    timed = replace(HERE, model="Timed", ms=1.0, peer_ms=1.0, peer="plain x", machine="A CPU")
    refused = Row("Other", "pictures", "cpu", verdict="refused", why="no kernel")
    model_table.keep([replace(HERE, why="not yet"), timed, refused])
    (tmp_path / "net.edge").touch()
    assert model_table.main(["--times", "--work", str(tmp_path)]) == 0
    assert words == [("bench", str(tmp_path / "net.edge"), "--seconds", "6")]
    net = replace(HERE, ms=2.0, peer_ms=3.0, peer="plain onnxruntime", machine="A CPU")
    assert kept() == [net, timed, refused]


def test_a_refusal_has_its_reason() -> None:
    refused = Row("Net", "pictures", "ios", verdict="refused", why="no kernel for a|b <c>")
    text = page([HERE, refused])
    assert "| Net | ios | no kernel for a\\|b &lt;c> |" in text
    assert "## ios" in text


def test_a_model_that_is_not_here_leaves_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "models.json"
    monkeypatch.setattr(model_table, "KEPT", rows)
    monkeypatch.setattr(model_table, "PAGE", tmp_path / "models.md")
    monkeypatch.setattr(model_table, "MODELS", (model_table.Model("Net", "zoo:none.onnx", "x"),))
    model_table.keep([HERE])
    assert model_table.main(["--again", "--work", str(tmp_path / "work")]) == 0
    assert kept() == [HERE]
    assert "Net: not fetched: " in capsys.readouterr().err
