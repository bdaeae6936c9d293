"""What the precision benchmark measured: rows, whether the demands hold, and a page of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_DROP = 0.01
"""The budget of ``auto`` and of the peers it is compared with."""

ALIKE = 1.05
"""Times that differ by less than this share are one time: what two runs of one file differ by."""

OURS = ("fp32", "static_wi8_ai8", "auto")


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
        latency_ms: least processor time of one run.
        samples: that the quality is of.
        precision: that was read back from the file.
        note: why there is no file, or what the search says.
        unit: what quality is.
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
        told = f"drop {auto.drop:.2%}; no peer holds the budget"
    else:
        best = min(peers, key=lambda r: r.latency_ms)
        if auto.size_mb > best.size_mb:
            faults.append(f"{auto.size_mb:.3f} MB, {best.what} {best.size_mb:.3f} MB")
        if auto.latency_ms > ALIKE * best.latency_ms:
            faults.append(f"{auto.latency_ms:.3f} ms, {best.what} {best.latency_ms:.3f} ms")
        told = (
            f"drop {auto.drop:.2%}, {auto.size_mb:.3f} MB of {best.size_mb:.3f} MB, "
            f"{auto.latency_ms:.3f} ms of {best.latency_ms:.3f} ms ({best.what})"
        )
    return Finding(
        f"{'FAILS' if faults else 'holds'} {title}: {'; '.join(faults) or told}", bool(faults)
    )


def markdown(rows: Sequence[Row], lacking: Sequence[str] = ()) -> str:
    """Return a page with a table for each task.

    Args:
        rows: what was measured.
        lacking: pairs of task and engine that were not.
    """
    lines = [
        "# Precision, measured",
        "",
        "Written by `python -m benchmarks.precision --markdown`. Quality is of held-out samples, "
        "the drop is",
        "against the float file on the same engine, time is the least processor time of one run "
        "on one",
        "thread. Core ML packages are evaluated operator by operator: their time says nothing. "
        "Files of",
        "`auto` are no larger than those of the fastest peer that holds the budget, and no slower "
        "beyond 5 %, or",
        "the last section says that it fails. A row without numbers has the reason in its last "
        "column.",
        "",
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
    slow = row.engine == "coreml-reference"
    cells = [
        *(row.engine, row.what, f"{row.quality:.4f}", f"{row.drop:.2%}", f"{row.size_mb:.3f}"),
        *("" if slow else f"{row.latency_ms:.3f}", row.precision),
    ]
    return f"| {' | '.join(cells)} |"
