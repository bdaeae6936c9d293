"""Experts on a CPU: of few tokens pair by pair, of many by lists."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.tvm import library
from edgeinfer.llm import Experts
from tests.backends.llm.small import CONFIG, batch, opened, weights

ROUTED = replace(
    CONFIG, layers=1, layer_rope=(0,), windows=(0,), experts=Experts(4, 2, 64, normalised=True)
)
IDS = [int(i) for i in np.random.default_rng(1).integers(0, ROUTED.vocab, 61)]


def test_lists_of_experts_change_no_bit(
    tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each matrix is read once for up to eight pairs; a row's bits are those of the pair alone."""
    pytest.importorskip("tvm")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("code for x86-64-v3 does not run here")
    from edgeinfer.convert.llm import variant
    from edgeinfer.convert.llm.pipeline import prepared
    from edgeinfer.convert.llm.reading import Reading
    from edgeinfer.convert.lower.tvm.machines import machine

    monkeypatch.setenv("EDGEINFER_CACHE", str(kernels))
    tensors = prepared(weights(ROUTED), "w4", 32)
    reading, where = Reading((1, 3), (2, 1), (256, 0)), machine("x86-64-v3")
    variant.write(ROUTED, tensors, where, tmp_path, reading=reading, caches=("float16",))
    for threads in (1, 2):
        executor, table = opened(tmp_path, ROUTED, threads=threads)
        whole = executor.step(batch(table, [(0, IDS, 0, len(IDS))])).copy()
        parts = [(sequence, IDS[:20], 0, 20) for sequence in (2, 3)]
        both = executor.step(batch(table, parts)).copy()
        single = np.concatenate(
            [executor.step(batch(table, [(1, [t], i, 1)])).copy() for i, t in enumerate(IDS)]
        )
        names = executor.profile(batch(table, [(0, IDS, 0, 1)])).keys()
        executor.close()
        assert np.isfinite(whole).all()
        assert np.array_equal(whole, single)
        assert np.array_equal(both, np.concatenate([whole[:20]] * 2))
        assert any(name.startswith("listed_gate") for name in names)
        assert not any(name.startswith("expert_gate") for name in names)
