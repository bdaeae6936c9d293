"""ONNX node cases through each lowering and its engine: right value or listed refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance import coreml_table, nodes, tflite_table
from tests.conformance.node_cases import golden, suite
from tests.conformance.nodes import faults, run_cases, whole
from tests.conformance.tflite_table import Results

SAMPLE = {"tflite": 60, "coreml": 48, "coreai": 180, "tvm": 200}
"""Of so many cases of the suite, one is run with every change, among the sweeps."""

GOLDEN = {"tflite": 1, "coreml": 3, "coreai": 15, "tvm": 40}
FEWER = 3
"""How many times fewer of the golden cases `make test` runs."""

HOUR = 3600


@pytest.fixture(params=list(nodes.DOCUMENTS))
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(nodes.DOCUMENTS[name].engine)
    return name


@pytest.mark.sweep
@pytest.mark.timeout(HOUR)
def test_sample_of_the_node_suite(target: str, tmp_path: Path) -> None:
    results = run_cases(target, 0, SAMPLE[target], tmp_path)
    assert list(results) == [case[0] for case in suite()[:: SAMPLE[target]]]
    assert faults(results) == []
    assert tflite_table.share(results, results) > 0.5


@pytest.mark.parametrize("fewer", [FEWER, pytest.param(1, marks=pytest.mark.sweep)])
def test_sample_of_the_golden_cases(target: str, fewer: int, tmp_path: Path) -> None:
    """Awkward cases that several engines agreed on."""
    step = GOLDEN[target] * fewer
    results = run_cases(target, 0, step, tmp_path, "golden")
    assert len(results) == len(golden()[::step])
    assert faults(results) == []
    assert tflite_table.share(results, results) >= 0.75


def test_an_interrupted_run_is_continued(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    names = [case[0] for case in golden()[0::30]]
    lines = [json.dumps({"name": names[0], "ours": "kept"}), json.dumps({"name": names[1]})]
    file = tmp_path / "tflite-golden-0-30.jsonl"
    file.write_text("\n".join([*lines, '{"name": "bro']))
    results = run_cases("tflite", 0, 30, tmp_path, "golden")
    assert list(results) == names
    assert [n for n, found in results.items() if found == "kept"] == names[:1]


@pytest.mark.slow
@pytest.mark.timeout(HOUR)
def test_golden_cases(target: str) -> None:
    results = whole(target, "golden")
    assert len(results) == len(golden())
    assert faults(results) == []
    assert tflite_table.share(results, results) >= 0.88


@pytest.mark.slow
@pytest.mark.timeout(4 * HOUR)
def test_whole_node_suite(target: str) -> None:
    results = whole(target)
    assert sorted(results) == sorted(case[0] for case in suite())
    assert faults(results) == []
    _enough(target, results)
    if target in ("tflite", "coreml"):
        assert nodes.DOCUMENTS[target].path.read_text("utf-8") == nodes.written(target, results)


def _enough(target: str, results: Results) -> None:
    if target in ("tflite", "tvm"):
        rows = tflite_table.groups(suite())
        mobile = "mobile operators, float32, int32, int64, bool"
        assert tflite_table.share(results, rows[mobile]) >= 0.95
        assert tflite_table.share(results, rows["eligible"]) >= 0.95
        assert tflite_table.share(results, rows["single operators on tensors of any type"]) >= 0.80
        return
    found = coreml_table.groups(suite())
    for row in ("eligible", "every case on types that Core ML holds"):
        assert coreml_table.share_refused(results, found[row]) <= 0.12


@pytest.mark.slow
@pytest.mark.timeout(HOUR)
def test_older_versions_of_operators() -> None:
    """Models of old exporters, and cases of the suite in each older version of their operator."""
    pytest.importorskip("ai_edge_litert")
    results = whole("tflite", "old")
    assert faults(results) == []
    back = [n for n in results if "@" in n]
    assert len(back) > 80
    assert tflite_table.share(results, back) >= 0.90
