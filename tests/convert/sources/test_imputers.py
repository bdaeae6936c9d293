"""``KNNImputer`` of scikit-learn is what scikit-learn computes, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.sources import read
from edgeinfer.types import Array
from tests.conformance.everywhere import ORACLE, PLACES, lacking, run

skl2onnx = pytest.importorskip("skl2onnx")
impute = pytest.importorskip("sklearn.impute")


def _data(rows: int, lost: float, seed: int) -> Array:
    numbers = np.random.default_rng(seed)
    found = numbers.standard_normal((rows, 4)).astype(np.float32)
    found[numbers.random(found.shape) < lost] = np.nan
    return found


TRAINED, GIVEN = _data(40, 0.2, 0), _data(12, 0.4, 1)
GIVEN[0] = np.nan
GIVEN[1] = TRAINED[3]
GIVEN[2] = [np.nan, np.nan, np.nan, 1]


EMPTY = np.where(np.arange(4) == 2, np.float32(np.nan), TRAINED)
"""A column of it has no value."""


def _settled(trained: Array, **options: Any) -> tuple[Any, Array]:
    fitted = impute.KNNImputer(**options).fit(trained)
    written = skl2onnx.to_onnx(fitted, trained[:1])
    source = read(written)
    assert any("KNNImputer" in line for line in source.notes.lines)
    return ir.to_proto(source.model), fitted.transform(GIVEN)


@pytest.mark.parametrize("place", [ORACLE, *PLACES])
def test_missing_values_are_those_of_neighbours(place: str) -> None:
    """A sample without any value ended the run of what skl2onnx writes."""
    if reason := lacking(place):
        pytest.skip(reason)
    forms: tuple[tuple[Array, dict[str, Any]], ...] = (
        *((TRAINED, {}), (TRAINED, {"n_neighbors": 1}), (TRAINED, {"n_neighbors": 100})),
        (EMPTY, {}),
    )
    for trained, options in forms:
        model, right = _settled(trained, **options)
        name = model.graph.input[0].name
        answers = run(place, model, {name: GIVEN})
        found = next(iter(answers.outputs.values()))
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
