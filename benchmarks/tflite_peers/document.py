"""The figures of a run in the documentation, written from its JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.tflite_peers.compare import ENOUGH_DB, Row, Side
from benchmarks.tflite_peers.pairs import LIMIT_RATIO, Pair
from benchmarks.tflite_peers.summary import tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "tflite.md"
BEGIN = "<!-- Written by python -m benchmarks.tflite_peers --from FILE --document -->"
END = "<!-- End of what it writes -->"

Figures = tuple[list[Pair], list[Row], dict[str, float]]


def read(path: Path) -> tuple[str, Figures]:
    """The machine and the figures of a run."""
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        Row(**{**_tuples(r), "ours": Side(**r["ours"]), "theirs": Side(**r["theirs"])})
        for r in record["rows"]
    ]
    return record["machine"], (
        [Pair(**_tuples(p)) for p in record["pairs"]],
        rows,
        record["sizes_mb"],
    )


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    listed = {"broken", "custom"}
    return {
        k: tuple(v) if isinstance(v, list) and k not in listed else v for k, v in record.items()
    }


def write(path: Path, document: Path = DOCUMENT) -> None:
    """Put the figures of a run between the marks of the document.

    Raises:
        ValueError: the document has no marks.
    """
    text = document.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no {BEGIN} and {END}")
    document.write_text(f"{head}{BEGIN}\n\n{written(path)}\n\n{END}{tail}", encoding="utf-8")


def written(path: Path) -> str:
    """The tables, and every row that is behind."""
    machine, (pairs, rows, sizes) = read(path)
    parts = [f"Measured on {machine}.", tables(pairs, rows, sizes)]
    behind = [r for r in rows if r.n and r.ratio[0] > LIMIT_RATIO]
    if behind:
        lines = [
            "Slower by more than 2 %, also where their numbers are wrong:",
            "",
            "| model | precision | ms | ratio | dB, ours / theirs |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {r.model} | {r.kind} | {r.ms[0]:.3f} / {r.ms[1]:.3f} | {r.ratio[0]:.3f} "
            f"| {r.ours.db:.0f} / {r.theirs.db:.0f}{'' if _right(r) else ' (wrong)'} |"
            for r in behind
        ]
        parts.append("\n".join(lines))
    else:
        parts.append("No file is slower by more than 2 %.")
    return "\n\n".join(parts)


def _right(row: Row) -> bool:
    return row.theirs.db >= min(row.enough, ENOUGH_DB[row.kind])
