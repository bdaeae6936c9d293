"""Steps of compiled code on 64-bit Arm, emulated, against the definition in float32."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.process.emulator import Emulator, emulator
from edgeinfer.convert.llm.adapters import with_adapter
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import NotAvailableError
from edgeinfer.types import Array
from tests.backends.llm.small import CONFIG, stored
from tests.backends.llm.test_adapters import adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KINDS = {"": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q4_1", "token_embd": "Q8_0"}
IDS = [int(i) for i in np.random.default_rng(1).integers(0, CONFIG.vocab, 72)]

RUN = """
import json, sys
from pathlib import Path
import numpy as np
from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.llm.step import StepBatch
folder, ids = Path(sys.argv[1]), json.loads(sys.argv[2])
for kind in ("float32", "float16", "uint8", "uint4"):
    executor = open_executor(folder, ExecutorSizes(6, 96, 1, 96, kind, 2))
    table, count = np.arange(6, dtype=np.int32)[None, ::-1].copy(), len(ids)

    def step(first, end, adapter=-1):
        at = np.arange(first, end, dtype=np.int32)
        owner, rows = np.zeros(end - first, np.int32), np.arange(end - first, dtype=np.int32)
        tokens, which = np.array(ids[first:end], np.int32), np.full(end - first, adapter, np.int32)
        return executor.step(StepBatch(tokens, at, owner, table, rows, which))

    whole = step(0, count).copy()
    parts = [step(a, b).copy() for a, b in ((0, 1), (1, 30), (30, 33), (33, count))]
    assert np.array_equal(whole, np.concatenate(parts)), kind
    np.save(folder / f"{kind}.npy", whole)
    np.save(folder / f"{kind}-adapter.npy", step(0, count, 0))
    executor.close()
"""


@pytest.mark.parametrize("name", ["cortex-a76", "neoverse-v1"])
def test_logits_under_emulation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    if shutil.which(machine(name).linker) is None:
        pytest.skip(f"needs {machine(name).linker}")
    try:
        arm = emulator(machine(name).arch, name)
    except NotAvailableError as e:
        pytest.skip(str(e))
    from edgeinfer.convert.llm import variant
    from edgeinfer.convert.llm.reading import Reading

    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    tensors, folder = stored(CONFIG, KINDS), tmp_path / "made"
    folder.mkdir()
    reading = Reading((1, 2), (2, 1), (256, 0))
    caches = ("float32", "float16", "uint8", "uint4")
    added = adapter(CONFIG, 5, 1)
    variant.write(
        *(CONFIG, tensors, machine(name), folder),
        reading=reading,
        caches=caches,
        adapters={"added": added},
    )
    _run(arm, folder)
    merged = Oracle(CONFIG, with_adapter(tensors, added)).logits([np.array(IDS)])[0]
    assert _error(np.load(folder / "float32-adapter.npy"), merged) < 0.05
    right = Oracle(CONFIG, tensors).logits([np.array(IDS)])[0]
    for kind, most in (("float32", 0.05), ("float16", 0.05), ("uint8", 0.07)):
        assert _error(np.load(folder / f"{kind}.npy"), right) < most
    assert np.isfinite(np.load(folder / "uint4.npy")).all()


def _error(found: Array, right: Array) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


def _run(arm: Emulator, folder: Path) -> None:
    command = [*arm.command, "-c", RUN, str(folder), json.dumps(IDS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(arm.environment)
    )
    assert done.returncode == 0, done.stderr[-2000:]
