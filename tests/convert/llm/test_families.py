from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.llm import source
from edgeinfer.convert.llm.oracle import Oracle
from tests.convert.llm import tiny


@pytest.mark.parametrize("name", tiny.TINY)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny.save(name, tmp_path)
    ids = np.random.default_rng(1).integers(3, 128, 40)
    expected = tiny.logits(model, ids)
    found = source.read(tmp_path)
    result = Oracle(found.config, found.tensors).logits([ids])[0]
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
