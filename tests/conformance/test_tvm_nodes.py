"""ONNX node cases through passes, TVM lowering and the backend: right or refused.

``python -m tests.conformance.test_tvm_nodes`` prints how many are which, and why, and with
``--table`` writes docs/tvm-ops.md; ``EDGEINFER_NODES_MACHINE=sm_90`` has it do so on a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance import tvm_table
from tests.conformance.node_worker import suite

WORKER = Path(__file__).parent / "tvm_worker.py"
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "tvm-ops.md"
AGAIN = 75
"""As the worker has it."""
SHARDS = 8
SAMPLE = 200

Results = dict[str, str]


def run_cases(first: int, step: int, source: str = "suite") -> Results:
    """Run a share of the cases in child processes; one that ends counts as a crash."""
    results: Results = {}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    while True:
        command = [sys.executable, str(WORKER), source, *map(str, (first, step, len(results)))]
        child = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        name = ""
        for line in _json_lines(child.stdout):
            name = line.get("start", name)
            if "ours" in line:
                results[name] = line["ours"]
        if child.returncode == 0:
            return results
        if child.returncode == AGAIN:
            continue
        if not name or name in results:
            raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
        results[name] = f"crash: exit {child.returncode}"


def _json_lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def faults(results: Results) -> list[str]:
    """Return a line for every case that is neither right nor refused."""
    return [
        f"{name}: {found}"
        for name, found in sorted(results.items())
        if found.split(":")[0] not in ("right", "refused")
    ]


def _needs_tvm() -> None:
    if importlib.util.find_spec("tvm") is None:
        pytest.skip("apache-tvm is not installed")


def test_sample_of_the_node_suite() -> None:
    _needs_tvm()
    results = run_cases(0, SAMPLE)
    assert len(results) >= 5
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_golden_cases() -> None:
    _needs_tvm()
    results = run_cases(0, 1, "golden")
    assert len(results) > 60
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_whole_node_suite(shard: int) -> None:
    _needs_tvm()
    results = run_cases(shard, SHARDS)
    assert len(results) > 150
    assert faults(results) == []


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="shares of the suite at once")
    parser.add_argument("--results", type=Path, help="file of results: read if there, else written")
    parser.add_argument("--table", action="store_true", help="write docs/tvm-ops.md")
    given = parser.parse_args()
    if given.results and given.results.exists():
        found = tvm_table.read(given.results)
    else:
        with ThreadPoolExecutor(given.jobs) as pool:
            shares = pool.map(lambda first: run_cases(first, SHARDS), range(SHARDS))
            found = {name: outcome for share in shares for name, outcome in share.items()}
        if given.results:
            given.results.write_text(json.dumps(found), encoding="utf-8")
    print(Counter(o.split(":")[0] for o in found.values()))  # noqa: T201
    print(*faults(found), sep="\n")  # noqa: T201
    if given.table:
        tvm_table.replaced(DOCUMENT, tvm_table.NODES, tvm_table.nodes(found, suite()))
        return
    reasons = Counter(o.split(": ")[1] for o in found.values() if o.startswith("refused"))
    print(*(f"{count} {reason}" for reason, count in reasons.most_common()), sep="\n")  # noqa: T201


if __name__ == "__main__":
    _main()
