"""Our Core ML packages against those that others make of the same ONNX files, without a Mac.

    python -m benchmarks.coreml_peers [--json out.json] [--models PART] [--no-open]
    python -m benchmarks.coreml_peers --from A.json B.json

onnx2coreml and onnxsim's export_coreml, each installed in a folder of its own, and what this
project's ``edgeinfer[apple]`` installs in a third one. All convert to iOS 17 in fp32; what they
save is computed by the reference evaluator and held against ONNX Runtime on the published file:
models converted, wrong numbers, files with open sizes that are right at two sizes, size of the
install, CPU time, operations and bytes.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from benchmarks.coreml_peers.cases import CASES
from benchmarks.coreml_peers.rows import Row, Side, measure
from benchmarks.coreml_peers.summary import broken, lines, table
from benchmarks.coreml_peers.tools import OURS, PEERS, Installed


def main() -> int:
    """Measure, print, judge."""
    arguments = _arguments()
    cache = Path(arguments.cache)
    environments = Path(arguments.environments or cache / "environments")
    there = {t.name: t.install(environments) for t in (OURS, *PEERS)}
    rows: list[Row] = [row for path in arguments.given for row in _read(Path(path))]
    if not arguments.given:
        rows = _measured(arguments, there, cache)
    print(table(rows, there))
    found = broken(rows, there)
    print("\n".join(f"BROKEN {line}" for line in found) or "ahead in every column")
    if arguments.json:
        _write(Path(arguments.json), rows, there, found)
    return int(bool(found))


def _measured(
    arguments: argparse.Namespace, there: Mapping[str, Installed], cache: Path
) -> list[Row]:
    rows: list[Row] = []
    # It takes an hour: whoever stops it sees what there is.
    with tempfile.TemporaryDirectory() as temporary, suppress(KeyboardInterrupt):
        asked = arguments.models.split(",")
        for name, model in CASES.items():
            if name not in asked and not any(a in name for a in asked if a not in CASES):
                continue
            row = measure(name, model, there, cache, Path(temporary), not arguments.no_open)
            rows.append(row)
            print("\n".join(lines(row)), flush=True)
            if arguments.json:
                _write(Path(arguments.json), rows, there, [])
    return rows


def _write(
    path: Path, rows: Sequence[Row], there: Mapping[str, Installed], found: Sequence[str]
) -> None:
    record = {
        "rows": [dataclasses.asdict(r) for r in rows],
        "sizes_mb": {n: (i.converts_mb, i.checks_mb) for n, i in there.items()},
        "broken": found,
    }
    path.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _read(path: Path) -> Iterator[Row]:
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        yield Row(row["model"], row["enough"], {n: Side(**s) for n, s in row["sides"].items()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", default="", help="write all figures here")
    parser.add_argument(
        "--models", default="", help="only names with one of these parts, by commas"
    )
    parser.add_argument("--no-open", action="store_true", help="leave out files with open sizes")
    parser.add_argument("--environments", default="", help="folder of installed tools")
    parser.add_argument(
        "--from", dest="given", nargs="+", default=[], help="figures of runs, by --json"
    )
    parser.add_argument("--cache", default=platformdirs.user_cache_dir("edgeinfer-peers"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
