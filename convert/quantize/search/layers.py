"""The cheapest set of layers to keep in float so that an accuracy budget holds."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from edgeinfer.convert.quantize.search import measurements
from edgeinfer.convert.quantize.search.quality import Loss
from edgeinfer.convert.quantize.search.timing_source import LIKE_SIZE
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

Measure = Callable[[frozenset[str]], "Point"]

MOST_LAYERS = 48
"""Layers up to which each one is tried by itself."""

RUNS = 32
"""Into so many runs of neighbours the layers of larger nets are parted."""

BEST_RUNS = 6
"""Of these the layers are tried one by one."""

NOISY, QUIET = 0.05, 0.02
"""Share of the outputs' energy that is wrong from which on a drop is not believed, and what it is
brought down to then. MiniLM with integers behind every product is 9 % noise on LiteRT: pieces of
mails lost 0.3 % of the right answers, sentences of one meaning 3 to 5 %. With 1.2 % both lost less
than the budget."""

_CLEARLY = 1.25
"""How many times too much noise a few runs must show, so that all are not needed."""

_WORSE = 2
"""Steps in a row by which ranges were narrowed to no good."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A unit that may stay float.

    Attributes:
        name: Name of the unit.
        op: its operator.
        cost: share of the multiplications; what is lost by keeping it float.
        rule: why it is known to be fragile; empty if it is not.
        loud: a few of its results take the steps of all others.
    """

    name: str
    op: str
    cost: float
    rule: str = ""
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate, measured.

    Attributes:
        kept: names of the layers in float.
        drop: share of the quality lost.
        error: see ``Loss.error``.
        quality: in the metric's unit.
        latency_ms: Latency in milliseconds of one run; 0 where times say nothing and none was
            taken.
        size_bytes: Size in bytes of the artifact.
        form: what the layers that stay float are instead, see ``fallback.FORMS``.
        recipe: by which the others were written; empty for the one that was requested.
        margin: standard error of the drop: what so few samples leave open.
        calibrator: by which ranges were chosen; empty for the one that was requested.
        noise: see ``Loss.noise``.
    """

    kept: tuple[str, ...]
    drop: float
    error: float
    quality: float
    latency_ms: float
    size_bytes: int
    form: str = "fp32"
    recipe: str = ""
    margin: float = 0.0
    calibrator: str = ""
    noise: float = 0.0

    @property
    def bound(self) -> float:
        """What may well be lost on other samples: a budget is held against that."""
        return self.drop + self.margin

    def holds(self, max_drop: float, most_noise: float = math.inf) -> bool:
        """Whether a budget holds, and the outputs are quiet enough for that to be believed."""
        return self.bound <= max_drop and self.noise <= most_noise

    @classmethod
    def of(cls, kept: Iterable[str], loss: Loss, latency_ms: float, size_bytes: int) -> Point:
        """Make one from what was measured."""
        names = tuple(sorted(kept))
        return cls(
            *(names, loss.drop, loss.error, loss.quality, latency_ms, size_bytes),
            margin=loss.margin,
            noise=loss.noise,
        )


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What the search settled on.

    Attributes:
        chosen: the candidate.
        points: every candidate measured on the full data, in order.
        gains: error that keeping one layer in float takes away, by its name.
        holds: whether the budget holds.
        stopped: what was left undone for want of time.
        refused: what the gate had against earlier choices.
        most_noise: that a candidate may leave in the outputs.
        timed: whether times tell candidates apart; else their sizes do.
    """

    chosen: Point
    points: tuple[Point, ...]
    gains: dict[str, float]
    holds: bool
    stopped: str = ""
    refused: tuple[str, ...] = ()
    most_noise: float = math.inf
    timed: bool = True

    def pareto(self) -> list[Point]:
        """Return the candidates that no other one beats in both drop and time, or size."""
        best: list[Point] = []
        key = _by_time if self.timed else _by_size
        for point in sorted(self.points, key=lambda p: (key(p), p.drop)):
            if not best or point.drop < best[-1].drop:
                best.append(point)
        return best

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "holds": self.holds,
            "stopped": self.stopped,
            "refused": list(self.refused),
            "most_noise": self.most_noise if math.isfinite(self.most_noise) else None,
            "chosen": self._data(self.chosen),
            "points": [self._data(p) for p in self.points],
            "pareto": [self._data(p) for p in self.pareto()],
            "gains": dict(sorted(self.gains.items(), key=lambda item: -item[1])),
        }

    def _data(self, point: Point) -> dict[str, Any]:
        return asdict(point) | ({} if self.timed else {"latency_ms": None})


def _by_time(point: Point) -> float:
    return point.latency_ms


def _by_size(point: Point) -> float:
    return point.size_bytes


def smallest(points: Sequence[Point], costs: Mapping[str, float] | None = None) -> Point:
    """Return the smallest candidate, where nothing is known of their times.

    Args:
        points: at least one.
        costs: Costs of the layers, where the device multiplies integers faster: of sizes that are
            alike, the one with the fewest multiplications in float is taken.
    """
    least = min(p.size_bytes for p in points)
    alike = [p for p in points if p.size_bytes <= LIKE_SIZE * least]
    known = costs or {}
    return min(alike, key=lambda p: (sum(known.get(n, 0.0) for n in p.kept), p.size_bytes))


@dataclass(frozen=True, slots=True)
class Measures:
    """How candidates are measured with the ranges of one calibrator.

    Attributes:
        full: on all samples.
        quick: on a few, to compare layers.
        some: on as many as tell one calibrator's noise from another's.
    """

    full: Measure
    quick: Measure
    some: Measure


@dataclass(slots=True)
class MeasurementStore:
    """Measurements on disk, so that a search that was stopped goes on where it was.

    Attributes:
        key: Key of the search; None remembers nothing.
    """

    key: str | None = None
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is there."""
        if self.key is not None:
            self._known = measurements.read(self.key)

    def get(self, kind: str, kept: frozenset[str]) -> Point | None:
        """Return a measurement that was made before."""
        found = self._known.get(_key(kind, kept))
        if found is None:
            return None
        try:
            return Point(**{**found, "kept": tuple(found["kept"])})
        except (TypeError, KeyError):
            return None

    def put(self, kind: str, kept: frozenset[str], point: Point) -> None:
        """Remember a measurement."""
        self._known[_key(kind, kept)] = asdict(point)
        if self.key is not None:
            measurements.write(self.key, self._known)


def _key(kind: str, kept: frozenset[str]) -> str:
    return hashlib.blake2b(json.dumps([kind, sorted(kept)]).encode(), digest_size=12).hexdigest()


@dataclass(slots=True)
class Search:
    """One search.

    Attributes:
        layers: that may stay float.
        full: measures a candidate on all samples.
        quick: measures it on a few, to compare layers.
        max_drop: the budget.
        memory: Memory of earlier measurements.
        notify: about what is being done.
        seconds: after which no further layer is tried by itself.
        calibrators: measures with other ranges, by the calibrators' names; the empty name has those
            that were requested.
        timed: whether times of the engine at hand say something of the device's.
        integers_pay: where they do not, whether the device multiplies integers faster.
    """

    layers: Sequence[Layer]
    full: Measure
    quick: Measure
    max_drop: float
    memory: MeasurementStore = field(default_factory=MeasurementStore)
    notify: Progress | None = None
    seconds: float = math.inf
    calibrators: Mapping[str, Measures] = field(default_factory=dict)
    timed: bool = True
    integers_pay: bool = False
    _calibrator: str = ""
    _most_noise: float = math.inf
    _stopped: str = ""
    _started: float = field(default_factory=time.monotonic)
    _points: list[Point] = field(default_factory=list)

    def run(self) -> SearchOutcome:
        """Search: all integers, then what rules say, then layer by layer what it takes."""
        plain = self._full(frozenset())
        ruled = frozenset(y.name for y in self.layers if y.rule)
        if plain.noise > NOISY:
            self._most_noise = QUIET
            # Ranges that are best while a few large results need them are not best without.
            loud = frozenset(y.name for y in self.layers if y.loud)
            for kept in filter(None, (loud, ruled)):
                if not self._is_loud(kept) and self._holds(found := self._full(kept)):
                    return self._outcome(self._returned(found, {}), {})
        if not self._holds(plain):
            plain = self._by_others(plain)
        if self._holds(plain):
            return self._outcome(plain, {})
        if ruled and self._holds(found := self._full(ruled)):
            return self._outcome(self._returned(found, {}), {})
        gains, quiet = self._gains()
        found = self._shortest(self._order(gains))
        ends = [self._returned(found, gains)]
        # Of thousands of classes the worst says little, the energy of all says more.
        calmer = [y for y in self.layers if quiet.get(y.name, 0.0) > 0]
        if calmer:
            calmer.sort(key=lambda y: -self._worth(y, quiet))
            other = self._shortest([y.name for y in calmer])
            ends.append(self._returned(other, quiet))
        ends = [p for p in ends if self._holds(p)] or ends
        return self._outcome(self._cheapest(ends), gains)

    def _cheapest(self, points: Sequence[Point]) -> Point:
        return min(points, key=_by_time) if self.timed else smallest(points, self.costs_of_float)

    @property
    def costs_of_float(self) -> dict[str, float]:
        """Multiplications of each layer, where the device does them faster with integers."""
        return {y.name: y.cost for y in self.layers} if self.integers_pay else {}

    def _by_others(self, plain: Point) -> Point:
        """Take the ranges with the least noise: they cost neither time nor size.

        Drops of calibrators differ by an answer or two, which is chance; noise does not.
        """
        if self._calibrator or not self.calibrators:
            return plain
        noise: dict[str, float] = {}
        last, worse = math.inf, 0
        for name, measures in self.calibrators.items():
            if self.notify is not None:
                self.notify("try other ranges", len(noise) / len(self.calibrators))
            point = self._measured(f"some {name}".rstrip(), frozenset(), measures.some)
            noise[name] = point.noise
            if not name or "*" in name:
                worse = worse + 1 if point.noise > last else 0
                last = point.noise
            if worse == _WORSE:
                # Ranges that are narrower still will not be better.
                break
        self._calibrator = min(noise, key=lambda n: noise[n])
        return self._full(frozenset())

    def _is_over(self) -> bool:
        return time.monotonic() - self._started > self.seconds

    def _holds(self, point: Point) -> bool:
        return point.holds(self.max_drop, self._most_noise)

    def _is_loud(self, kept: frozenset[str]) -> bool:
        """Whether a few runs tell already that a candidate leaves too much noise."""
        if self._most_noise == math.inf:
            return False
        return self._by_calibrator("quick", kept).noise > _CLEARLY * self._most_noise

    def _outcome(self, chosen: Point, gains: Mapping[str, float]) -> SearchOutcome:
        return SearchOutcome(
            *(chosen, tuple(self._points), dict(gains), self._holds(chosen), self._stopped),
            most_noise=self._most_noise,
            timed=self.timed,
        )

    def _full(self, kept: frozenset[str]) -> Point:
        point = self._by_calibrator("full", kept)
        if point not in self._points:
            self._points.append(point)
        return point

    def remembered(self, kind: str, kept: frozenset[str], measure: Measure) -> Point:
        """Measure a candidate of another kind, unless it was measured before."""
        return self._measured(kind, kept, measure)

    def _by_calibrator(self, kind: str, kept: frozenset[str]) -> Point:
        measures = self.calibrators.get(self._calibrator)
        full, quick = (measures.full, measures.quick) if measures else (self.full, self.quick)
        measure = full if kind == "full" else quick
        return self._measured(f"{kind} {self._calibrator}".rstrip(), kept, measure)

    def _measured(self, kind: str, kept: frozenset[str], measure: Measure) -> Point:
        point = self.memory.get(kind, kept)
        if point is None:
            point = measure(kept)
            self.memory.put(kind, kept, point)
        return point

    def _gains(self) -> tuple[dict[str, float], dict[str, float]]:
        """Measure what keeping each layer alone in float takes off the error, and off the noise.

        In large nets runs of neighbours come first, and then each layer of those that give most.
        """
        layers = list(self.layers)
        if len(layers) <= MOST_LAYERS:
            return self._tried([[y] for y in layers])
        size = -(-len(layers) // RUNS)
        runs = [layers[i : i + size] for i in range(0, len(layers), size)]
        gains, quiet = self._tried(runs)
        first = sorted(runs, key=lambda run: -gains.get(run[0].name, 0.0))[:BEST_RUNS]
        calm = sorted(runs, key=lambda run: -quiet.get(run[0].name, 0.0))[:BEST_RUNS]
        first += [r for r in calm if r not in first and quiet.get(r[0].name, 0.0) > 0]
        each = self._tried([[y] for run in first for y in run])
        return gains | each[0], quiet | each[1]

    def _tried(
        self, groups: Sequence[Sequence[Layer]]
    ) -> tuple[dict[str, float], dict[str, float]]:
        before = self._by_calibrator("quick", frozenset())
        gains: dict[str, float] = {}
        quiet: dict[str, float] = {}
        for index, group in enumerate(groups):
            if self._is_over():
                self._stopped = f"{len(groups) - index} of {len(groups)} layers were not tried"
                break
            if self.notify is not None:
                self.notify("try layer by layer", index / len(groups))
            point = self._by_calibrator("quick", frozenset(y.name for y in group))
            gains.update({y.name: (before.error - point.error) / len(group) for y in group})
            quiet.update({y.name: (before.noise - point.noise) / len(group) for y in group})
        # Where the worst channel is lost altogether, it may be that no layer alone brings it back.
        lost = before.error >= 1.0 and not any(g > 0 for g in gains.values())
        return quiet if lost else gains, quiet

    def _worth(self, layer: Layer, gains: Mapping[str, float]) -> float:
        """What a layer gives for what it costs; none costs nothing."""
        return gains.get(layer.name, 0.0) / (layer.cost + 0.25 / max(1, len(self.layers)))

    def _order(self, gains: Mapping[str, float]) -> list[str]:
        """Order layers by their worth, those first that a rule names and that give something."""

        def key(layer: Layer) -> tuple[bool, float]:
            worth = self._worth(layer, gains)
            return bool(layer.rule and worth > 0), worth

        return [y.name for y in sorted(self.layers, key=key, reverse=True)]

    def _shortest(self, order: Sequence[str]) -> Point:
        """Find the shortest beginning of the order that holds the budget."""
        low, high = 0, 1
        while high < len(order) and not self._holds(self._full(frozenset(order[:high]))):
            low, high = high, high * 2
        high = min(high, len(order))
        best = self._full(frozenset(order[:high]))
        while high - low > 1:
            middle = (low + high) // 2
            point = self._full(frozenset(order[:middle]))
            if self._holds(point):
                high, best = middle, point
            else:
                low = middle
        return best

    def _returned(self, found: Point, gains: Mapping[str, float]) -> Point:
        """Give layers back to integers as long as the budget holds, the dearest first."""
        costs = {y.name: y.cost for y in self.layers}
        if not self._holds(found):
            return found
        # What is known for the noise stays: the budget alone does not ask for all of it.
        noise = {y.name for y in self.layers if y.loud and self._most_noise < math.inf}
        given = [n for n in found.kept if n not in noise]
        for name in sorted(given, key=lambda n: (-costs.get(n, 0.0), gains.get(n, 0.0)))[:12]:
            if self._is_over():
                break
            fewer = frozenset(found.kept) - {name}
            if self._is_loud(fewer):
                continue
            point = self._full(fewer)
            if self._holds(point):
                found = point
        return found
