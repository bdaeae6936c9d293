"""Triangles of matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.core.portable import Elements, Moved, Value
from edgeinfer.convert.lower.core.table import moved


@moved("Trilu")
def trilu(g: Moved, x: Value, k: Value | None = None, *, upper: int) -> Value:
    """Keep the elements on one side of a diagonal."""

    def kept(e: Elements, columns: Value, rows: Value, shift: Value) -> Value:
        edge = e.add(rows, shift)
        return e.greater_equal(columns, edge) if upper else e.less_equal(columns, edge)

    rows, columns = (g.steps(x, x.rank - n) for n in (2, 1))
    shift = 0 if k is None else g.reshape(g.cast(k, np.int32), [])
    return g.select(g.folded(kept, columns, g.expand_dims(rows, 1), shift), x, 0)
