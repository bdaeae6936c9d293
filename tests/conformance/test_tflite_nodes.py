"""Every ONNX node case through passes, TFLite lowering and LiteRT: right value or listed refusal.

``python -m tests.conformance.test_tflite_nodes`` prints the totals; with ``--table`` it writes
docs/tflite-ops.md, with ``--json PATH`` the outcome of every case.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from tests.conformance import tflite_table
from tests.conformance.node_worker import golden, suite
from tests.conformance.tflite_table import Results

WORKER = Path(__file__).parent / "tflite_worker.py"
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "tflite-ops.md"
MARK = "<!-- Written by python -m tests.conformance.test_tflite_nodes --table -->"
SHARDS = 4
SAMPLE = 24


def run_cases(first: int, step: int, source: str = "suite") -> Results:
    """Run a share of the cases in child processes; an abort costs one case."""
    results: Results = {}
    done = 0
    while True:
        command = [sys.executable, str(WORKER), source, *map(str, (first, step, done))]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        child = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        current = ""
        for line in _json_lines(child.stdout):
            if "start" in line:
                current = line["start"]
                done += 1
            else:
                results[line["name"]] = line["ours"]
                current = ""
        if child.returncode == 0:
            return results
        if not current:
            raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
        results[current] = f"aborted: exit {child.returncode}"


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


@cache
def whole(source: str = "suite", threads: int = 2) -> Results:
    """Run everything."""
    with ThreadPoolExecutor(threads) as pool:
        shards = pool.map(lambda first: run_cases(first, SHARDS, source), range(SHARDS))
        return {name: found for shard in shards for name, found in shard.items()}


def written(results: Results) -> str:
    """The document with its generated part made anew."""
    head = DOCUMENT.read_text("utf-8").partition(MARK)[0]
    return f"{head}{MARK}\n\n{tflite_table.document(results, suite())}"


def _needs_litert() -> None:
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("ai_edge_litert is not installed")


def test_sample_of_the_node_suite() -> None:
    _needs_litert()
    results = run_cases(0, SAMPLE)
    assert len(results) > 70
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_node_suite() -> None:
    _needs_litert()
    results = whole()
    assert len(results) > 1600
    assert faults(results) == []
    rows = tflite_table.groups(suite())
    assert (
        tflite_table.share(results, rows["mobile operators, float32, int32, int64, bool"]) >= 0.95
    )
    assert tflite_table.share(results, rows["eligible"]) >= 0.95
    assert tflite_table.share(results, rows["single operators on tensors of any type"]) >= 0.80


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_published_table_is_what_comes_out() -> None:
    _needs_litert()
    assert DOCUMENT.read_text("utf-8") == written(whole())


def test_golden_cases() -> None:
    """Awkward cases that several engines agreed on."""
    _needs_litert()
    results = whole("golden")
    assert len(results) == len(golden())
    assert faults(results) == []
    assert tflite_table.share(results, results) >= 0.90


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_older_versions_of_operators() -> None:
    """Models of old exporters, and cases of the suite in each older version of their operator."""
    _needs_litert()
    results = whole("old")
    assert faults(results) == []
    back = [n for n in results if "@" in n]
    assert len(back) > 80
    assert tflite_table.share(results, back) >= 0.90


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="write docs/tflite-ops.md")
    parser.add_argument("--json", type=Path, help="write the outcome of every case")
    parser.add_argument("--source", default="suite", choices=["suite", "golden", "old"])
    given = parser.parse_args()
    results = whole(given.source)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, sort_keys=True), "utf-8")
    if given.table:
        DOCUMENT.write_text(written(results), "utf-8")
    if given.source == "suite":
        print("\n".join(tflite_table.totals(results, suite())))  # noqa: T201
    else:
        print(f"right: {sum(r == 'right' for r in results.values())} of {len(results)}")  # noqa: T201
        refused = [f"{n}: {r}" for n, r in sorted(results.items()) if r.startswith("refused")]
        print("\n".join(refused))  # noqa: T201
    print("\n".join(faults(results)), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    _main()
