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
from edgeinfer.backends.onnxruntime import OnnxRuntimeBackend
from edgeinfer.backends.onnxruntime_regions import FORMAT
from edgeinfer.backends.tvm_library import cpu_features
from edgeinfer.convert.lower.regions import race, target
from edgeinfer.convert.lower.regions.outcome import Order, Outcome, to_json
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
    folder: Path, monkeypatch: pytest.MonkeyPatch, after: float
) -> tuple[Outcome, dict[str, np.ndarray], Path]:
    """Race a chain whose figures are made up: 100 µs before, so many after."""
    plain, work = folder / "plain.onnx", folder / "work"
    work.mkdir()
    source = model(TEXT)
    ir.save(source, plain)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}

    def in_turns(calls: Sequence[Callable[[], object]]) -> list[race.Times]:
        for call in calls:
            call()
        return [race.Times([us] * 11, [us] * 11) for us in (1e-4, after)]

    monkeypatch.setattr(race, "in_turns", in_turns)
    outcome = race.Racer(Order(plain, work, MACHINE, (), feeds, 60.0), lambda _: None).run()
    return outcome, feeds, work


def test_a_part_that_pays_stays_and_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, feeds, work = _race(tmp_path, monkeypatch, 0.5e-4)
    assert [t.kept for t in outcome.trials] == [True]
    trial = outcome.trials[0]
    assert set(trial.nodes) == set("abcdey")
    assert (round(trial.before_us, 6), round(trial.after_us, 6), trial.rounds) == (100, 50, 11)
    assert outcome.final is not None
    assert outcome.final.gain == pytest.approx(2)
    backend = OnnxRuntimeBackend()
    plain = backend.load(Artifact("onnx", tmp_path / "plain.onnx", (), ()), LoadOptions(threads=1))
    made = backend.load(Artifact(FORMAT, work / "model.onnx", (), ()), LoadOptions(threads=1))
    np.testing.assert_allclose(made.run(feeds)["y"], plain.run(feeds)["y"], rtol=1e-6, atol=1e-6)
    told = json.loads(to_json(outcome))
    assert told["trials"][0]["kept"] is True
    assert sorted(told["trials"][0]["nodes"]) == sorted("abcdey")
    lines = target.lines(outcome)
    assert lines[0].startswith("Region0 is code in the place of a to y (6 operators)")
    assert "with all regions 50 µs, ONNX Runtime alone 100, " in lines[1]
    assert "2.00 times as fast, three rounds in four of 11 at least 2.00" in lines[1]


def test_a_part_that_does_not_pay_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _, _ = _race(tmp_path, monkeypatch, 0.98e-4)
    assert outcome.final is None
    assert [t.kept for t in outcome.trials] == [False]
    assert "is not 1.03 times as fast (1.02 times" in target._why_none(outcome)


def test_both_the_median_and_the_lower_quartile_count() -> None:
    def kept(wall: list[float], cpu: list[float]) -> bool:
        before = race.Times([1.0] * 8, [1.0] * 8)
        return race.judged("r", (), before, race.Times(wall, cpu)).kept

    faster, slower, same = [0.9] * 8, [1.1] * 8, [0.98] * 8
    # Twice as fast by the median, and slower in three rounds of eight.
    noisy = [0.5] * 5 + [1.1] * 3
    assert kept(faster, faster)
    assert not kept(same, same)
    assert not kept(noisy, noisy)
    # What disturbs the clock leaves the processor's time as it is.
    assert kept(noisy, faster)
    # Less work on one core is no gain where the engine uses several.
    assert not kept(slower, faster)


def test_the_least_of_several_turns_counts() -> None:
    calls = []
    first, second = race.in_turns([lambda: calls.append(0), lambda: calls.append(1)])
    assert len(first.wall) == len(second.cpu) == race.ROUNDS
    assert all(0 < t < 1e-3 for t in (*first.wall, *second.wall))
    # In turns, not one after the other.
    half = len(calls) // 2
    assert {0, 1} <= set(calls[:half])
    assert {0, 1} <= set(calls[half:])


def test_wrong_numbers_lose() -> None:
    right = {"y": np.array([1.0, 2.0, np.nan], np.float32)}
    assert race.difference(right, {"y": np.array([1.0, 2.0001, np.nan], np.float32)}) is None
    assert race.difference(right, {"y": np.array([1.0, 2.1, np.nan], np.float32)})
    assert race.difference(right, {"y": np.array([1.0, 2.0], np.float32)})


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
