"""The page of ``benchmarks.model_table``: rows and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact of one model, or why there is none.

    Attributes:
        model: its name.
        task: what it is for.
        target: what it was converted for.
        variant: of the bundle.
        format: of the artifact.
        precision: read back from it.
        size_bytes: of it.
        error: largest error, as a share of the largest value.
        signal_db: signal to error of the worst output.
        verdict: of the gate, or ``refused``.
        checked: the engines that ran it.
        ms: median of one run on ``machine``; None where it was not timed.
        peer_ms: median of the plain engine there.
        peer: its name.
        machine: the processor of both.
        why: reason of a refusal, or of a time that is missing where the others were timed.
    """

    model: str
    task: str
    target: str
    variant: str = ""
    format: str = ""
    precision: str = ""
    size_bytes: int = 0
    error: float | None = None
    signal_db: float | None = None
    verdict: str = ""
    checked: str = ""
    ms: float | None = None
    peer_ms: float | None = None
    peer: str = ""
    machine: str = ""
    why: str = ""


DEVICES = {
    "cpu": "the machine that converts",
    "rpi5": "Raspberry Pi 5",
    "ios": "iPhone",
    "jetson-orin": "Jetson Orin",
}
"""The device that each target is made for."""

_HEAD = """# Models

<!-- Written by python -m benchmarks.model_table; the rows are in benchmarks/models.json. -->

{models} models, converted by the command that a user types, in float32: what each device gets, how
large it is, how far its numbers are from the source model's, computed in float64 by definition, and
where it was measured, the time next to the plain engine's. Every artifact was run through the gate,
on a PC, by the engine that is named: **no time here is of a phone or a board**, and what was not
timed says so. Weights are those of public packages, or random where the second column says so;
small architectures have few layers, so that each of their operators is there. A language model
keeps the bits of its file; its error is that of the scores of the next token, and
[its speed](llm.md) is reported in tokens.

- Error is the largest one, as a share of the largest value; signal is signal to error of the worst
  output ([the budgets](budgets.md)).
- What 8 bits cost is measured on tasks with answers: [Precision](precision.md).
- `make models-table` measures what is missing and writes this page anew.
"""


def page(rows: Sequence[Row]) -> str:
    """Write the page of rows."""
    names = list(dict.fromkeys(row.model for row in rows))
    parts = [_HEAD.format(models=len(names))]
    for target in dict.fromkeys(row.target for row in rows):
        found = [row for row in rows if row.target == target and row.verdict != "refused"]
        parts.append(f"## {target}: {DEVICES.get(target, target)}\n\n{_table(found, target)}\n")
    refused = [row for row in rows if row.verdict == "refused"]
    parts.append(f"## Refused\n\n{_refusals(refused)}\n")
    return "\n".join(parts)


def _table(rows: Sequence[Row], target: str) -> str:
    # The gate ran here: a device's own engine or unit was not seen.
    verdict = "verdict" if target == "cpu" else "verdict, on a PC's processor"
    columns = ["model", "for", "artifact", "MB", "error", "signal", verdict, "checked by"]
    columns += ["ms here", "plain engine, ms"] if target == "cpu" else ["on the device"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [
            row.model,
            row.task,
            f"{row.format} {row.precision}",
            f"{row.size_bytes / 1e6:.2f}",
        ]
        cells += [_number(row.error, ".1e"), _number(row.signal_db, ".0f", " dB"), row.verdict]
        cells += [row.checked or "no engine here", *_times(row, target)]
        lines.append("| " + " | ".join(cells) + " |")
    machines = sorted({row.machine for row in rows if row.machine and target == "cpu"})
    told = f"\n\nTimes: {', '.join(machines)}." if machines else ""
    reasons = dict.fromkeys((row.model, row.why) for row in rows if row.why)
    return "\n".join(lines) + told + "".join(f"\n\nNot timed: {m}: {why}." for m, why in reasons)


def _times(row: Row, target: str) -> list[str]:
    if target != "cpu":
        return ["not measured"]
    if row.ms is None:
        return ["not measured", "not measured"]
    ours = _number(row.ms, ".3g")
    if row.peer_ms is None:
        return [ours, "not measured"]
    peer = f"{row.peer.removeprefix('plain ')}, {row.peer_ms / row.ms:.2f} times ours"
    return [ours, f"{row.peer_ms:.3g} ({peer})"]


def _refusals(rows: Sequence[Row]) -> str:
    if not rows:
        return "None of these models is refused by any of these targets."
    lines = ["| model | target | reason |", "|---|---|---|"]
    for row in rows:
        reason = row.why.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {row.model} | {row.target} | {reason} |")
    return "\n".join(lines)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
