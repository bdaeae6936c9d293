"""What passed with little left, or gained nothing, is told and names what helps."""

import math

import pytest

from edgeinfer.convert.verify.gate import EngineResult, OutputResult, VariantResult
from edgeinfer.convert.verify.integer_findings import doubts, outweighed
from edgeinfer.metrics import OutputMetrics, budget_for

BUDGET = budget_for("static_wi8_ai8")


def result(max_rel: float = 0.01, sqnr_db: float = 30.0, size: int = 10) -> VariantResult:
    metrics = OutputMetrics(count=8, max_abs=1.0, max_rel=max_rel, sqnr_db=sqnr_db)
    engine = EngineResult("onnxruntime", "1", (OutputResult("y", metrics, floor=1e-3),))
    return VariantResult("cpu-onnx-static_wi8_ai8", "static_wi8_ai8", BUDGET, (engine,), size, {})


def test_a_good_one_is_passed_over() -> None:
    assert list(doubts(result(), 1000)) == []
    assert list(doubts(result(sqnr_db=math.inf, max_rel=0.0), 1000)) == []


@pytest.mark.parametrize(("max_rel", "sqnr_db"), [(0.36, 30.0), (0.01, 12.5)])
def test_one_at_the_edge_of_its_budget_names_auto(max_rel: float, sqnr_db: float) -> None:
    (line,) = doubts(result(max_rel, sqnr_db), 1000)
    assert "output 'y' takes 8" in line
    assert "of its budget: --precision auto" in line


def test_one_that_is_slower_than_floats_names_auto() -> None:
    assert list(doubts(result(), 1000, 1.05)) == list(doubts(result(), 1000, None)) == []
    (line,) = doubts(result(), 1000, 1.34)
    assert "takes 1.34 times as long as fp32 here" in line
    assert "--precision auto" in line


def test_vectors_that_outweigh_what_integers_saved_are_told() -> None:
    assert outweighed(100, 50, 1000) == outweighed(1000, 50, 900) == ""
    told = outweighed(100, 950, 1000)
    assert "no smaller than the float weights" in told
    assert "--data" not in told
    assert "--data always travels" in outweighed(100, 950, 1000, is_given=True)


def test_one_that_is_no_smaller_is_told() -> None:
    (line,) = doubts(result(size=1000), 1000)
    assert "is no smaller than the float model" in line


def test_one_that_failed_has_its_own_message() -> None:
    failed = result()
    output = OutputResult("y", OutputMetrics(), breaches=("wrong",))
    engine = EngineResult("onnxruntime", "1", (output,))
    broken = VariantResult(failed.id, failed.precision, BUDGET, (engine,), 1000, {})
    assert list(doubts(broken, 1)) == []
