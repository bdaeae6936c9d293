"""Lines, the table, and where we are not ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.coreml_peers.rows import Row, Side
from benchmarks.coreml_peers.tools import OURS, PEERS, Installed

TOOLS = (OURS, *PEERS)


def lines(row: Row) -> list[str]:
    """What happened to a model, a line a tool."""
    return [f"{row.model:34} {n:12} {_words(side)}" for n, side in row.sides.items()]


def _words(side: Side) -> str:
    if not side.made:
        state = f"not converted: {side.said}"
    elif side.gap:
        state = f"the evaluator's gap: {side.said}"
    else:
        state = "right" if side.right else f"WRONG {side.said}"
        state += f" {side.db:.0f} dB, {side.ops} ops, {side.bytes} bytes, {side.seconds:.1f} s"
        state += f", in turns {side.timed:.2f} s (spread {side.spread:.2f})" if side.timed else ""
    if side.open_right is not None:
        state += f"; open sizes: {'right' if side.open_right else f'no: {side.open_said}'}"
    return state


def _sum(rows: Sequence[Row], tool: str, what: Callable[[Side], object]) -> int:
    return sum(bool(what(r.sides[tool])) for r in rows)


def _both(
    rows: Sequence[Row], peer: str, number: Callable[[Side], float]
) -> list[tuple[float, float]]:
    """A figure of both sides, of models where both are right and it was measured."""
    sides = [(r.sides[OURS.name], r.sides[peer]) for r in rows]
    pairs = [(number(a), number(b)) for a, b in sides if a.right and b.right]
    return [(a, b) for a, b in pairs if a and b]


def table(rows: Sequence[Row], there: Mapping[str, Installed]) -> str:
    """The table of the page, in Markdown."""
    asked = sum(r.sides[OURS.name].open_right is not None for r in rows)
    head = ["", *(t.name + (f" {t.version}" if t.version else "") for t in TOOLS)]
    body: list[list[str]] = []

    def add(title: str, cell: Callable[[str], str]) -> None:
        body.append([title, *(cell(t.name) for t in TOOLS)])

    add(f"converted, of {len(rows)}", lambda t: str(_sum(rows, t, lambda s: s.made)))
    add("of these wrong numbers", lambda t: str(_sum(rows, t, lambda s: s.wrong)))
    add("of these not judged (evaluator's gap)", lambda t: str(_sum(rows, t, lambda s: s.gap)))
    add(
        f"open sizes, right at two sizes, of {asked}",
        lambda t: str(_sum(rows, t, lambda s: s.open_right)),
    )
    add("install that converts", lambda t: f"{there[t].converts_mb:.0f} MB")
    add("install that checks numbers", lambda t: f"{there[t].checks_mb:.0f} MB")
    for title, number, show in (
        ("conversion, CPU time, median", lambda s: s.timed, "{:.2f} s"),
        ("operations, median", lambda s: float(s.ops), "{:.0f}"),
        ("file, median", lambda s: s.bytes / 1e3, "{:.1f} kB"),
    ):
        add(title, lambda t, n=number, f=show: _paired(rows, t, n, f))  # type: ignore[misc]
    rules = ["---"] * len(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rules, *body))


def _paired(rows: Sequence[Row], tool: str, number: Callable[[Side], float], show: str) -> str:
    if tool == OURS.name:
        own = [number(r.sides[tool]) for r in rows if r.sides[tool].right]
        values = [v for v in own if v]
        return show.format(median(values)) if values else "-"
    pairs = _both(rows, tool, number)
    if not pairs:
        return "-"
    mine, theirs = median(a for a, _ in pairs), median(b for _, b in pairs)
    ratios = [a / b for a, b in pairs]
    ends = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{show.format(theirs)}; ours {show.format(mine)}, {ends} of it, {len(pairs)} models"


def broken(rows: Sequence[Row], there: Mapping[str, Installed]) -> list[str]:
    """Columns in which we are not ahead, and every fault of ours."""
    found = []
    for row in rows:
        side = row.sides[OURS.name]
        if not side.right:
            found.append(f"{row.model}: {_words(side)}")
        elif side.open_right is False:
            found.append(f"{row.model} with open sizes: {side.open_said}")
    for tool in PEERS:
        found += _behind(rows, there, tool.name)
    return found


def _behind(rows: Sequence[Row], there: Mapping[str, Installed], peer: str) -> list[str]:
    found = []
    counts: tuple[tuple[str, Callable[[Side], object], bool], ...] = (
        ("converted", lambda s: s.made, False),
        ("right", lambda s: s.right, False),
        ("open sizes", lambda s: s.open_right, False),
        ("wrong numbers", lambda s: s.wrong, True),
    )
    for title, what, fewer in counts:
        mine, theirs = _sum(rows, OURS.name, what), _sum(rows, peer, what)
        if (mine > theirs) if fewer else (mine < theirs):
            found.append(f"{title}: {mine}, {peer} {theirs}")
    installs = (
        ("that converts", there[OURS.name].converts_mb, there[peer].converts_mb),
        ("that checks numbers", there[OURS.name].checks_mb, there[peer].checks_mb),
    )
    for title, mine_mb, theirs_mb in installs:
        if round(mine_mb) >= round(theirs_mb):
            found.append(f"install {title}: {mine_mb:.0f} MB, {peer} {theirs_mb:.0f} MB")
    figures: tuple[tuple[str, Callable[[Side], float]], ...] = (
        ("CPU time", lambda s: s.timed),
        ("operations", lambda s: s.ops),
        ("bytes", lambda s: s.bytes),
    )
    for title, number in figures:
        pairs = _both(rows, peer, number)
        ratio = median([a / b for a, b in pairs] or [0.0])
        if ratio > 1.0:
            found.append(f"{title}: {ratio:.3f} times that of {peer}, median of {len(pairs)}")
    return found
