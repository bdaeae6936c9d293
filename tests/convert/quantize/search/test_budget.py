"""The choice among what holds a budget."""

from dataclasses import replace

import pytest

from edgeinfer.convert.quantize.search.budget import Fitted, best
from edgeinfer.convert.quantize.search.layers import Layer, Point, SearchOutcome
from edgeinfer.convert.quantize.search.timing_source import TimingSource
from edgeinfer.convert.quantize.search.trial import Samples

PLAIN = Point(("a",), 0.001, 0.0, 1.0, 1.0, 1000)
ALONE = replace(PLAIN, kept=(), recipe="weight_only_wi8_afp32")


@pytest.mark.parametrize(
    ("other", "wins"),
    [
        # Smaller and as fast; smaller and slower; faster; faster but beyond the budget.
        (replace(PLAIN, form="wi8", size_bytes=600, latency_ms=1.04), True),
        (replace(PLAIN, form="wi8", size_bytes=600, latency_ms=1.5), False),
        (replace(PLAIN, form="ai16", size_bytes=1200, latency_ms=0.8), True),
        (replace(PLAIN, form="ai16", latency_ms=0.8, drop=0.02), False),
        # Weights alone: as fast and smaller, or not by much; slower and smaller; faster and no
        # larger; faster and larger.
        (replace(ALONE, size_bytes=600, latency_ms=0.98), True),
        (replace(ALONE, size_bytes=950, latency_ms=0.98), False),
        (replace(ALONE, size_bytes=600, latency_ms=1.2), False),
        (replace(ALONE, size_bytes=1010, latency_ms=0.5), True),
        (replace(ALONE, size_bytes=1100, latency_ms=0.5), False),
    ],
)
def test_the_fastest_is_taken_and_of_equals_the_smallest(other: Point, wins: bool) -> None:
    assert best([PLAIN, other], 0.01, timed=True) == (other if wins else PLAIN)


def test_without_times_the_smallest_is_taken() -> None:
    slow = replace(PLAIN, form="wi8", size_bytes=600, latency_ms=9.0)
    assert best([PLAIN, slow], 0.01, timed=False) == slow


def test_what_does_not_hold_is_not_replaced() -> None:
    lost = replace(PLAIN, drop=0.5)
    assert best([lost, PLAIN], 0.01, timed=True) == lost


def test_slower_than_float_is_said_with_what_is_faster() -> None:
    chosen = replace(PLAIN, latency_ms=2.0, form="wi8")
    layers = (Layer("a", "Conv", 0.5), Layer("b", "Conv", 0.5))
    found = Fitted(
        SearchOutcome(chosen, (PLAIN, chosen), {"a": 0.25}, True),
        replace(PLAIN, kept=(), latency_ms=1.0, size_bytes=4000),
        *(layers, Samples(), "cpu (onnx)", 0.01),
    )
    assert found.advice.startswith("slower than float on this engine (2.000 ms against 1.000 ms")
    assert "--precision fp32 is faster" in found.lines[-1]
    assert found.lines[1] == (
        "cpu (onnx): Conv 'a' stays out of 8 bits (weights alone in 8 bits): "
        "the budget needs it (takes 25.00% off the error)"
    )
    assert found.to_json()["float"]["latency_ms"] == 1.0


def test_the_quality_is_told_with_its_name_and_the_float_models() -> None:
    chosen = replace(PLAIN, quality=0.9125, drop=0.0027, margin=0.001)
    before = replace(PLAIN, quality=0.915)
    outcome = SearchOutcome(chosen, (chosen,), {}, True)
    found = Fitted(outcome, before, (), Samples(), "t", 0.01, measured=80, measure="top1")
    line = "top1 0.9125 (float 0.915), drop 0.27% ± 0.10% of 1.00% allowed, on 80 samples"
    assert found.quality == found.to_json()["quality"] == line
    assert line in found.lines[0]


def away(why_not: str = "", integers: tuple[str, ...] = ("all",)) -> TimingSource:
    return TimingSource("e 1", "Zen 4 (x86_64, linux)", why_not, "aarch64, linux", integers)


def fitted(clock: TimingSource) -> Fitted:
    chosen = replace(PLAIN, latency_ms=2.0 if clock.counts else 0.0)
    before = replace(PLAIN, kept=(), latency_ms=1.0 if clock.counts else 0.0, size_bytes=4000)
    outcome = SearchOutcome(chosen, (chosen,), {}, True, timed=clock.counts)
    return Fitted(outcome, before, (), Samples(), "ios (mlprogram)", 0.01, clock)


def test_what_is_timed_on_another_machine_says_on_which() -> None:
    found = fitted(away())
    assert "2.000 ms (float 1.000 ms)" in found.lines[0]
    assert found.lines[1] == (
        "ios (mlprogram): times are of e 1 on Zen 4 (x86_64, linux): nothing was timed on the "
        "device (aarch64, linux)"
    )
    assert found.advice.startswith("slower than float on this engine here (Zen 4 (x86_64, linux))")
    assert found.to_json()["on_device"] is False
    assert found.to_json()["chosen"]["latency_ms"] == 2.0


def test_where_times_say_nothing_none_is_told() -> None:
    found = fitted(away("e evaluates", ("M4",)))
    assert " ms" not in found.lines[0]
    assert found.lines[1].startswith(
        "ios (mlprogram): time was not measured on the device: e evaluates. Of what holds the "
        "budget the smallest file is taken, and of sizes that are alike the one with the fewest "
    )
    assert found.lines[1].endswith("its profile says that integers are faster (M4)")
    assert found.advice == ""
    data = found.to_json()
    assert data["float"]["latency_ms"] is data["chosen"]["latency_ms"] is None
    assert (data["timed"], data["on_device"]) == (False, False)
    assert "no processor that multiplies integers faster" in away("e evaluates", ()).line


def test_what_is_too_loud_does_not_replace_the_choice() -> None:
    loud = replace(PLAIN, form="wi8", latency_ms=0.5, noise=0.1)
    assert best([PLAIN, loud], 0.01, timed=True, most_noise=0.02) == PLAIN
    assert best([PLAIN, loud], 0.01, timed=True) == loud
