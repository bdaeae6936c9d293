from __future__ import annotations

import platform
from pathlib import Path

import pytest

from edgeinfer.backends.tvm import library


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Give one cache of kernels to all of a run: models share most of them."""
    base = tmp_path_factory.getbasetemp()
    made = (base if worker_id == "master" else base.parent) / "llm-kernels"
    made.mkdir(mode=0o700, exist_ok=True)
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Path:
    """A small decoder of several types of weights, compiled."""
    pytest.importorskip("tvm")
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("code for x86-64-v3 does not run here")
    from edgeinfer.convert.llm import compiled, variant
    from edgeinfer.convert.llm.reading import Reading
    from edgeinfer.convert.lower.tvm.machines import machine
    from tests.backends.llm.small import CONFIG, stored

    kinds = {"": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q4_1", "token_embd": "Q8_0"}
    place = tmp_path_factory.mktemp("llm")
    reading = Reading((1, 3), (2, 1), (256, 0))
    tensors = stored(CONFIG, kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_CACHE", str(kernels))
        # Other tests have the other cores, and a compiler imports TVM.
        patch.setattr(compiled, "_PROCESSES", 1)
        variant.write(CONFIG, tensors, machine("x86-64-v3"), place, reading=reading)
    return place
