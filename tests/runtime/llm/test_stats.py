"""What an engine tells of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.machine.energy import Energy
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions
from tests.machine.test_energy import zone
from tests.runtime.llm.toy import EOS, VOCABULARY, Clock, ToyExecutor, generate, request, toy_engine


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
    engine = Engine(
        lambda: executor, VOCABULARY, (EOS,), options=options, clock=clock, energy=energy
    )
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
