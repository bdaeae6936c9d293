"""What the precision benchmark measured: rows, whether the demands hold, and a page of tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_DROP = 0.01
"""The budget of ``auto`` and of the peers it is compared with."""

ALIKE = 1.05
"""Times that differ by less than this share are one time: what two runs of one file differ by."""

UNTIMED = ("coreml-reference",)
"""Engines whose time says nothing."""

_WIDTH = 100

_HOW = """
Written by `python -m benchmarks.precision --markdown`. Quality is of held-out samples; the drop is
against the float file on the same engine. Time is the median processor time of one run on one
thread; files of one engine took turns, and ratios are medians of the turns' ratios, with the middle
half of them and their number. Where it says openings, all files were opened anew so often, each
opening counts with its median, and the least and the largest of these are told.
`static_wi8_ai8` is what the quantizer writes, whether the gate would take it or not; `auto` passed
the gate. Core ML packages are evaluated operator by operator: their time says nothing. Files of
`auto` are no larger than those of the fastest peer that holds the budget, and no slower beyond 5 %,
or the last section says that it fails. A row without numbers has the reason in its last column.
"""

PLAIN = "static_wi8_ai8"

OURS = ("fp32", PLAIN, "auto")


@dataclass(frozen=True, slots=True)
class Row:
    """One file on one engine.

    Attributes:
        task: and its data.
        engine: a backend.
        what: a precision of ours, or a peer.
        quality: on held-out samples.
        drop: share of the float file's quality on the same engine that is gone.
        size_mb: of the file.
        latency_ms: median processor time of one run.
        samples: that the quality is of.
        precision: that was read back from the file.
        note: why there is no file, or what the search says.
        unit: what quality is.
        times: of each turn, in ms; files of one engine took turns.
        openings: turns each time that the files were opened; empty where that was once.
    """

    task: str
    engine: str
    what: str
    quality: float = 0.0
    drop: float = 1.0
    size_mb: float = 0.0
    latency_ms: float = 0.0
    samples: int = 0
    precision: str = ""
    note: str = ""
    unit: str = ""
    times: tuple[float, ...] = ()
    openings: tuple[int, ...] = ()

    def line(self) -> str:
        """Return one line for a terminal."""
        return (
            f"{self.task:18} {self.engine:16} {self.what:18} {self.quality:8.4f} "
            f"drop {self.drop:7.2%} {self.size_mb:8.3f} MB {self.latency_ms:8.3f} ms "
            f"{self.precision} {self.note}"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the demands hold for one task on one engine."""

    line: str
    failed: bool


def verdict(rows: Sequence[Row]) -> list[Finding]:
    """Hold ``auto`` against its budget and the fastest peer that keeps to it."""
    found = []
    for task, engine in dict.fromkeys((r.task, r.engine) for r in rows):
        here = {r.what: r for r in rows if (r.task, r.engine) == (task, engine)}
        found.append(_one(f"{task} on {engine}", here))
    return found


def _one(title: str, here: dict[str, Row]) -> Finding:
    auto = here.get("auto")
    if auto is None or not auto.samples:
        return Finding(f"FAILS {title}: auto gave nothing", True)
    faults = [] if auto.drop <= MAX_DROP else [f"drop {auto.drop:.2%}"]
    peers = [r for r in here.values() if r.what not in OURS and r.samples and r.drop <= MAX_DROP]
    if not peers:
        told = f"drop {auto.drop:.2%}, {auto.size_mb:.3f} MB; no peer holds the budget"
    else:
        best = min(peers, key=lambda r: r.latency_ms)
        if auto.size_mb > best.size_mb:
            faults.append(f"{auto.size_mb:.3f} MB, {best.what} {best.size_mb:.3f} MB")
        ratio, spread = compared(auto, best)
        if ratio > ALIKE and auto.engine not in UNTIMED:
            faults.append(f"time of {best.what} x {ratio:.2f} ({spread})")
        told = (
            f"drop {auto.drop:.2%}, {auto.size_mb:.3f} MB of {best.size_mb:.3f} MB, "
            f"time of {best.what} x {ratio:.2f} ({spread})"
        )
    return Finding(
        f"{'FAILS' if faults else 'holds'} {title}: {'; '.join(faults) or told}", bool(faults)
    )


def compared(one: Row, other: Row) -> tuple[float, str]:
    """Return the median ratio of times, and its spread and number in words.

    Ratios are of turns next to each other, and of each opening of the files the median counts: in
    one opening all turns have the same luck.
    """
    pairs = [a / b for a, b in zip(one.times, other.times, strict=False) if b > 0]
    if not pairs:
        return one.latency_ms / max(other.latency_ms, 1e-9), "no turns"
    if sum(one.openings) != len(pairs) or one.openings != other.openings or len(one.openings) < 2:
        low, middle, high = (float(np.quantile(pairs, q)) for q in (0.25, 0.5, 0.75))
        return middle, f"{low:.2f}..{high:.2f}, {len(pairs)} turns"
    ends = np.cumsum(one.openings)[:-1]
    ratios = [float(np.median(part)) for part in np.split(np.asarray(pairs), ends)]
    spread = f"{min(ratios):.2f}..{max(ratios):.2f}, {len(ratios)} openings, {len(pairs)} turns"
    return float(np.median(ratios)), spread


def markdown(rows: Sequence[Row], lacking: Sequence[str] = (), note: str = "") -> str:
    """Return a page with a table for each task.

    Args:
        rows: what was measured.
        lacking: pairs of task and engine that were not.
        note: on which machines that was.
    """
    lines = [
        "# Precision, measured",
        "",
        *textwrap.wrap(_HOW, _WIDTH, break_on_hyphens=False),
        "",
        *([*textwrap.wrap(note, _WIDTH, break_on_hyphens=False), ""] if note else []),
    ]
    for task in dict.fromkeys(r.task for r in rows):
        here = [r for r in rows if r.task == task]
        unit = next((r.unit for r in here if r.unit), "quality")
        lines += [f"## {task}", "", f"| engine | file | {unit} | drop | MB | ms | precision |"]
        lines += ["|---|---|---|---|---|---|---|", *(_cells(r) for r in here), ""]
    lines += ["## Demands", "", *(f"- {f.line}" for f in verdict(rows)), ""]
    if lacking:
        lines += ["## Not measured", "", *(f"- {name}" for name in lacking), ""]
    return "\n".join(lines)


def _cells(row: Row) -> str:
    if not row.samples:
        return f"| {row.engine} | {row.what} | | | | | {row.note} |"
    slow = row.engine in UNTIMED
    cells = [
        *(row.engine, row.what, f"{row.quality:.4f}", f"{row.drop:.2%}", f"{row.size_mb:.3f}"),
        *("" if slow else f"{row.latency_ms:.3f}", row.precision),
    ]
    return f"| {' | '.join(cells)} |"
