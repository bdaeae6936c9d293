"""Every ONNX node case through passes, Core ML lowering and the evaluator: right or listed refusal.

``python -m tests.conformance.test_coreml_nodes`` prints the totals; with ``--table`` it writes
docs/coreml-ops.md. What an interrupted run had done is kept in the folder that ``EDGEINFER_NODES``
names, as long as no source changes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conformance import coreml_table
from tests.conformance.node_worker import golden, suite
from tests.conformance.tflite_table import Results

WORKER = Path(__file__).parent / "coreml_worker.py"
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "coreml-ops.md"
MARK = "<!-- Written by python -m tests.conformance.test_coreml_nodes --table -->"
SOURCES = ("convert", "backends/coreml_reference", "tests/conformance", "tests/golden")
SHARDS = 48
SAMPLE = 48


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
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]
    return {line["name"]: line["ours"] for line in lines}


@contextmanager
def kept() -> Iterator[Path]:
    """The folder with what earlier runs of the very same sources have done, or an empty one."""
    base = os.environ.get("EDGEINFER_NODES")
    if not base:
        with tempfile.TemporaryDirectory() as empty:
            yield Path(empty)
        return
    digest = hashlib.sha256("".join(map(version, ("onnx", "coremltools", "numpy"))).encode())
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("*")):
            if file.suffix in (".py", ".onnx", ".npz"):
                digest.update(file.read_bytes())
    folder = Path(base, digest.hexdigest()[:16])
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def faults(results: Results) -> list[str]:
    """Return a line for every case that is neither right nor refused."""
    return [
        f"{name}: {found}"
        for name, found in sorted(results.items())
        if found.split(":")[0] not in ("right", "refused")
    ]


@cache
def whole(threads: int = 2) -> Results:
    """Run everything."""
    with kept() as folder, ThreadPoolExecutor(threads) as pool:
        shards = pool.map(lambda first: run_cases(first, SHARDS, folder), range(SHARDS))
        return {name: found for shard in shards for name, found in shard.items()}


def written(results: Results) -> str:
    """The document with its generated part made anew."""
    head = DOCUMENT.read_text("utf-8").partition(MARK)[0]
    return f"{head}{MARK}\n\n{coreml_table.document(results, suite())}"


def _needs_coremltools() -> None:
    if importlib.util.find_spec("coremltools") is None:
        pytest.skip("coremltools is not installed")


def test_sample_of_the_node_suite(tmp_path: Path) -> None:
    _needs_coremltools()
    results = run_cases(0, SAMPLE, tmp_path)
    assert len(results) > 35
    assert faults(results) == []


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_golden_cases(step: int, tmp_path: Path) -> None:
    _needs_coremltools()
    results = run_cases(0, step, tmp_path, "golden")
    assert len(results) == len(golden()[::step])
    assert faults(results) == []
    assert coreml_table.share_refused(results, list(results)) <= 0.12


@pytest.mark.parametrize("done", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupted_run_is_continued(done: int, tmp_path: Path) -> None:
    _needs_coremltools()
    names = [case[0] for case in golden()[0::30]]
    file = tmp_path / "golden-0-30.jsonl"
    kept = [json.dumps({"name": n, "ours": "kept"}) + "\n" for n in names[:done]]
    file.write_text("".join(kept) + '{"name": "bro')
    results = run_cases(0, 30, tmp_path, "golden")
    assert list(results) == names
    assert [n for n, found in results.items() if found == "kept"] == names[:done]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_node_suite() -> None:
    _needs_coremltools()
    results = whole()
    assert len(results) > 1600
    assert faults(results) == []
    rows = coreml_table.groups(suite())
    assert coreml_table.share_refused(results, rows["eligible"]) <= 0.12
    assert (
        coreml_table.share_refused(results, rows["every case on types that Core ML holds"]) <= 0.12
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_published_table_is_what_comes_out() -> None:
    _needs_coremltools()
    assert DOCUMENT.read_text("utf-8") == written(whole())


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="write docs/coreml-ops.md")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write the outcome of every case")
    given = parser.parse_args()
    results = whole(given.workers)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, sort_keys=True), "utf-8")
    if given.table:
        DOCUMENT.write_text(written(results), "utf-8")
    print("\n".join(coreml_table.totals(results, suite())))  # noqa: T201
    print("\n".join(faults(results)), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    _main()
