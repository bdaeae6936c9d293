"""ONNX node cases through passes, a lowering and its engine: right or listed refusal.

``python -m tests.conformance.nodes tflite`` prints the totals; with ``--table`` it writes the
target's document, with ``--operators Conv,Pad`` it takes the cases of these alone. What an
interrupted run had done is kept in the folder that ``EDGEINFER_NODES`` names, as long as no source
changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.conformance import coreml_table, tflite_table, tvm_table
from tests.conformance.lowered_worker import AGAIN
from tests.conformance.node_cases import SOURCES, Case
from tests.conformance.tflite_table import Results

WORKER = Path(__file__).parent / "lowered_worker.py"
ROOT = Path(__file__).parents[2]
DEPENDS_ON = ("convert", "backends", "tests/conformance", "tests/golden")
SHARDS = 16


@dataclass(frozen=True)
class Document:
    """The published outcome of a target's node cases.

    Attributes:
        path: The document.
        engine: The engine's package, without which nothing runs.
        text: Returns the generated part.
        totals: Returns the first table.
    """

    path: Path
    engine: str
    text: Callable[[Results, list[Case]], str]
    totals: Callable[[Results, list[Case]], list[str]]


DOCUMENTS = {
    "tflite": Document(
        ROOT / "docs" / "tflite-ops.md",
        "ai_edge_litert",
        tflite_table.document,
        tflite_table.totals,
    ),
    "coreml": Document(
        ROOT / "docs" / "coreml-ops.md", "coremltools", coreml_table.document, coreml_table.totals
    ),
    "coreai": Document(
        ROOT / "docs" / "coreai.md", "coreai", coreml_table.short, coreml_table.totals
    ),
    "tvm": Document(ROOT / "docs" / "tvm-ops.md", "tvm", tvm_table.nodes, tflite_table.totals),
}


def mark(target: str) -> str:
    """Return the line that the generated part of a document follows."""
    return f"<!-- Written by python -m tests.conformance.nodes {target} --table -->"


def run_cases(
    target: str,
    first: int,
    step: int,
    folder: Path,
    source: str = "suite",
    operators: Sequence[str] = (),
) -> Results:
    """Run a share of the cases in child processes, but for those whose outcome the folder has."""
    file = folder / f"{target}-{source}-{first}-{step}.jsonl"
    # The last line of a run that was killed is not complete.
    whole_lines, end, _ = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")
    file.write_bytes(whole_lines + end)
    command = [sys.executable, str(WORKER), target, source, str(first), str(step), str(file)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    while True:
        child = subprocess.run(
            [*command, *operators], capture_output=True, text=True, env=environment, check=False
        )
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if child.returncode == 0:
            return {line["name"]: line["ours"] for line in lines if "ours" in line}
        if child.returncode == AGAIN:
            continue
        if not lines or "ours" in lines[-1]:
            raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
        ended = {"name": lines[-1]["name"], "ours": f"crash: exit {child.returncode}"}
        with file.open("a", encoding="utf-8") as answers:
            print(json.dumps(ended), file=answers)


@contextmanager
def kept() -> Iterator[Path]:
    """The folder with what earlier runs of the very same sources have done, or an empty one."""
    base = os.environ.get("EDGEINFER_NODES")
    if not base:
        with tempfile.TemporaryDirectory() as empty:
            yield Path(empty)
        return
    digest = hashlib.sha256("".join(map(version, ("onnx", "numpy"))).encode())
    for source in DEPENDS_ON:
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


def whole(
    target: str, source: str = "suite", workers: int = 2, operators: Sequence[str] = ()
) -> Results:
    """Run everything, in more parts than there are workers: some cases take long."""
    shards = 1 if operators else SHARDS
    with kept() as folder, ThreadPoolExecutor(workers) as pool:
        parts = pool.map(
            lambda first: run_cases(target, first, shards, folder, source, operators),
            range(shards),
        )
        return {name: found for part in parts for name, found in part.items()}


def written(target: str, results: Results) -> str:
    """The document with its generated part made anew."""
    document = DOCUMENTS[target]
    made = document.text(results, SOURCES["suite"]())
    return tvm_table.replaced(document.path.read_text("utf-8"), mark(target), made)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=list(DOCUMENTS))
    parser.add_argument("--source", default="suite", choices=list(SOURCES))
    parser.add_argument("--operators", default="", help="names, with commas between")
    parser.add_argument("--table", action="store_true", help="write the target's document")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write the outcome of every case")
    given = parser.parse_args()
    named = [name for name in given.operators.split(",") if name]
    results = whole(given.target, given.source, given.workers, named)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, sort_keys=True), "utf-8")
    if given.table:
        text = written(given.target, results)
        DOCUMENTS[given.target].path.write_text(text, "utf-8")
    if given.source == "suite" and not named:
        print("\n".join(DOCUMENTS[given.target].totals(results, SOURCES["suite"]())))  # noqa: T201
    else:
        print(f"right: {sum(r == 'right' for r in results.values())} of {len(results)}")  # noqa: T201
        refused = [f"{n}: {r}" for n, r in sorted(results.items()) if r.startswith("refused")]
        print("\n".join(refused))  # noqa: T201
    print("\n".join(faults(results)), file=sys.stderr)  # noqa: T201
    sys.exit(bool(faults(results)))


if __name__ == "__main__":
    _main()
