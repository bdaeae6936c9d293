"""What `make test` runs of a sweep: some rows of each kind; `make test-sweep` runs the others.

A sweep is one behaviour in many forms: an operator with every data type, a reader with every
damage. ``@pytest.mark.sample(3)`` leaves `make test` three rows of a parametrised test, the first
and the last among them; ``@pytest.mark.sample(each="target")`` one for every value of that
parameter, and ``each=("target", "dtype")`` as few as have every value of both. On a class or a
module the mark speaks of each test in it. ``@pytest.mark.sweep`` leaves it none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mark(items: Iterable[pytest.Item]) -> None:
    """Give rows that `make test` leaves out the mark ``sweep``."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sample"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in tests.values():
        kept = representatives(rows)
        for row in rows:
            if row not in kept:
                row.add_marker("sweep")


def asked(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """Return the values of a parameter that a run takes of a module, for what is made for all."""
    items = (i for i in request.session.items if isinstance(i, pytest.Function))
    specs = [i.callspec for i in items if i.module is request.module and hasattr(i, "callspec")]
    return list(dict.fromkeys(spec.params[name] for spec in specs if name in spec.params))


def representatives(rows: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return the rows of one test that `make test` runs, as its mark ``sample`` says.

    Rows that other runs take anyway, the slow ones, stand for nothing.
    """
    sample = rows[0].get_closest_marker("sample")
    assert sample is not None
    rows = [r for r in rows if not any(r.get_closest_marker(m) for m in ("slow", "models"))]
    each = sample.kwargs.get("each")
    if each is None:
        (most,) = sample.args
        return list(rows) if len(rows) <= most else [rows[n] for n in _spread(len(rows), most)]
    names = (each,) if isinstance(each, str) else each
    seen: set[tuple[str, str]] = set()
    kept = []
    for row in rows:
        values = {(name, _written(row, name)) for name in names}
        if values - seen:
            kept.append(row)
            seen |= values
    return kept


def _spread(count: int, most: int) -> list[int]:
    """Return places of a row of so many, the ends first."""
    if most == 1:
        return [0]
    return sorted({round(n * (count - 1) / (most - 1)) for n in range(most)})


def _written(row: pytest.Function, name: str) -> str:
    """Return what tells values of a parameter apart: of most, that they are other objects."""
    if name not in row.callspec.params:
        raise pytest.UsageError(f"{row.nodeid}: sample: no parameter {name!r}")
    value = row.callspec.params[name]
    simple = value is None or isinstance(value, (str, int, float, type))
    return str(value) if simple else f"#{id(value)}"
