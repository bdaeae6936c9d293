"""Lines and tables of what was measured, and which limits are broken."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.tflite_peers.compare import ENOUGH_DB, Row
from benchmarks.tflite_peers.pairs import CONTROL, Pair


def pair_line(pair: Pair) -> str:
    """One line while it runs."""
    return (
        f"{pair.name:24} apart {pair.ours_theirs:.1e}, theirs from ONNX {pair.theirs_onnx:.1e}; "
        f"ops {pair.ops[0]}/{pair.ops[1]}; transposes {pair.transposes[0]}/{pair.transposes[1]}; "
        f"ratio {pair.ratio[0]:.3f} n={pair.n} {' '.join(pair.broken)}"
    )


def row_line(row: Row) -> str:
    """One line while it runs."""
    sides = [
        f"{s.db:6.1f} dB {s.transposes:3} tr {s.ops:4} ops {s.seconds:5.2f} s" if s.runs else s.said
        for s in (row.ours, row.theirs)
    ]
    said = ", ".join((*row.broken(), *row.behind()))
    race = f"{row.ms[0]:.3f}/{row.ms[1]:.3f} ms = {row.ratio[0]:.3f}" if row.n else ""
    return f"{row.model:30} {row.kind:18} | {sides[0]} | {sides[1]} | {race} {said}"


def tables(pairs: Sequence[Pair], rows: Sequence[Row], sizes: dict[str, float]) -> str:
    """Markdown, as the documentation has it."""
    parts = [_pairs(pairs)] if pairs else []
    if rows:
        parts += [_totals(rows, sizes), _races(rows)]
    return "\n\n".join(parts)


def behind(rows: Sequence[Row]) -> list[str]:
    """Every row in which theirs is better, though the columns may not be."""
    return [f"{r.model} {r.kind}: {b}" for r in rows for b in r.behind()]


def judged(pairs: Sequence[Pair], rows: Sequence[Row], sizes: dict[str, float]) -> list[str]:
    """Every broken limit."""
    found = [f"{p.name}: {b}" for p in pairs for b in p.broken]
    found += [f"{r.model} {r.kind}: {b}" for r in rows for b in r.broken()]
    for name, (mine, theirs) in _columns(rows, sizes).items():
        more_is_better = name.startswith(("right", "run without"))
        worse = mine < theirs if more_is_better else mine > theirs
        if worse:
            found.append(f"{name}: {mine:.4g} against {theirs:.4g}")
    return found


def _pairs(pairs: Sequence[Pair]) -> str:
    head = (
        "| model | ours to theirs | theirs to ONNX | operators | transposes | ms | ratio "
        "(quartiles) | n |\n|---|---|---|---|---|---|---|---|"
    )
    lines = [
        f"| {p.name} | {p.ours_theirs:.1e} | {p.theirs_onnx:.1e} | {p.ops[0]} / {p.ops[1]} "
        f"| {p.transposes[0]} / {p.transposes[1]} | {p.ms[0]:.3f} / {p.ms[1]:.3f} "
        f"| {p.ratio[0]:.3f} ({p.ratio[1]:.3f}-{p.ratio[2]:.3f}) | {p.n} |"
        for p in pairs
        if p.name != CONTROL
    ]
    return "\n".join([head, *lines])


def _columns(rows: Sequence[Row], sizes: dict[str, float]) -> dict[str, tuple[float, float]]:
    """What is better when smaller, except for what is right; ours and theirs."""
    found: dict[str, tuple[float, float]] = {}
    for kind in ENOUGH_DB:
        own = [r for r in rows if r.kind == kind]
        if not own:
            continue
        sides = [[(r.ours, r.enough) for r in own], [(r.theirs, r.enough) for r in own]]
        right = [sum(s.runs and s.db >= e for s, e in side) for side in sides]
        wrong = [sum(s.runs and s.db < e for s, e in side) for side in sides]
        found[f"right of {len(own)}, {kind}"] = (right[0], right[1])
        found[f"wrong numbers, {kind}"] = (wrong[0], wrong[1])
        both = [r for r in own if r.ours.runs and r.theirs.runs]
        if both:
            found[f"transposes left in {len(both)} both convert, {kind}"] = (
                sum(r.ours.transposes for r in both),
                sum(r.theirs.transposes + r.owed for r in both),
            )
            found[f"median seconds to convert, {kind}"] = (
                statistics.median(r.ours.seconds for r in both),
                statistics.median(r.theirs.seconds for r in both),
            )
        if any(map(any, (r.plain for r in own))):
            plain = (sum(r.plain[0] for r in own), sum(r.plain[1] for r in own))
            found[f"run without XNNPACK's half precision, of {len(own)}"] = plain
        ratios = [r.ratio[0] for r in own if r.n]
        if ratios:
            found[f"latency, geometric mean of {len(ratios)} ratios, {kind}"] = (_mean(ratios), 1.0)
    if len(sizes) == 2:
        found["install, MB"] = (sizes["edgeinfer"], sizes["onnx2tf"])
    return found


def _totals(rows: Sequence[Row], sizes: dict[str, float]) -> str:
    lines = ["| | edgeinfer | onnx2tf |", "|---|---|---|"]
    lines += [f"| {n} | {a:.4g} | {b:.4g} |" for n, (a, b) in _columns(rows, sizes).items()]
    return "\n".join(lines)


def _races(rows: Sequence[Row]) -> str:
    lines = [
        "| precision | models raced | ratio: geometric mean | median | slowest | n (median) |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ENOUGH_DB:
        own = [r for r in rows if r.kind == kind and r.n]
        if own:
            ratios = [r.ratio[0] for r in own]
            slowest = max(own, key=lambda r: r.ratio[0])
            lines.append(
                f"| {kind} | {len(own)} | {_mean(ratios):.3f} | {statistics.median(ratios):.3f} "
                f"| {slowest.ratio[0]:.3f} ({slowest.model}) "
                f"| {statistics.median(r.n for r in own):.0f} |"
            )
    return "\n".join(lines)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
