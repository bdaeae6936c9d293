"""Metrics measure, budgets decide; both on the traps that models and engines set."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from edgeinfer.errors import UsageError
from edgeinfer.metrics import (
    BUDGETS,
    Budget,
    OutputMetrics,
    budget_for,
    check,
    compare,
    winners_lost,
    worst,
)
from edgeinfer.types import Array

F32 = np.float32
FP32 = BUDGETS["fp32"]


def verdict(expected: object, actual: object, precision: str = "fp32") -> list[str]:
    return check(compare(np.asarray(expected), np.asarray(actual)), budget_for(precision))


def test_equal_outputs_are_equal_by_every_measure() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(F32)
    metrics = compare(x, x.copy())
    assert (metrics.max_abs, metrics.max_rel, metrics.sqnr_db) == (0.0, 0.0, math.inf)
    assert metrics.cosine == pytest.approx(1.0)
    assert check(metrics, FP32) == []


def test_known_numbers() -> None:
    metrics = compare(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert metrics.max_abs == 0.5
    assert metrics.max_rel == 0.125
    assert metrics.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert metrics.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))


def test_nan_at_the_same_places_is_equal() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf], F32)
    assert verdict(x, x.copy()) == []


@pytest.mark.parametrize(
    "actual",
    [[1.0, 2.0, np.inf], [1.0, np.nan, 3.0], [np.nan, np.nan, np.inf], [1, np.nan, -np.inf]],
)
def test_nan_or_infinity_elsewhere_is_a_breach_at_any_precision(actual: list[float]) -> None:
    expected = np.array([1.0, np.nan, np.inf], F32)
    for precision in BUDGETS:
        assert "NaN or infinity" in verdict(expected, np.array(actual, F32), precision)[0]


def test_all_nan_against_zeros_is_a_breach() -> None:
    assert verdict(np.zeros(4, F32), np.full(4, np.nan, F32))


def test_shape_and_type_are_breaches_not_crashes() -> None:
    x = np.ones((2, 3), F32)
    assert verdict(x, x.T) == ["shape [3, 2] instead of [2, 3]"]
    assert verdict(x, x.astype(np.float64)) == ["element type float64 instead of float32"]
    assert verdict(x, x.astype(np.int32)) == ["element type int32 instead of float32"]


def test_empty_outputs_are_equal_if_their_shapes_are() -> None:
    assert verdict(np.ones((0, 6), F32), np.ones((0, 6), F32)) == []
    assert verdict(np.ones((0, 6), F32), np.ones((1, 6), F32))


def test_scalars() -> None:
    assert verdict(F32(2.0), F32(2.0)) == []
    assert verdict(F32(2.0), F32(2.1))


def test_integers_and_booleans_are_exact_at_fp32() -> None:
    ids = np.arange(1000)
    wrong = ids.copy()
    wrong[7] += 1
    assert verdict(ids, wrong) == ["1 of 1000 elements differ, allowed 0"]
    assert verdict(ids, wrong, "fp16") == []
    assert verdict(np.array([True, False]), np.array([True, True]))


def test_large_integers_keep_every_digit() -> None:
    assert verdict(np.array([2**60]), np.array([2**60 + 1]))


def test_strings() -> None:
    assert verdict(np.array(["a", "b"], object), np.array(["a", "b"])) == []
    assert verdict(np.array(["a", "b"], object), np.array(["a", "c"]))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.complex64])
def test_every_float_type_is_measured(dtype: type) -> None:
    x: Array = np.array([1.0, -2.0, 0.5, 3.0]).astype(dtype)
    assert verdict(x, x.copy()) == []
    assert verdict(x, (x * 2).astype(dtype), "bf16")


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-3, 1.0, 1e30, 1e300])
def test_the_verdict_does_not_depend_on_the_unit(scale: float) -> None:
    x = np.random.default_rng(0).standard_normal(200) * scale
    metrics = compare(x, x * 1.1)
    assert metrics.max_rel == pytest.approx(0.1)
    assert metrics.sqnr_db == pytest.approx(20.0)
    assert compare(x, x * (1 + 1e-6)).sqnr_db == pytest.approx(120.0, abs=0.1)


def test_constant_outputs() -> None:
    ones = np.ones(100, F32)
    assert verdict(ones, ones * F32(1 + 1e-6)) == []
    assert verdict(ones, ones * F32(1.01))
    assert verdict(np.zeros(100, F32), np.full(100, 1e-7, F32)) == []
    assert verdict(np.zeros(100, F32), np.full(100, 1e-2, F32))


def test_a_saturated_sigmoid_may_move_by_rounding() -> None:
    # Measured on a text detector over a blank page: values of 2e-5, engines 1.5e-7 apart.
    blank = np.full((1, 1, 96, 96), 2e-5, F32)
    assert verdict(blank, blank + F32(1.5e-7)) == []


def test_the_near_twin_is_caught_at_every_precision() -> None:
    # Voice activity of two exports that look alike but are not: 0.0051 and 0.0262.
    for precision in BUDGETS:
        assert verdict(np.array([[0.0051]], F32), np.array([[0.0262]], F32), precision), precision


def test_the_namesake_with_other_weights_is_caught_at_every_precision() -> None:
    for precision in BUDGETS:
        assert verdict(np.array([[0.743]], F32), np.array([[0.126]], F32), precision), precision


def test_what_sound_engines_do_passes_at_fp32() -> None:
    rng = np.random.default_rng(0)
    posterior = rng.uniform(0.05, 0.56, (1, 172, 88)).astype(F32)
    noise = rng.uniform(-1e-4, 1e-4, posterior.shape).astype(F32)
    assert verdict(posterior, posterior + noise) == []
    page = rng.uniform(0, 1, (1, 1, 320, 320)).astype(F32)
    other = page + rng.normal(0, 1e-5, page.shape).astype(F32)
    other[0, 0, 5, 5] += 5e-4
    assert verdict(page, other) == []


def test_scores_are_not_hidden_by_coordinates() -> None:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 640, (1, 4, 2000))
    scores = rng.uniform(0, 1, (1, 80, 2000))
    expected = np.concatenate([boxes, scores], axis=1).astype(F32)
    actual = expected.copy()
    actual[:, 4:] = 1 - actual[:, 4:]
    assert compare(expected, actual).max_rel < FP32.max_rel
    assert "worst channel" in " ".join(verdict(expected, actual))


def test_a_quiet_channel_does_not_hide_a_wrong_one() -> None:
    rng = np.random.default_rng(0)
    expected = np.concatenate(
        [rng.uniform(0, 640, (4, 900)), rng.uniform(0, 1, (2, 900)), np.full((1, 900), 1e-6)]
    ).astype(F32)
    actual = expected.copy()
    actual[6] = 2e-3
    floor = BUDGETS["fp16"].channel_floor
    assert check(compare(expected, actual, channel_floor=floor), BUDGETS["fp16"]) == []
    actual[4:6] = 1 - actual[4:6]
    breaches = check(compare(expected, actual, channel_floor=floor), BUDGETS["fp16"])
    assert "worst channel" in " ".join(breaches)


def test_top1_counts_decided_rows_only() -> None:
    expected = np.array([[10.0, 0, 0], [5.0, 4.9, 0], [0, 0, 8.0], [0, 7.0, 0]], F32)
    actual = np.array([[10.0, 0, 0], [4.9, 5.0, 0], [0, 0, 8.0], [7.5, 7.0, 0]], F32)
    metrics = compare(expected, actual)
    assert metrics.top1 == pytest.approx(2 / 3)
    assert metrics.top1_rows == 3


@pytest.mark.parametrize("shape", [(4, 8, 8), (8,), (2, 3, 4, 5), (2, 1)])
def test_top1_is_for_classifiers(shape: tuple[int, ...]) -> None:
    assert compare(np.ones(shape, F32), np.ones(shape, F32)).top1 is None


def test_classifiers_with_trailing_ones_are_classifiers() -> None:
    x = np.eye(4, dtype=F32).reshape(4, 4, 1, 1)
    assert compare(x, x).top1 == 1.0


def test_worst_combines() -> None:
    metrics = worst(
        [
            OutputMetrics(4, 0.1, 0.01, 40.0, 30.0, 0.05, 0.99, 1.0, 3),
            OutputMetrics(4, 0.2, 0.001, 50.0, 20.0, 0.02, 0.98, 0.0, 1, mismatches=2),
        ]
    )
    assert metrics.count == 8
    assert (metrics.max_abs, metrics.max_rel, metrics.sqnr_db) == (0.2, 0.01, 40.0)
    assert (metrics.channel_sqnr_db, metrics.channel_max_abs, metrics.cosine) == (20.0, 0.02, 0.98)
    assert (metrics.top1, metrics.top1_rows, metrics.mismatches) == (0.75, 4, 2)
    assert worst([]) == OutputMetrics()


def test_a_widened_budget_admits_what_rounding_does_and_no_more() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    noise = np.random.default_rng(1).standard_normal(1000)
    spread = compare(x, x + 2e-4 * noise)
    assert check(compare(x, x + 1e-3 * noise), FP32)
    assert check(compare(x, x + 1e-3 * noise), FP32.widened(spread)) == []
    assert check(compare(x, x + 1e-2 * noise), FP32.widened(spread))
    assert FP32.widened(OutputMetrics()) == FP32


def test_budgets_get_wider_with_fewer_bits() -> None:
    chain = ["fp64", "fp32", "fp16", "bf16", "static_wi8_ai8"]
    for tight, loose in itertools.pairwise(chain):
        a, b = BUDGETS[tight], BUDGETS[loose]
        assert a.max_abs < b.max_abs
        assert a.max_rel < b.max_rel
        assert a.sqnr_db > b.sqnr_db
        assert a.cosine > b.cosine


def test_a_mixture_may_lose_what_its_coarsest_part_may() -> None:
    assert budget_for("fp16+fp32") == BUDGETS["fp16"]
    assert budget_for("fp32+fp64") == FP32
    with pytest.raises(UsageError, match="'fp7'"):
        budget_for("fp16+fp7")


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(UsageError, match="'fp7'; known: fp64, fp32"):
        budget_for("fp7")


def test_json_has_no_infinity() -> None:
    text = json.dumps(compare(np.ones(3), np.ones(3)).to_json(), allow_nan=False)
    assert json.loads(text)["sqnr_db"] is None


def test_sequences_are_compared_one_by_one() -> None:
    one, two = np.ones(2, F32), np.ones(3, F32)
    assert check(compare([one, two], [one, two]), FP32) == []  # type: ignore[arg-type]
    assert compare([one, two], [two, two]).problem  # type: ignore[arg-type]
    assert compare([one, two], [one]).problem == (  # type: ignore[arg-type]
        "a sequence of 1 instead of a sequence of 2"
    )
    assert compare(one, [one, two]).problem == (  # type: ignore[arg-type]
        "a sequence of 2 instead of a tensor"
    )


def test_none_is_a_problem() -> None:
    assert compare(np.ones(2), None).problem  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("top1", "rows", "said"),
    [
        (0.0, 1, "same winner in 0 of 1 decided row, at least 1 required"),
        (0.5, 2, "same winner in 1 of 2 decided rows, at least 2 required"),
        (0.8, 20, "same winner in 16 of 20 decided rows, at least 18 required"),
    ],
)
def test_winners_are_counted_not_shared_out(top1: float, rows: int, said: str) -> None:
    budget = Budget(0.0, 1.0, 0.0, 0.0, 0.0, top1=0.9)
    metrics = OutputMetrics(count=rows, max_abs=0.1, top1=top1, top1_rows=rows)
    assert winners_lost([metrics], budget) == [said]
    # Of a few rows in one run a share says nothing; all vectors together do.
    assert check(metrics, budget) == ([said] if rows >= 8 else [])


def test_one_picture_of_many_may_go_another_way() -> None:
    budget = budget_for("static_wi8_ai8")
    kept, lost = (OutputMetrics(top1=t, top1_rows=1, max_abs=0.1) for t in (1.0, 0.0))
    assert winners_lost([kept] * 7 + [lost], budget) == []
    assert winners_lost([kept] * 6 + [lost] * 2, budget)
    assert winners_lost([kept] * 3 + [lost], budget), "of a few, each one counts"
    assert winners_lost([kept] * 7 + [lost], budget_for("fp32"))


def test_a_small_output_by_chance_is_held_against_what_it_usually_is() -> None:
    scores = [np.array([[s]], np.float32) for s in (0.01, 0.97, 0.99, 0.02)]
    allowed = budget_for("static_wi8_ai8+by_task").among(scores)
    assert check(compare(scores[0], np.array([[0.12]], np.float32)), allowed) == []
    assert check(compare(scores[0], np.array([[0.99]], np.float32)), allowed)
    # Noise on everything is noise: as much as half of the signal's energy is too much.
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(1, 64)).astype(np.float32) for _ in range(4)]
    wrong = [rng.normal(size=(1, 64)).astype(np.float32) for _ in range(4)]
    wide = budget_for("by_task").among(rows)
    assert all(check(compare(a, b), wide) for a, b in zip(rows, wrong, strict=True))


def test_only_a_measure_of_the_task_pools_vectors() -> None:
    scores = [np.array([[s]], np.float32) for s in (0.01, 1.5)]
    for precision in ("fp32", "fp16", "static_wi8_ai8", "weight_only_wi8_afp32"):
        budget = budget_for(precision)
        assert budget.among(scores) == budget
    pooled = budget_for("by_task")
    assert pooled.among([]).max_abs == pooled.max_abs
    assert pooled.among([np.array([1, 2])]).max_abs == pooled.max_abs
    assert pooled.among([np.array([np.nan], np.float32)]) == pooled


@pytest.mark.parametrize("precision", ["fp32", "fp16", "static_wi8_ai8", "dynamic_wi8_afp32"])
def test_the_floor_of_an_output_is_a_share_of_its_largest_value(precision: str) -> None:
    budget = budget_for(precision)

    def floor(*arrays: object) -> float:
        return budget.among(arrays).max_abs / budget.max_abs  # type: ignore[arg-type]

    small = np.array([[1e-4, -2e-5]], np.float32)
    assert floor(small) == pytest.approx(1e-4)
    # Over all vectors, not of one.
    assert floor(small, np.array([[0.25]], np.float16)) == 0.25
    assert floor(small, np.array([[3.0]], np.float32)) == 1.0
    assert floor([small, small * 2]) == pytest.approx(2e-4)
    assert floor(np.array([np.nan, np.inf, 0.5], np.float32)) == 0.5
    # There is no scale in zeros, in integers, and in nothing.
    assert floor(np.zeros(4, np.float32)) == floor(np.array([1, 0])) == floor() == 1.0
    assert budget.among([small]).channel_floor == pytest.approx(20e-4 * budget.max_abs)


def test_a_vector_of_many_small_elements_is_judged() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 4096))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    rows = [v[None] for v in vectors]
    budget = budget_for("static_wi8_ai8").among(rows)
    # Every element is less than 5e-3 off, and a seventh of the energy is wrong.
    noise = rng.uniform(-5e-3, 5e-3, size=(1, 4096)) * 2
    noise = np.clip(noise, -4.9e-3, 4.9e-3).astype(np.float32)
    metrics = compare(rows[0], rows[0] + noise)
    assert metrics.max_abs < budget_for("static_wi8_ai8").max_abs
    assert metrics.sqnr_db < 12.0
    assert check(metrics, budget)
    assert not check(compare(rows[0], rows[0] + noise / 16), budget)


def test_the_page_of_budgets_has_every_figure() -> None:
    page = (Path(__file__).parents[1] / "docs" / "budgets.md").read_text("utf-8")
    rows = {
        cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
        for line in page.splitlines()
        if line.startswith("| `")
        for cells in [line.strip("|").split("|")]
    }
    assert list(rows) == list(BUDGETS)
    for name, budget in BUDGETS.items():
        decibels = ["none" if v == -math.inf else f"{v:g} dB" for v in budget_ratios(budget)]
        assert rows[name] == [
            *(f"{budget.max_rel:g}", *decibels, repr(budget.cosine)),
            *(f"{budget.top1:g}", f"{budget.mismatch:g}", f"{budget.max_abs:g}"),
        ], name


def budget_ratios(budget: Budget) -> tuple[float, float]:
    return budget.sqnr_db, budget.channel_sqnr_db


@pytest.mark.parametrize(
    ("net", "max_rel", "sqnr_db", "cosine", "passes"),
    [
        ("mnist", 0.015, 35.6, 0.9999, True),
        ("spam", 0.101, 19.9, 0.9999, True),
        ("minilm", 0.148, 17.7, 0.9915, True),
        ("minilm by ONNX Runtime, 80 % worse", 4.77, -1.9, 0.233, False),
        ("openWakeWord's embedding", 0.05, 26.9, 0.9990, True),
        ("a detector of which one score was another", 0.43, 20.0, 0.99, False),
        ("magika", 0.1, 20.0, 0.9697, False),
        ("PP-OCR's direction", 0.2, 9.2, 0.98, False),
        ("silero-vad", 1.53, -0.7, 0.454, False),
        ("efficientnet-lite0 by ONNX Runtime", 0.161, 15.5, 0.9860, True),
        ("ppocrv4-rec by ONNX Runtime, 6.5 % worse", 0.995, 5.7, 0.862, False),
    ],
)
def test_integers_of_nets_that_kept_their_task_pass_and_others_do_not(
    net: str, max_rel: float, sqnr_db: float, cosine: float, passes: bool
) -> None:
    found = OutputMetrics(8, 1.0, max_rel, sqnr_db, sqnr_db, 1.0, cosine)
    assert (check(found, budget_for("static_wi8_ai8")) == []) is passes, net


@pytest.mark.parametrize(
    ("precision", "max_rel", "sqnr_db", "cosine"),
    [
        ("fp16", 0.08, 34.0, 0.9998),
        ("bf16", 0.025, 34.6, 0.9998),
        ("static_wi8_ai16", 0.039, 24.7, 0.9984),
        ("dynamic_wi8_afp32", 0.084, 19.3, 0.9942),
        ("weight_only_wi8_afp32", 0.083, 19.3, 0.9942),
        ("weight_only_wi4b32_afp32", 0.119, 17.8, 0.9917),
    ],
)
def test_what_kept_a_task_passes_and_what_is_far_beyond_it_is_refused(
    precision: str, max_rel: float, sqnr_db: float, cosine: float
) -> None:
    budget = budget_for(precision)
    worst = OutputMetrics(8, 1.0, max_rel, sqnr_db, 20.0, 1.0, cosine)
    assert check(worst, budget) == []
    # A text reader's figures with letters one step later: only its task tells.
    beyond = {
        "max_rel": replace(worst, max_rel=0.957),
        "sqnr_db": replace(worst, sqnr_db=10.5),
        "cosine": replace(worst, cosine=0.9553),
    }
    for name, found in beyond.items():
        assert len(check(found, budget)) == 1, name


def test_errors_that_eight_bit_weights_do_not_explain_are_refused() -> None:
    wide = OutputMetrics(8, 1.0, 0.28, 25.0, 20.0, 1.0, 0.999)
    for precision in ("static_wi8_ai16", "weight_only_wi8_afp32"):
        assert check(wide, budget_for(precision)), precision
    assert check(replace(wide, max_rel=0.35), budget_for("dynamic_wi8_afp32"))
