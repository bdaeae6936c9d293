"""Every ONNX node case through passes, Core ML lowering and the evaluator: right or refused.

``python -m tests.conformance.test_coreml_nodes`` prints the table of docs/coreml.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from tests.conformance.node_worker import Case, golden, suite
from tests.conformance.tflite_table import is_eligible

WORKER = Path(__file__).parent / "coreml_worker.py"
ROOT = Path(__file__).parents[2]
SHARDS = 4
SAMPLE = 20
OUTCOMES = ("right", "refused", "wrong", "error", "unrunnable")
HELD = frozenset(
    {
        *("FLOAT", "FLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64"),
        *("UINT8", "UINT16", "UINT32", "UINT64"),
    }
)
"""Element types that travel in a package's fp32, fp16 and int32."""

Results = dict[str, str]


def run_cases(first: int, step: int, source: str = "suite") -> Results:
    """Run a share of the cases in a child process."""
    command = [sys.executable, str(WORKER), source, str(first), str(step)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
    return {line["name"]: line["ours"] for line in _json_lines(child.stdout) if "name" in line}


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


def is_held(case: Case) -> bool:
    """Whether a case is an operator on tensors that Core ML can hold, with a value to expect."""
    if not is_eligible(case):
        return False
    graph = case[1].graph
    kinds = [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)]
    return {onnx.TensorProto.DataType.Name(k) for k in kinds} <= HELD


def share_refused(results: Results) -> float:
    """The part of the cases with types that Core ML holds which is refused."""
    held = {c[0] for c in suite() if is_held(c)}
    found = [results[n] for n in held if n in results]
    return sum(f.startswith("refused") for f in found) / len(found)


def table(results: Results) -> str:
    """Return the Markdown table of the outcomes, and why cases are refused."""
    cases = {c[0]: c for c in suite()}
    groups = {
        "single operators on types that Core ML holds": [n for n in cases if is_held(cases[n])],
        "all cases": list(cases),
    }
    lines = [f"| cases | number | {' | '.join(OUTCOMES)} |", "|---" * (len(OUTCOMES) + 2) + "|"]
    for title, names in groups.items():
        counts = Counter(results[n].split(":")[0] for n in names if n in results)
        row = " | ".join(str(counts[o]) for o in OUTCOMES)
        lines.append(f"| {title} | {sum(counts.values())} | {row} |")
    refused = Counter(
        found.split(": ")[1]
        for name, found in results.items()
        if found.startswith("refused") and is_held(cases[name])
    )
    lines += ["", "| why one is refused | cases |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in refused.most_common()]
    return "\n".join(lines)


def whole(threads: int = 2) -> Results:
    """Run everything."""
    with ThreadPoolExecutor(threads) as pool:
        shards = pool.map(lambda first: run_cases(first, SHARDS), range(SHARDS))
        return {name: found for shard in shards for name, found in shard.items()}


def _needs_coremltools() -> None:
    if importlib.util.find_spec("coremltools") is None:
        pytest.skip("coremltools is not installed")


def test_sample_of_the_node_suite() -> None:
    _needs_coremltools()
    results = run_cases(0, SAMPLE)
    assert len(results) > 80
    assert faults(results) == []


def test_golden_cases() -> None:
    _needs_coremltools()
    results = run_cases(0, 1, "golden")
    assert len(results) == len(golden())
    assert faults(results) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_node_suite() -> None:
    _needs_coremltools()
    results = whole()
    assert len(results) > 1600
    assert faults(results) == []
    assert share_refused(results) <= 0.12


if __name__ == "__main__":
    found = whole()
    print(table(found))  # noqa: T201
    print("\n".join(faults(found)), file=sys.stderr)  # noqa: T201
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1, sort_keys=True), "utf-8")
