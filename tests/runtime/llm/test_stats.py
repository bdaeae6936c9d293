"""What an engine tells of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.stats import Energy
from tests.runtime.llm.toy import EOS, PIECES, Clock, ToyExecutor, generate, request, toy_engine


def zone(root: Path, number: int, joules: float) -> Path:
    place = root / f"intel-rapl:{number}"
    place.mkdir(exist_ok=True)
    (place / "max_energy_range_uj").write_text("1000000000")
    (place / "energy_uj").write_text(str(int(joules * 1e6)))
    return place


def test_energy_is_that_of_the_time_at_work(tmp_path: Path) -> None:
    zone(tmp_path, 0, 100)
    zone(tmp_path, 1, 5)
    # A part of the first one, which counts already.
    (tmp_path / "intel-rapl:0:0").mkdir()
    energy = Energy(tmp_path)
    zone(tmp_path, 0, 400)
    energy.begin(10.0)
    zone(tmp_path, 0, 403)
    energy.end(10.5, idle=False)
    assert energy.joules == 0
    energy.begin(10.5)
    zone(tmp_path, 1, 7)
    energy.end(11.1, idle=False)
    assert energy.joules == pytest.approx(5)
    zone(tmp_path, 0, 404)
    energy.end(11.2, idle=True)
    assert energy.joules == pytest.approx(6)
    zone(tmp_path, 0, 900)
    energy.begin(50.0)
    # The counter turns over at 1,000 J.
    zone(tmp_path, 0, 2)
    energy.end(50.1, idle=True)
    assert energy.joules == pytest.approx(6 + 102)


def test_energy_is_unknown_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    assert Energy(tmp_path).joules is None
    place = zone(tmp_path, 0, 1)
    energy = Energy(tmp_path)
    assert energy.joules == 0
    energy.begin(0.0)
    (place / "energy_uj").unlink()
    energy.end(2.0, idle=False)
    assert energy.joules is None
    assert Energy(tmp_path).joules is None


def test_joules_for_each_token(tmp_path: Path) -> None:
    zone(tmp_path, 0, 0)
    executor = ToyExecutor()
    step = executor.step
    spent = iter(range(1, 100))

    def stepping(batch: object) -> object:
        zone(tmp_path, 0, 2.0 * next(spent))
        return step(batch)  # type: ignore[arg-type]

    executor.step = stepping  # type: ignore[method-assign,assignment]
    options = EngineOptions(lookup=False, calibrate=False)
    clock, energy = Clock(), Energy(tmp_path)
    engine = Engine(lambda: executor, PIECES, (EOS,), options=options, clock=clock, energy=energy)
    generate(engine, request("a", [1], max_tokens=10, ignore_eos=True))
    stats = engine.stats()
    assert stats.joules == pytest.approx(20)
    assert stats.joules_per_token == pytest.approx(2)


def test_counts_and_times() -> None:
    engine, executor = toy_engine()
    generate(
        engine,
        request("a", range(20), max_tokens=10, ignore_eos=True),
        request("b", range(20), max_tokens=5, ignore_eos=True, n=2),
    )
    stats = engine.stats()
    assert (stats.requests, stats.finished) == (2, {"length": 3})
    assert stats.generated_tokens == 20
    assert stats.prompt_tokens == 40
    assert stats.cached_tokens == 16
    assert stats.computed_tokens == 24
    assert stats.steps == executor.steps
    assert stats.first_token_ms is not None
    assert stats.first_token_ms.count == 3
    assert stats.inter_token_ms is not None
    assert stats.inter_token_ms.count == 17
    assert stats.step_ms is not None
    # The clock of the test ticks once in a step.
    assert stats.step_ms.mean == pytest.approx(1)
    assert stats.tokens_per_second == pytest.approx(20 / (stats.busy_s + stats.engine_s))
    assert stats.pages_used == stats.running == stats.waiting == 0
    assert stats.pages_kept > 0
