import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgeinfer.bundle.cache import writable_folder
from edgeinfer.convert.quantize.search import measurements
from edgeinfer.convert.quantize.search.layers import (
    QUIET,
    Layer,
    MeasurementStore,
    Measures,
    Point,
    Search,
)
from edgeinfer.convert.quantize.search.quality import Loss


@dataclass
class Net:
    """Layers whose errors add up; a layer in float gives none and takes ten times as long."""

    errors: dict[str, float]
    costs: dict[str, float]
    runs: list[frozenset[str]] = field(default_factory=list)

    def measure(self, kept: frozenset[str]) -> Point:
        self.runs.append(kept)
        drop = sum(e for n, e in self.errors.items() if n not in kept)
        time = sum(c * (10 if n in kept else 1) for n, c in self.costs.items())
        return Point.of(kept, Loss(drop, drop, 1 - drop, "made up"), time, 1000)

    def search(
        self, budget: float, rules: Iterable[str] = (), memory: MeasurementStore | None = None
    ) -> Search:
        total = sum(self.costs.values())
        layers = [
            Layer(n, "Conv", c / total, "known" if n in rules else "")
            for n, c in self.costs.items()
        ]
        return Search(layers, self.measure, self.measure, budget, memory or MeasurementStore())


def net() -> Net:
    errors = {f"l{i}": 0.0001 for i in range(20)} | {"bad": 0.05, "worse": 0.08, "dear": 0.05}
    costs = dict.fromkeys(errors, 1.0) | {"dear": 100.0}
    return Net(errors, costs)


def test_all_integers_where_they_hold() -> None:
    made = net()
    outcome = made.search(0.5).run()
    assert (outcome.chosen.kept, outcome.holds) == ((), True)
    assert made.runs == [frozenset()]


def test_the_cheapest_layers_that_are_needed_stay_float() -> None:
    outcome = net().search(0.06).run()
    assert outcome.holds
    # Either 0.05 alone is not enough next to 0.08; the dear one goes back to integers.
    assert set(outcome.chosen.kept) == {"bad", "worse"}


def test_rules_are_tried_first_and_given_back_where_not_needed() -> None:
    made = net()
    outcome = made.search(0.06, rules=("bad", "worse", "l3")).run()
    assert set(outcome.chosen.kept) == {"bad", "worse"}
    assert len(made.runs) <= 6


class Heard(Net):
    """The worst channel is every layer's, the quality one's, of which the noise alone tells."""

    def measure(self, kept: frozenset[str]) -> Point:
        point = super().measure(kept)
        lost = 0.0 if "heard" in kept else 0.2
        return replace(point, drop=lost, noise=lost)


@pytest.mark.parametrize("count", [20, 200])
def test_a_layer_that_the_worst_channel_does_not_tell_is_found_by_the_noise(count: int) -> None:
    errors = {f"l{i}": 0.001 for i in range(count)} | {"heard": 0.0}
    outcome = Heard(errors, dict.fromkeys(errors, 1.0)).search(0.05, rules=("l1", "l2")).run()
    assert outcome.holds
    assert outcome.chosen.kept == ("heard",)


def test_a_large_net_is_searched_by_runs_of_neighbours_first() -> None:
    errors = {f"l{i}": 1e-6 for i in range(200)} | {"l77": 0.05, "l130": 0.08}
    made = Net(errors, dict.fromkeys(errors, 1.0))
    outcome = made.search(0.01).run()
    assert set(outcome.chosen.kept) == {"l77", "l130"}
    # 29 runs of 7, the layers of 6 of them, and a few whole candidates.
    assert len(made.runs) < 85


def with_ranges(made: Net, noises: dict[str, float], drops: dict[str, float]) -> Search:
    """Let each calibrator have its own noise, and what integers everywhere lose with it."""
    search = made.search(0.06)

    def measures(name: str) -> Measures:
        def measure(kept: frozenset[str]) -> Point:
            point = made.measure(kept)
            drop = point.drop * drops.get(name, 1.0)
            loss = Loss(drop, drop, 1 - drop, "made up", noise=noises[name])
            return replace(Point.of(kept, loss, 1.0, 1000), calibrator=name)

        return Measures(measure, measure, measure)

    search.calibrators = {n: measures(n) for n in noises}
    return search


def test_ranges_with_the_least_noise_are_tried_before_layers_stay_float() -> None:
    noises = {"": 0.02, "entropy": 0.005, "mse*0.5": 0.001, "minmax": 0.03}
    # With minmax the drop is the smallest, by chance: that is not what decides.
    outcome = with_ranges(net(), noises, {"mse*0.5": 0.2, "minmax": 0.1}).run()
    assert (outcome.chosen.kept, outcome.chosen.calibrator) == ((), "mse*0.5")
    assert outcome.holds


def test_layers_stay_float_with_the_ranges_that_were_found() -> None:
    noises = {"": 0.02, "entropy": 0.005}
    outcome = with_ranges(net(), noises, {"entropy": 0.9}).run()
    assert outcome.chosen.calibrator == "entropy"
    assert set(outcome.chosen.kept) == {"bad", "worse"}
    again = with_ranges(net(), {"": 0.001, "entropy": 0.005}, {}).run()
    assert again.chosen.calibrator == ""


def test_other_ranges_are_not_tried_where_the_budget_holds() -> None:
    made = net()
    search = with_ranges(made, {"": 0.02, "entropy": 0.005}, {})
    search.max_drop = 0.5
    assert search.run().chosen.calibrator == ""
    assert made.runs == [frozenset()]


def test_a_channel_that_is_lost_does_not_hide_what_layers_give() -> None:
    made = net()
    search = made.search(0.06)

    def lost(kept: frozenset[str]) -> Point:
        point = made.measure(kept)
        return replace(point, error=1.0, noise=point.drop)

    search.quick = lost
    outcome = search.run()
    assert max(outcome.gains, key=lambda n: outcome.gains[n]) == "worse"
    assert set(outcome.chosen.kept) == {"bad", "worse"}


def test_a_budget_of_nothing_keeps_every_layer_that_errs() -> None:
    outcome = net().search(0.0).run()
    assert outcome.holds
    assert len(outcome.chosen.kept) == 23


def test_a_budget_that_cannot_hold_is_told() -> None:
    made = net()

    def broken(kept: frozenset[str]) -> Point:
        return Point.of(kept, Loss(0.9, 0.9, 0.1, "made up"), 1.0, 1)

    search = made.search(0.01)
    search.full = broken
    assert not search.run().holds


KEY = "0" * 32


def test_a_search_that_was_stopped_goes_on() -> None:
    first = net()
    limit = 7
    original = first.measure

    def stops(kept: frozenset[str]) -> Point:
        if len(first.runs) == limit:
            raise KeyboardInterrupt
        return original(kept)

    search = first.search(0.06, memory=MeasurementStore(KEY))
    search.full = search.quick = stops
    with pytest.raises(KeyboardInterrupt):
        search.run()
    second = net()
    outcome = second.search(0.06, memory=MeasurementStore(KEY)).run()
    assert set(outcome.chosen.kept) == {"bad", "worse"}
    assert not set(first.runs[:limit]) & set(second.runs[:3])
    whole = net()
    whole.search(0.06).run()
    assert len(second.runs) == len(whole.runs) - limit
    third = net()
    third.search(0.06, memory=MeasurementStore(KEY)).run()
    assert third.runs == []


def test_a_search_settles_on_what_it_has_when_its_time_is_over() -> None:
    made = net()
    search = made.search(0.06)
    search.seconds = 0.0
    outcome = search.run()
    assert outcome.stopped == "23 of 23 layers were not tried"
    assert outcome.holds
    # Nothing is known of any layer, so the cheapest ones go first and it takes most of them.
    assert len(made.runs) < 20


KILLED = """
import os, signal, sys
from edgeinfer.convert.quantize.search.layers import MeasurementStore
from tests.convert.quantize.search.test_layers import net

made, runs = net(), []

def measure(kept):
    if len(runs) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    runs.append(kept)
    return Net.measure(made, kept)

from tests.convert.quantize.search.test_layers import Net
search = made.search(0.06, memory=MeasurementStore(sys.argv[1]))
search.full = search.quick = measure
search.run()
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_process_that_was_killed_left_its_measurements() -> None:
    place = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, KEY],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert len(measurements.read(KEY)) == 7
    whole, second = net(), net()
    whole.search(0.06).run()
    outcome = second.search(0.06, memory=MeasurementStore(KEY)).run()
    assert set(outcome.chosen.kept) == {"bad", "worse"}
    assert len(second.runs) == len(whole.runs) - 7


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": {"kept": 3}}'])
def test_a_damaged_memory_is_as_none(text: str) -> None:
    file = writable_folder("search") / f"{KEY}.json"
    file.write_text(text)
    made = net()
    assert made.search(0.5, memory=MeasurementStore(KEY)).run().holds
    assert json.loads(file.read_text())


@pytest.mark.parametrize("key", ["../" + "0" * 29, "0" * 31, "0" * 33, "A" * 32])
def test_another_process_names_no_other_file(key: str) -> None:
    folder = writable_folder("search")
    measurements.keep(key, "{}")
    assert not [*folder.iterdir()]
    assert not [*folder.parent.glob("*.json")]


def test_a_cache_that_cannot_be_written_costs_measurements_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file"))
    made = net()
    assert made.search(0.5, memory=MeasurementStore(KEY)).run().holds


def test_pareto_has_no_candidate_that_another_beats() -> None:
    outcome = net().search(0.06).run()
    front = outcome.pareto()
    times, drops = [p.latency_ms for p in front], [p.drop for p in front]
    assert times == sorted(times)
    assert drops == sorted(drops, reverse=True)
    assert any(p.kept == () for p in front)


def noisy(kept: frozenset[str]) -> Point:
    """Loses nothing on these samples, whatever is kept; each layer in integers adds its noise."""
    noise = sum({"loud": 0.06, "louder": 0.09, "quiet": 0.001}.get(n, 0) for n in LOUD - kept)
    loss = Loss(0.0, noise, 1.0, "made up", noise=noise)
    return Point.of(kept, loss, 1.0 + len(kept), 1000)


LOUD = frozenset({"loud", "louder", "quiet", "ruled"})


@pytest.mark.parametrize("rules", [(), ("loud", "louder", "ruled")])
@pytest.mark.parametrize("told", [False, True])
def test_a_drop_is_not_believed_where_the_outputs_are_noise(
    rules: tuple[str, ...], told: bool
) -> None:
    layers = [
        Layer(n, "Conv", 0.25, "known" if n in rules else "", told and n in {"loud", "louder"})
        for n in sorted(LOUD)
    ]
    outcome = Search(layers, noisy, noisy, 0.01).run()
    assert outcome.holds
    assert outcome.most_noise == QUIET
    assert set(outcome.chosen.kept) == {"loud", "louder"}
    # What a few runs tell to be too loud is not measured on all: layers given back one by one.
    assert not any(len(p.kept) == 2 and p.noise > QUIET for p in outcome.points if rules)
    if told:
        assert [p.kept for p in outcome.points] == [(), ("loud", "louder")]


def test_noise_below_that_is_as_good_as_none() -> None:
    def measure(kept: frozenset[str]) -> Point:
        return Point.of(kept, Loss(0.0, 0.04, 1.0, "made up", noise=0.04), 1.0, 1000)

    outcome = Search([Layer("a", "Conv", 1.0)], measure, measure, 0.01).run()
    assert (outcome.chosen.kept, outcome.most_noise) == ((), math.inf)


@pytest.mark.parametrize(
    ("timed", "pay", "sizes", "taken"),
    [
        # The one that the worst channel tells is fast and large, the other slow and small.
        (True, False, (2000, 1000), "w"),
        (False, False, (2000, 1000), "n"),
        (False, True, (2000, 1000), "n"),
        # Alike in size: where integers are faster, fewer multiplications stay float.
        (False, False, (1010, 1000), "n"),
        (False, True, (1010, 1000), "w"),
    ],
)
def test_where_nothing_is_timed_the_size_decides(
    timed: bool, pay: bool, sizes: tuple[int, int], taken: str
) -> None:
    layers = [Layer("w", "Conv", 0.2), Layer("n", "Conv", 0.8)]
    of = dict(zip("wn", sizes, strict=True))

    def measure(kept: frozenset[str]) -> Point:
        # Either layer alone is enough; which one is asked first depends on what is looked at.
        loss = Loss(0.0 if kept else 0.1, 0.0 if "w" in kept else 0.1, 1.0, "made up")
        time = 1.0 + 9.0 * ("n" in kept)
        point = Point.of(kept, loss, time, sum(of[n] for n in kept))
        return replace(point, noise=0.0 if "n" in kept else 0.04)

    found = Search(layers, measure, measure, 0.01, timed=timed, integers_pay=pay).run()
    assert found.chosen.kept == (taken,)
    assert found.timed is timed
    by_size = [p.size_bytes for p in found.pareto()]
    assert timed or by_size == sorted(by_size)
