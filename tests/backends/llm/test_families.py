"""Compiled steps of every family, against transformers in float32, and with an adapter."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.tvm import library
from tests.backends.llm.small import batch, opened
from tests.backends.llm.test_adapters import adapter
from tests.convert.llm import tiny


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.TINY)
def test_logits_are_those_of_transformers(
    name: str, tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("code for x86-64-v3 does not run here")
    from edgeinfer.convert.llm import adapters, source, variant
    from edgeinfer.convert.llm.oracle import Oracle
    from edgeinfer.convert.llm.reading import Reading
    from edgeinfer.convert.lower.tvm.machines import machine

    monkeypatch.setenv("EDGEINFER_CACHE", str(kernels))
    model = tiny.save(name, tmp_path / "hf")
    found = source.read(tmp_path / "hf")
    parts = adapters.PARTS[:4] if found.config.experts else adapters.PARTS
    added = adapter(found.config, 4, 1, parts)
    reading = Reading((1, 2), (2, 1), (256, 0))
    variant.write(
        *(found.config, found.tensors, machine("x86-64-v3"), tmp_path),
        reading=reading,
        caches=("float32",),
        adapters={"added": added},
    )
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 128, 40)]
    expected = tiny.logits(model, np.array(ids))
    executor, table = opened(tmp_path, found.config, context=256, cache="float32")
    whole = executor.step(batch(table, [(0, ids, 0, 40)])).copy()
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
    singles = [executor.step(batch(table, [(1, [t], i, 1)])).copy() for i, t in enumerate(ids)]
    assert np.array_equal(np.concatenate(singles), whole)
    tensors = adapters.with_adapter(found.tensors, added)
    expected = Oracle(found.config, tensors).logits([np.array(ids)])[0]
    made = replace(batch(table, [(2, ids, 0, 40)]), adapter=np.zeros(40, np.int32))
    result = executor.step(made)
    assert np.abs(expected - whole).max() > 0.05 * np.abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
    executor.close()
