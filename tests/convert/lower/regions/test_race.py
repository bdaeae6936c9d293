"""What is kept, by what was measured."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.backends.onnxruntime.regions import FORMAT
from edgeinfer.backends.tvm.library import cpu_features
from edgeinfer.convert.lower.regions import measure, race, target
from edgeinfer.convert.lower.regions.outcome import Figures, RegionOutcome, RegionRequest, to_json
from edgeinfer.convert.lower.tvm.machines import machine
from tests.convert.lower.regions.made import MACHINE, model

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not set(machine(MACHINE).features) <= cpu_features(),
    reason="no code is made for this machine",
)

TEXT = """(float[1,64] x) => (float[1,64] y)
<float[1,64] a, float[1,64] b, float[1,64] c, float[1,64] d, float[1,64] e>
{ a = Exp(x)  b = Sqrt(a)  c = Cos(b)  d = Tanh(c)  e = Abs(d)  y = Neg(e) }"""


def _race(
    folder: Path, monkeypatch: pytest.MonkeyPatch, after: float, text: str = TEXT
) -> tuple[RegionOutcome, dict[str, np.ndarray], Path]:
    """Race a chain whose figures are made up: 100 µs before, so many after."""
    plain, work = folder / "plain.onnx", folder / "work"
    work.mkdir()
    ir.save(model(text), plain)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, 64)).astype(np.float32)}
    if text == TWO:
        feeds["w"] = rng.standard_normal((64, 9)).astype(np.float32)

    def in_turns(calls: Sequence[Callable[[], object]]) -> list[measure.Times]:
        for call in calls:
            call()
        return [measure.Times([us] * 11, [us] * 11) for us in (1e-4, after)]

    monkeypatch.setattr(measure, "in_turns", in_turns)
    outcome = race.Racer(RegionRequest(plain, work, MACHINE, (), feeds, 60.0), lambda _: None).run()
    return outcome, feeds, work


def test_a_part_that_pays_stays_and_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, feeds, work = _race(tmp_path, monkeypatch, 0.5e-4)
    assert [t.kept for t in outcome.trials] == [True]
    trial, final = outcome.trials[0], outcome.final
    assert set(trial.nodes) == set("abcdey")
    assert final is not None
    assert (final.before, final.after) == pytest.approx((100, 50))
    assert (final.gain, final.sure, final.rounds) == (2, 2, 11)
    backend = OnnxRuntimeBackend()
    plain = backend.load(Artifact("onnx", tmp_path / "plain.onnx", (), ()), LoadOptions(threads=1))
    made = backend.load(Artifact(FORMAT, work / "model.onnx", (), ()), LoadOptions(threads=1))
    np.testing.assert_allclose(made.run(feeds)["y"], plain.run(feeds)["y"], rtol=1e-6, atol=1e-6)
    told = json.loads(to_json(outcome))
    assert told["trials"][0]["kept"] is True
    assert sorted(told["trials"][0]["nodes"]) == sorted("abcdey")
    lines = target.lines(outcome)
    assert lines[0].startswith("Region0 is code in the place of a to y (6 operators): the part alo")
    assert "ONNX Runtime alone: 2.00 times as fast, 50 µs for 100; three rounds in four" in lines[1]


def test_a_part_that_does_not_pay_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _, _ = _race(tmp_path, monkeypatch, 0.98e-4)
    assert outcome.final is None
    assert [t.kept for t in outcome.trials] == [False]
    assert "does not pay: alone 1.02 times as fast" in target._why_none(outcome)


def test_what_wins_alone_has_to_pay_in_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([_figures(2.0), _figures(1.01)])
    monkeypatch.setattr(measure, "compare", lambda *_: next(figures))
    outcome, _, _ = _race(tmp_path, monkeypatch, 1e-4)
    assert outcome.kept == []
    assert target._why_none(outcome).startswith(
        "the whole model is not 1.03 times as fast with regions: 1.01 times"
    )


TWO = """(float[1,64] x, float[64,N] w) => (float[1,64] y, float[1,64] z)
<float[1,64] a, float[1,64] b, float[1,64] c, float[1,64] d, float[1,N] m, float[1,64] s>
{ a = Exp(x)  b = Sqrt(a)  m = MatMul(b, w)  s = ReduceSum<keepdims=1>(m)  c = Add(s, x)
  d = Cos(c)  y = Tanh(d)  z = Abs(b) }"""


def test_where_all_together_do_not_pay_each_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two parts win alone; together they lose, one of them wins, then the last race.
    figures = iter([_figures(g) for g in (2.0, 3.0, 0.9, 0.8, 1.5, 1.4)])
    monkeypatch.setattr(measure, "compare", lambda *_: next(figures))
    outcome, _, work = _race(tmp_path, monkeypatch, 1e-4, TWO)
    assert [t.kept for t in outcome.trials] in ([True, False], [False, True])
    assert outcome.final is not None
    assert outcome.final.gain == 1.4
    (kept,) = outcome.kept
    assert kept.whole is not None
    assert kept.whole.gain == 1.5
    graph = ir.load(work / "model.onnx").graph
    assert [n.op_type for n in graph if n.op_type.startswith("Region")] == [kept.name]
    assert "does not pay: the whole model 0.80 times as fast" in target.lines(outcome)[2]


APART = """(float[1,64] x) => (float[1,64] y, float[1,64] z) <float[1,64] a, float[1,64] b>
{ a = Exp(x)  y = Sqrt(a)  b = Cos(x)  z = Tanh(b) }"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        # Both alone, both together, all as one against that, all as one against the plain graph.
        ([2.0, 2.0, 1.5, 1.2, 1.8], ["RegionWhole"]),
        ([2.0, 2.0, 1.5, 1.01], ["Region0", "Region1"]),
        ([2.0, 2.0, 1.5, 1.2, 1.0], ["Region0", "Region1"]),
    ],
)
def test_all_as_one_region_is_tried_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: list[float], kept: list[str]
) -> None:
    figures = iter([_figures(g) for g in gains])
    monkeypatch.setattr(measure, "compare", lambda *_: next(figures))
    outcome, feeds, work = _race(tmp_path, monkeypatch, 1e-4, APART)
    assert [t.name for t in outcome.kept] == kept
    assert next(figures, None) is None
    assert outcome.final is not None
    assert outcome.final.gain == (1.8 if kept == ["RegionWhole"] else 1.5)
    assert sorted(n.op_type for n in ir.load(work / "model.onnx").graph) == kept
    made = OnnxRuntimeBackend().load(
        Artifact(FORMAT, work / "model.onnx", (), ()), LoadOptions(threads=1)
    )
    found = made.run(feeds)
    np.testing.assert_allclose(found["y"], np.sqrt(np.exp(feeds["x"])), rtol=1e-5)
    np.testing.assert_allclose(found["z"], np.tanh(np.cos(feeds["x"])), rtol=1e-5)
    assert any("as one region is faster" in line for line in target.lines(outcome)) == (
        kept == ["RegionWhole"]
    )


def _figures(gain: float) -> Figures:
    return Figures(100.0, 100 / gain, 100.0, 100 / gain, gain, gain, gain, 0.01, 21)


def test_both_the_median_and_the_lower_quartile_count() -> None:
    def pays(wall: list[float], cpu: list[float]) -> bool:
        before = measure.Times([1.0] * 8, [1.0] * 8)
        return measure.figures(before, measure.Times(wall, cpu)).pays

    faster, slower, same = [0.9] * 8, [1.1] * 8, [0.98] * 8
    # Twice as fast by the median, and slower in three rounds of eight.
    noisy = [0.5] * 5 + [1.1] * 3
    assert pays(faster, faster)
    assert not pays(same, same)
    assert not pays(noisy, noisy)
    # What disturbs the clock leaves the processor's time as it is.
    assert pays(noisy, faster)
    # Less work on one core is no gain where the engine uses several.
    assert not pays(slower, faster)


def test_the_least_of_several_turns_counts() -> None:
    calls: list[int] = []
    first, second = measure.in_turns([lambda: calls.append(0), lambda: calls.append(1)])
    assert len(first.wall) == len(second.cpu) == measure.ROUNDS
    assert all(0 < t < 1e-3 for t in (*first.wall, *second.wall))
    # In turns, not one after the other.
    half = len(calls) // 2
    assert {0, 1} <= set(calls[:half])
    assert {0, 1} <= set(calls[half:])


def test_wrong_numbers_lose() -> None:
    right = {"y": np.array([1.0, 2.0, np.nan], np.float32)}
    assert measure.difference(right, {"y": np.array([1.0, 2.0001, np.nan], np.float32)}) is None
    assert measure.difference(right, {"y": np.array([1.0, 2.1, np.nan], np.float32)})
    assert measure.difference(right, {"y": np.array([1.0, 2.0], np.float32)})


def test_time_of_a_fused_step_is_its_own_operators() -> None:
    source = model(
        """(float[1,2,4] x, float[2,2,3] w) => (float[1,2,2] y) <float[1,2,2] a>
        { a = Conv(x, w)  y = Relu(a) }"""
    )
    makers = {n.name or "": n for n in source.graph}
    makers |= {v.name or "": n for n in source.graph for v in n.outputs}
    # The engine names what it fuses by the last value.
    assert race.origin("y", "Conv", makers) is source.graph.node(0)
    assert race.origin("y", "Relu", makers) is source.graph.node(1)
    assert race.origin("a_nchwc", "Conv", makers) is source.graph.node(0)
    assert race.origin("nobody", "Conv", makers) is None
