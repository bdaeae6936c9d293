"""How the benchmark of selection judges what it measured."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import selection
from benchmarks.selection import Against, Load, Row


def _load(chosen: str, took: float, **by_hand: float) -> Load:
    return Load(
        chosen=chosen,
        seconds=1.0,
        ms={"": took, **by_hand},
        against={name: Against(took / ms, 0.004) for name, ms in by_hand.items()},
        turns=50,
    )


def _row(*loads: Load) -> Row:
    return Row("net", 2, ["why"], list(loads), {})


def test_the_engine_that_is_best_by_hand_costs_nothing() -> None:
    row = _row(*[_load("tvm", 0.05, tvm=0.05, litert=0.06)] * 3)
    assert row.regret == (0.0, 0.0)
    assert row.chosen == "tvm"
    assert row.ms == {"tvm": 0.05, "litert": 0.06}
    assert selection._judged([row]) == 0


def test_a_slower_engine_is_told_with_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    row = _row(*[_load("tvm", 0.057, tvm=0.057, litert=0.039)] * 3)
    assert row.regret[0] == pytest.approx(0.4615, abs=1e-3)
    assert row.regret[1] == pytest.approx(0.004)
    assert selection._judged([row]) == 1
    assert "BROKEN net with 2 threads: regret 46.2%" in capsys.readouterr().out


def test_an_engine_by_hand_is_what_most_of_its_instances_are() -> None:
    """A user who picks LiteRT gets one of its instances; here two of three are slow."""
    slow = _load("tvm", 0.057, tvm=0.057, litert=0.063)
    lucky = _load("tvm", 0.057, tvm=0.057, litert=0.039)
    assert _row(slow, lucky, slow).regret == (0.0, 0.0)
    assert _row(lucky, slow, lucky).regret[0] == pytest.approx(0.4615, abs=1e-3)


def test_another_instance_of_the_chosen_engine_is_luck_not_regret() -> None:
    row = _row(*[_load("litert", 0.06, tvm=0.065, litert=0.04)] * 3)
    assert row.regret == (0.0, 0.0)
    assert row.luck == pytest.approx(0.5)


def test_a_slow_session_of_the_best_engine_is_regret_against_the_second() -> None:
    """It was chosen for what its session is not."""
    row = _row(*[_load("litert", 0.06, tvm=0.05, litert=0.04)] * 3)
    assert row.regret[0] == pytest.approx(0.2)


def test_loads_that_differ_are_judged_each_by_its_own() -> None:
    one = _load("tvm", 0.057, tvm=0.057, litert=0.062)
    other = _load("litert", 0.04, tvm=0.057, litert=0.04)
    row = _row(one, other, other)
    assert row.regret == (0.0, 0.0)
    assert row.chosen == "litert"
    assert "(tvm)" in selection._line(row)


def test_less_than_three_percent_or_than_can_be_told_is_no_fault() -> None:
    def net(ratio: float, noise: float) -> Row:
        load = _load("tvm", 0.05, tvm=0.05, litert=0.05)
        load.against["litert"] = Against(ratio, noise)
        return _row(load, load, load)

    steady = [net(1.0, 0.0)] * 3
    assert selection._judged([net(1.029, 0.0), *steady]) == 0
    assert selection._judged([net(1.10, 0.08), *steady]) == 0
    assert selection._judged([net(1.04, 0.005), *steady]) == 1
    # Many small ones are a fault together.
    assert selection._judged([net(1.05, 0.08)] * 3) == 1


def test_an_engine_that_failed_later_is_judged_by_what_there_is() -> None:
    whole = _load("tvm", 0.05, tvm=0.05, litert=0.06)
    assert _row(whole, _load("tvm", 0.05, tvm=0.05), whole).regret == (0.0, 0.0)


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    row = _row(_load("tvm", 0.057, tvm=0.057, litert=0.039))
    assert Row.read(json.loads(json.dumps(asdict(row)))) == row


def test_turns_are_paired() -> None:
    """A load that hits both sides of a pair is no difference."""
    base = [1.0, 2.0, 1.5, 3.0, 1.0]
    made = selection._against([t * 1.1 for t in base], base)
    assert made.ratio == pytest.approx(1.1)
    assert made.noise == pytest.approx(0.0)


def test_a_machine_that_changes_is_no_fault_of_the_choice() -> None:
    """Which engine is the best by hand is asked before a load and after it."""
    near = {"": [0.04], "tvm": [0.057, 0.058], "litert": [0.039, 0.04]}
    far = {"tvm": [0.057, 0.058], "litert": [0.062, 0.063]}
    assert selection._has_changed(far, near)
    assert selection._has_changed(near, far)
    assert not selection._has_changed(near, near)
    # What was chosen plays no part, and neither do differences that nobody minds.
    assert not selection._has_changed(far, {**far, "": [0.01]})
    assert not selection._has_changed(far, {"tvm": [0.0575], "litert": [0.0565]})
    assert not selection._has_changed({**far, "openvino": [0.01]}, far)
