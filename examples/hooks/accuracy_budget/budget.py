"""Convert a model, measure every artifact on labelled data, and fail where one left its budget.

    python budget.py model.onnx photos/ --targets "cpu rpi5" --metric top1 --at-least 0.75

Exits with 1 where an artifact is below ``--at-least``, was not measured, or the model is refused.
In GitHub's workflows (``action.yml``) the table stands in the summary of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def edgeinfer(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a command; return its code and what it says."""
    command = [sys.executable, "-m", "edgeinfer", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {}
    return done.returncode, said


def table(rows: Sequence[dict[str, Any]], metric: str, least: float) -> str:
    """Write the measured artifacts as Markdown."""
    lines = [f"| artifact | engine | MB | {metric} | budget {least:g} |", "|---|---|---|---|---|"]
    for row in rows:
        quality = "not measured" if row["quality"] is None else f"{row['quality']:.4f}"
        verdict = "kept" if holds(row, least) else "**left**"
        size = f"{row['size_bytes'] / 1e6:.2f}"
        lines.append(f"| {row['variant']} | {row['backend']} | {size} | {quality} | {verdict} |")
    return "\n".join(lines)


def holds(row: dict[str, Any], least: float) -> bool:
    """Whether an artifact was measured and is good enough."""
    return row["quality"] is not None and row["quality"] >= least


def main() -> int:
    """Convert, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--targets", default="cpu")
    parser.add_argument("--metric", default="top1")
    parser.add_argument("--at-least", type=float, required=True)
    parser.add_argument("--options", default="")
    asked = parser.parse_args()
    targets = [word for target in asked.targets.split() for word in ("--target", target)]
    with tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "model.edge")
        options = shlex.split(asked.options)
        code, said = edgeinfer("convert", asked.model, *targets, *options, "-o", bundle)
        if code:
            sys.stderr.write(f"not converted: {said.get('message', f'exit {code}')}\n")
            return 1
        code, found = edgeinfer("eval", bundle, asked.data, "--metric", asked.metric)
    if "rows" not in found:
        sys.stderr.write(f"not measured: {found.get('message', f'exit {code}')}\n")
        return 1
    rows = found["rows"]
    missing = {v["id"] for v in said["variants"]} - {row["variant"] for row in rows}
    problems = [f"{row['variant']}: {row['problem']}" for row in rows if row["problem"]]
    problems += [f"{name}: no engine here runs it" for name in sorted(missing)]
    sys.stderr.writelines(f"not measured: {problem}\n" for problem in problems)
    page = table(rows, asked.metric, asked.at_least)
    sys.stdout.write(f"{page}\n")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(f"{page}\n")
    kept = all(holds(row, asked.at_least) for row in rows)
    return 0 if kept and not missing and not code else 1


if __name__ == "__main__":
    sys.exit(main())
