"""The report's page: numbers become words and bars, the template only lays them out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from edgeinfer.convert.verify import words
from edgeinfer.convert.verify.plots import HEIGHT, WIDTH, pareto

_FULL_DB = 150.0
"""Right end of the signal-to-error bars; single precision reaches about 140 dB."""


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report in its JSON form."""
    return _template().render(
        report=report,
        operators=_operators(report["ops"]),
        comparison=words.comparison(report),
        right=words.right_numbers(report),
        advice=words.advice(report),
        changes=words.changes(report),
        slowest_s=max([*report["seconds"].values(), 1e-9]),
        whole_s=sum(report["seconds"].values()),
        size=(WIDTH, HEIGHT),
        plots=_plots(report.get("quantization") or {}),
    )


def _source(name: str) -> str:
    return files("edgeinfer.convert.verify").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    # Tensor and node names come from strangers' files: everything is escaped, always.
    environment = jinja2.Environment(
        # A section that a report lacks is not compiled.
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": size_text,
        "number": number_text,
        "shape": shape_text,
        "db": db_text,
        "db_share": db_share,
        "percent": lambda share: f"{100.0 * share:.1f}%",
    }
    return environment.get_template("report.html")


def size_text(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def number_text(value: float | None) -> str:
    """Write a measured number with three digits that matter."""
    if value is None:
        return "∞"
    return "0" if value == 0 else f"{value:.3g}"


def shape_text(shape: list[int | str | None] | None) -> str:
    """Write a shape; named sizes by name, unknown ones as a question mark."""
    if shape is None:
        return "any rank"
    return " x ".join("?" if d is None else str(d) for d in shape) or "scalar"


def db_text(value: float | None) -> str:
    """Write a ratio; None stands for equal numbers."""
    return "equal" if value is None else f"{value:.0f} dB"


def db_share(value: float | None) -> float:
    """Return how far a bar reaches, 0..1."""
    if value is None or not math.isfinite(value):
        return 1.0
    return min(1.0, max(0.0, value / _FULL_DB))


def _operators(ops: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return operators before and after, most frequent first."""
    before, after = ops["before"], ops["after"]
    names = dict.fromkeys([*before, *after])
    rows = [{"op": o, "before": before.get(o, 0), "after": after.get(o, 0)} for o in names]
    return sorted(rows, key=lambda r: (-max(r["before"], r["after"]), r["op"]))


def _plots(quantization: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each target's search with its drawing."""
    searches: Mapping[str, Any] = quantization.get("search") or {}
    drawn = [(title, found, pareto(found)) for title, found in searches.items()]
    return [{"title": t, "search": f, "plot": p} for t, f, p in drawn if p is not None]
