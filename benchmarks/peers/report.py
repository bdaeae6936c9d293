"""Ratios of what was measured, losses first, and the record as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.environments import OURS, Engine
from benchmarks.peers.race import Row

LOSS = 1.02
"""Ratio above which a row is a loss, where its lower quartile is above 1 too."""


PAIRS = (
    ("fp32", "edgeinfer-bf16", "openvino-default", "ours with bf16 allowed ÷ openvino's default"),
    ("int8", "edgeinfer-onnxruntime", "onnxruntime-same", "ours on onnxruntime ÷ the same file"),
)
"""What else is compared: precision, ours, the other, and what to say of it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours by another, by rounds.

    Attributes:
        row: whose it is.
        other: the engine.
        middle: median over rounds.
        low: lower quartile.
        high: upper quartile.
        n: rounds.
    """

    row: Row
    other: str
    middle: float
    low: float
    high: float
    n: int

    @property
    def is_loss(self) -> bool:
        """Whether edgeinfer is slower beyond the spread of the rounds."""
        return self.middle > LOSS and self.low > 1.0

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(row: Row, other: str, ours: str = OURS) -> Ratio | None:
    """Compare two engines of a row; None where one of them did not run."""
    mine, theirs = (row.results.get(name) for name in (ours, other))
    if mine is None or theirs is None or len(mine.ms) < 2 or len(theirs.ms) < 2:
        return None
    by_round = [a / b for a, b in zip(mine.ms, theirs.ms, strict=False)]
    low, middle, high = statistics.quantiles(by_round, n=4)
    return Ratio(row, other, middle, low, high, len(by_round))


def best_peer(row: Row, engines: Mapping[str, Engine]) -> Ratio | None:
    """Compare with the peer whose median is the lowest, picked after the fact."""
    ran = {n: r.ms for n, r in row.results.items() if len(r.ms) > 1 and engines[n].is_peer}
    if not ran:
        return None
    return ratio(row, min(ran, key=lambda name: statistics.median(ran[name])))


def ranked(rows: Iterable[Row], engines: Mapping[str, Engine]) -> list[Ratio]:
    """Every row next to its best peer, losses first."""
    found = [best_peer(row, engines) for row in rows]
    return sorted((r for r in found if r is not None), key=lambda r: -r.middle)


def groups(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows by precision and threads."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r.kind, r.threads, r.model)):
        found.setdefault((row.kind, row.threads), []).append(row)
    return found


def geomean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


@dataclass(frozen=True, slots=True)
class Headline:
    """What one group of rows says together: a title, the mean of ratios, and how many."""

    title: str
    value: float
    models: int

    def __str__(self) -> str:
        return f"{self.title}: {self.value:.3f} over {self.models} models"


def headlines(rows: Sequence[Row], engines: Mapping[str, Engine]) -> list[Headline]:
    """Geometric means of ours by the best peer, and by every engine that ran."""
    found = []
    for (kind, threads), own in groups(rows).items():
        said = f"{kind}, {threads} thread{'s' * (threads > 1)}: ours ÷"
        best = [r.middle for r in ranked(own, engines)]
        if best:
            found.append(Headline(f"{said} best peer", geomean(best), len(best)))
        for name, engine in engines.items():
            beside = [r.middle for row in own if name != OURS and (r := ratio(row, name))]
            if beside:
                found.append(Headline(f"{said} {engine.title}", geomean(beside), len(beside)))
    for kind, ours, other, said in PAIRS:
        pairs = [r for row in rows if row.kind == kind and (r := ratio(row, other, ours))]
        for threads in sorted({r.row.threads for r in pairs}):
            own_ratios = [r.middle for r in pairs if r.row.threads == threads]
            title = f"{kind}, {threads} thread{'s' * (threads > 1)}: {said}"
            found.append(Headline(title, geomean(own_ratios), len(own_ratios)))
    return found


def markdown(record: Mapping[str, Any], engines: Mapping[str, Engine]) -> str:
    """Write the record: machine, headlines, a table a group, loading, what did not run."""
    rows = [Row.read(r) for r in record["rows"]]
    parts = [
        f"{record['machine']}; {versions(record)}.",
        f"`{record['command']}`, {record['date']}, {record['rounds']} rounds.",
        "\n".join(f"- {line}" for line in headlines(rows, engines)),
    ]
    for (kind, threads), own in groups(rows).items():
        parts.append(f"### {kind}, {threads} thread{'s' * (threads > 1)}\n\n{_table(own, engines)}")
    parts += [f"### Loading\n\n{_loading(rows)}", f"### Not counted\n\n{_failures(rows, engines)}"]
    return "\n\n".join(parts) + "\n"


def versions(record: Mapping[str, Any]) -> str:
    """Versions of what was compared, in a line."""
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def columns(rows: Sequence[Row], engines: Mapping[str, Engine]) -> list[str]:
    """Engines that ran in any row, ours first."""
    return [n for n in engines if any(n in r.results and r.results[n].ms for r in rows)]


def cell(row: Row, name: str) -> str:
    """An engine's median in milliseconds, or a word on why there is none."""
    result = row.results.get(name)
    if result is None:
        return ""
    if not result.ms:
        return result.state
    return f"{statistics.median(result.ms):.3g}"


def _table(rows: Sequence[Row], engines: Mapping[str, Engine]) -> str:
    names = columns(rows, engines)
    head = ["model", "ours took", *(f"{engines[n].title}, ms" for n in names), "ours ÷ best peer"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for best in ranked(rows, engines):
        row = best.row
        shown = f"{best}: {engines[best.other].title}"
        cells = [row.model, row.results[OURS].engine, *(cell(row, n) for n in names)]
        cells.append(f"**{shown}**" if best.is_loss else shown)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def loads(rows: Sequence[Row]) -> list[tuple[str, list[float]]]:
    """Loading of each engine over fp32 rows with one thread: medians of s, CPU s, MB, first s."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        if row.kind == "fp32" and row.threads == 1:
            for name, result in row.results.items():
                if result.ms:
                    found.setdefault(name, []).append(result)
    return [
        (
            name,
            [
                statistics.median(getattr(r, key) for r in results)
                for key in ("load_s", "load_cpu_s", "memory_mb", "first_load_s")
            ],
        )
        for name, results in found.items()
    ]


def _loading(rows: Sequence[Row]) -> str:
    lines = [
        "| engine | load, s | its CPU, s | resident, MB | first load, s |",
        "|---|---|---|---|---|",
    ]
    for name, (load, cpu, memory, first) in loads(rows):
        shown = f"{first:.2f}" if first else ""
        lines.append(f"| {name} | {load:.2f} | {cpu:.2f} | {memory:.0f} | {shown} |")
    seconds = [r.convert_cpu_s for r in rows if r.convert_cpu_s and r.threads == 1]
    if seconds:
        lines.append(
            f"\nMaking a bundle took {statistics.median(seconds):.1f} CPU s in the median."
        )
    return "\n".join(lines)


def failures(rows: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """Engine and reason, and the models of which it is so."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, result in row.results.items():
            if not result.ms:
                key = (name, f"{result.state}: {result.said}")
                models = found.setdefault(key, [])
                if row.model not in models:
                    models.append(row.model)
    return found


def _failures(rows: Sequence[Row], engines: Mapping[str, Engine]) -> str:
    lines = [
        f"- {engines[name].title}: {said} ({', '.join(models)})"
        for (name, said), models in failures(rows).items()
    ]
    return "\n".join(lines) or "Everything ran."
