"""Rows that meet the thresholds of a model's trees, which made-up numbers seldom do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import NotDefinedError
from edgeinfer.convert.lower.tabular.forest import read
from edgeinfer.types import Array

DOMAIN = "ai.onnx.ml"
_THROUGH = frozenset({"Cast", "Identity"})
_ROWS = 64
"""Rows where their number is open."""


def at_thresholds(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return rows for each float input of (rows, columns) that trees compare as it is.

    Each element is a threshold of its column, a little less or more than one, or, where the trees
    send missing values somewhere, NaN. Inputs that no tree reads directly are left out.

    Args:
        model: as read.
        shapes: Shapes of all inputs; the first size is what it is there, or larger where it is
            open.
    """
    found = {}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is None or len(shape) != 2 or value.dtype != ir.DataType.FLOAT:
            continue
        columns, missing = _columns(value, shape[1])
        if columns:
            is_open = value.shape is not None and not isinstance(value.shape[0], int)
            rows = max(shape[0], _ROWS) if is_open else shape[0]
            found[value.name or ""] = _rows(columns, (rows, shape[1]), missing)
    return found


def _columns(value: ir.Value, count: int) -> tuple[dict[int, Array], bool]:
    """Thresholds by column, and whether missing values are provided for."""
    columns: dict[int, list[Array]] = {}
    missing = False
    waiting = [value]
    while waiting:
        for node, index in waiting.pop().uses():
            if node.op_type in _THROUGH and not node.domain:
                waiting += node.outputs
            if node.domain != DOMAIN or index or not node.op_type.startswith("TreeEnsemble"):
                continue
            try:
                forest = read(node, np.float32)
            except NotDefinedError:
                continue
            tracks = node.attributes.get("nodes_missing_value_tracks_true")
            missing = missing or (tracks is not None and any(tracks.as_ints()))
            inner = forest.first != np.arange(len(forest.first))
            for column in np.unique(forest.features[inner]):
                if column < count:
                    own = forest.thresholds[inner & (forest.features == column)]
                    columns.setdefault(int(column), []).append(own)
    return {c: np.unique(np.concatenate(parts)) for c, parts in columns.items()}, missing


def _rows(columns: Mapping[int, Array], shape: tuple[int, int], missing: bool) -> Array:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal(shape).astype(np.float32)
    for column, own in columns.items():
        chosen = own[rng.integers(0, len(own), shape[0])]
        side = rng.integers(0, 3, shape[0])
        ends = np.where(side == 1, np.float32(-np.inf), np.float32(np.inf))
        rows[:, column] = np.where(side == 0, chosen, np.nextafter(chosen, ends))
        if missing:
            rows[rng.random(shape[0]) < 0.1, column] = np.nan
    return rows
