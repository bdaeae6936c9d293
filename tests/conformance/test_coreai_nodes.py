"""ONNX node cases through passes, Core AI lowering and Apple's runtime: right or listed refusal.

``python -m tests.conformance.test_coreai_nodes --workers 8 --kept FOLDER`` prints the totals; with
``--table`` it writes them into docs/coreai.md. A run that was interrupted goes on in its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance import coreml_table
from tests.conformance.node_worker import golden, suite
from tests.conformance.tflite_table import Results
from tests.convert.lower.coreai.run import needs_coreai

WORKER = Path(__file__).parent / "coreai_worker.py"
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "coreai.md"
MARK = "<!-- Written by python -m tests.conformance.test_coreai_nodes --table -->"
SAMPLE = 180
SHARDS = 16

pytestmark = needs_coreai


def run_cases(first: int, step: int, folder: Path, source: str = "suite") -> Results:
    """Run a share of the cases in a child process, but for those that the folder has."""
    file = folder / f"{source}-{first}-{step}.jsonl"
    # The last line of a run that was killed is not complete.
    whole_lines, end, _ = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")
    file.write_bytes(whole_lines + end)
    command = [sys.executable, str(WORKER), source, str(first), str(step), str(file)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {line["name"]: line["ours"] for line in lines}


def faults(results: Results) -> list[str]:
    """Return a line for every case that is neither right nor refused."""
    return [
        f"{name}: {found}"
        for name, found in sorted(results.items())
        if found.split(":")[0] not in ("right", "refused")
    ]


def whole(workers: int, folder: Path) -> Results:
    """Run everything, in more parts than there are workers: some cases take long."""
    step = 2 * workers
    with ThreadPoolExecutor(workers) as pool:
        shards = pool.map(lambda first: run_cases(first, step, folder), range(step))
        return {name: found for shard in shards for name, found in shard.items()}


def table(results: Results) -> list[str]:
    """The totals, and what is said of how many cases that Core AI's types hold."""
    cases = suite()
    lines = [line.replace("Core ML", "Core AI") for line in coreml_table.totals(results, cases)]
    lines += ["", *coreml_table.refusals(results, cases)]
    return lines


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


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="write docs/coreai.md")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--kept", type=Path, required=True, help="folder of the outcomes")
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    results = whole(given.workers, given.kept)
    lines = table(results)
    if given.table:
        head = DOCUMENT.read_text("utf-8").partition(MARK)[0]
        DOCUMENT.write_text("\n".join([head + MARK, "", *lines, ""]), "utf-8")
    print("\n".join(lines))  # noqa: T201
    print("\n".join(faults(results)), file=sys.stderr)  # noqa: T201
    sys.exit(bool(faults(results)))


if __name__ == "__main__":
    _main()
