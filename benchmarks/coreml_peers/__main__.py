"""Our Core ML packages against those that others make of the same ONNX files, without a Mac.

    python -m benchmarks.coreml_peers [--json out.json] [--models PART] [--no-open]

onnx2coreml and onnxsim's export_coreml, each installed in an environment of its own, and this
project in a third one. All convert to iOS 17 in fp32; what they save is computed by the reference
evaluator and held against ONNX Runtime on the published file: models converted, wrong numbers,
files with open sizes that are right at two sizes, size of the install, CPU time, operations and
bytes.

A package that the evaluator refuses is its own gap and no fault of who wrote it: it is listed.
Times, operations and bytes are compared over models where both are right. Exits 1 if we are not
ahead in a column; each such is printed as BROKEN.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from benchmarks.coreml_peers.cases import CASES
from benchmarks.coreml_peers.rows import Row, measure
from benchmarks.coreml_peers.summary import broken, lines, table
from benchmarks.coreml_peers.tools import OURS, PEERS, size_mb


def main() -> int:
    """Measure, print, judge."""
    arguments = _arguments()
    cache = Path(arguments.cache)
    pythons = {t.name: t.install(cache / "environments") for t in (OURS, *PEERS)}
    sizes = {name: size_mb(python) for name, python in pythons.items()}
    rows: list[Row] = []
    # It takes an hour: whoever stops it sees what there is.
    with tempfile.TemporaryDirectory() as temporary, suppress(KeyboardInterrupt):
        for name, model in CASES.items():
            if not any(part in name for part in arguments.models.split(",")):
                continue
            row = measure(name, model, pythons, cache, Path(temporary), not arguments.no_open)
            rows.append(row)
            print("\n".join(lines(row)), flush=True)
    print(table(rows, sizes))
    found = broken(rows, sizes)
    print("\n".join(f"BROKEN {line}" for line in found) or "ahead in every column")
    if arguments.json:
        record = {
            "rows": [dataclasses.asdict(r) for r in rows],
            "sizes_mb": sizes,
            "broken": found,
        }
        Path(arguments.json).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return int(bool(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", default="", help="write all figures here")
    parser.add_argument(
        "--models", default="", help="only names with one of these parts, by commas"
    )
    parser.add_argument("--no-open", action="store_true", help="leave out files with open sizes")
    parser.add_argument("--cache", default=platformdirs.user_cache_dir("edgeinfer-peers"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
