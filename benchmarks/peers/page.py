"""The figures as one HTML page without scripts: losses first and in red, a plot a group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.peers import report
from benchmarks.peers.environments import OURS, Engine
from benchmarks.peers.race import Row

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.loss td { color: #d11; font-weight: 600; }
td.best { text-decoration: underline; }
td.not { color: #888; font-weight: 400; }
svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
"""
LEFT, WIDTH, STEP = 220, 620, 20
LOWEST, HIGHEST = 0.25, 2.0
"""Ratios at the ends of a plot."""


def page(record: Mapping[str, Any], engines: Mapping[str, Engine]) -> str:
    """Return the page."""
    rows = [Row.read(r) for r in record["rows"]]
    body = [
        "<h1>edgeinfer next to the engines</h1>",
        f"<p>{escape(record['machine'])}; {escape(report.versions(record))}.<br>"
        f"<code>{escape(record['command'])}</code>, {record['date']}, {record['rounds']} rounds of "
        "turns in random order; ratios are of turns of the same round, with their quartiles. Below "
        "1 ours is faster. The best peer is picked for each model after the fact.</p>",
        _headlines(rows, engines),
    ]
    for (kind, threads), own in report.groups(rows).items():
        body.append(f"<h2>{kind}, {threads} thread{'s' * (threads > 1)}</h2>")
        body += [_plot(report.ranked(own, engines), engines), _table(own, engines)]
    body += ["<h2>Loading</h2>", _loading(rows), "<h2>Not counted</h2>", _failures(rows, engines)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>edgeinfer next to the engines'
        f"</title><style>{STYLE}</style>{''.join(body)}</html>\n"
    )


def _headlines(rows: Sequence[Row], engines: Mapping[str, Engine]) -> str:
    lines = sorted(report.headlines(rows, engines), key=lambda h: -h.value)
    cells = [
        f"<tr{_loss(h.value > report.LOSS)}><td>{escape(h.title)}</td><td>{h.value:.3f}</td>"
        f"<td>{h.models}</td></tr>"
        for h in lines
    ]
    head = "<tr><th>geometric mean of ratios</th><th></th><th>models</th></tr>"
    return f"<table>{head}{''.join(cells)}</table>"


def _loss(yes: bool) -> str:
    return ' class="loss"' if yes else ""


def _table(rows: Sequence[Row], engines: Mapping[str, Engine]) -> str:
    names = report.columns(rows, engines)
    titles = ["model", "÷ best peer", "it is", "ours took", *(engines[n].title for n in names)]
    lines = ["<tr>" + "".join(f"<th>{escape(t)}</th>" for t in titles) + "</tr>"]
    for best in report.ranked(rows, engines):
        row = best.row
        cells = [row.model, str(best), engines[best.other].title, row.results[OURS].engine]
        shown = "".join(f"<td>{escape(c)}</td>" for c in cells)
        shown += "".join(_cell(row, n, n == best.other) for n in names)
        lines.append(f"<tr{_loss(best.is_loss)}>{shown}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(row: Row, name: str, is_best: bool) -> str:
    result = row.results.get(name)
    ran = result is not None and bool(result.ms)
    kind = "best" if is_best else "" if ran else "not"
    about = ""
    if result is not None:
        about = f"error {result.error:.1e}" if ran else result.said
    title = f' title="{escape(about, quote=True)}"' if about else ""
    return f'<td class="{kind}"{title}>{escape(report.cell(row, name))}</td>'


def _x(value: float) -> float:
    held = min(max(value, LOWEST), HIGHEST)
    share = math.log(held / LOWEST) / math.log(HIGHEST / LOWEST)
    return LEFT + WIDTH * share


def _plot(ratios: Sequence[report.Ratio], engines: Mapping[str, Engine]) -> str:
    """A line from quartile to quartile for each model, and a dot at the median."""
    height = STEP * (len(ratios) + 2)
    parts = []
    for tick in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        x, stroke = _x(tick), "#888" if tick == 1.0 else "#8884"
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - STEP}"'
        parts.append(f'<line {ends} stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{tick:g}</text>')
    for index, one in enumerate(ratios):
        y, colour = STEP * (index + 1), "#d11" if one.is_loss else "#2a7"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(one.row.model)}</text>',
            f'<line x1="{_x(one.low):.1f}" x2="{_x(one.high):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{_x(one.middle):.1f}" cy="{y}" r="5" fill="{colour}"/>',
            f'<text x="{LEFT + WIDTH + 8}" y="{y + 4}">{one.middle:.2f}, '
            f"{escape(engines[one.other].title)}</text>",
        ]
    size = f'width="{LEFT + WIDTH + 220}" height="{height}"'
    return f'<svg {size} role="img" aria-label="ratios by model">{"".join(parts)}</svg>'


def _loading(rows: Sequence[Row]) -> str:
    titles = ("engine", "load, s", "its CPU, s", "resident, MB", "first load, s")
    lines = ["<tr>" + "".join(f"<th>{t}</th>" for t in titles) + "</tr>"]
    for name, values in report.loads(rows):
        cells = "".join(f"<td>{value:.2f}</td>" for value in values)
        lines.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _failures(rows: Sequence[Row], engines: Mapping[str, Engine]) -> str:
    lines = [
        f"<li>{escape(engines[name].title)}: {escape(said)} ({escape(', '.join(models))})</li>"
        for (name, said), models in report.failures(rows).items()
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else "<p>Everything ran.</p>"
