"""ONNX node cases through passes, Core AI lowering and Apple's runtime: right or listed refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.node_worker import golden, suite
from tests.convert.lower.coreai.run import needs_coreai

WORKER = Path(__file__).parent / "coreai_worker.py"
ROOT = Path(__file__).parents[2]
SAMPLE = 180
SHARDS = 4

pytestmark = needs_coreai


def run_cases(first: int, step: int, folder: Path, source: str = "suite") -> dict[str, str]:
    """Run a share of the cases in a child process."""
    file = folder / f"{source}-{first}-{step}.jsonl"
    file.touch()
    command = [sys.executable, str(WORKER), source, str(first), str(step), str(file)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {line["name"]: line["ours"] for line in lines}


def faults(results: dict[str, str]) -> list[str]:
    """Return a line for every case that is neither right nor refused."""
    return [
        f"{name}: {found}"
        for name, found in sorted(results.items())
        if found.split(":")[0] not in ("right", "refused")
    ]


def test_sample_of_the_node_suite(tmp_path: Path) -> None:
    results = run_cases(0, SAMPLE, tmp_path)
    assert len(results) == len(suite()[::SAMPLE])
    assert faults(results) == []
    assert Counter(found.split(":")[0] for found in results.values())["right"] > len(results) / 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_golden_cases(tmp_path: Path) -> None:
    results = run_cases(0, 1, tmp_path, "golden")
    assert len(results) == len(golden())
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_whole_node_suite(shard: int, tmp_path: Path) -> None:
    results = run_cases(shard, SHARDS, tmp_path)
    assert len(results) > 1600 / SHARDS
    assert faults(results) == []
