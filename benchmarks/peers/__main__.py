"""Sessions of edgeinfer next to plain engines: right numbers first, then ratios by round.

    python -m benchmarks.peers [--long] [--models A,B] [--kinds fp32,int8] [--threads 1,2,4]
    python -m benchmarks.peers --from FILE.json... [--json OUT] [--html OUT] [--markdown OUT]

``make bench`` runs the short form, 15 minutes on two cores, and writes ``build/peers/bench.html``.
Each engine has an environment of its own, made once with what ``engines.toml`` pins (``--here``
takes what is installed in this one), and each run of it a process of its own. All get the same
ONNX file of fixed sizes and the same inputs. An engine whose numbers are wrong is shown as wrong
and not timed; one that cannot be installed is told. Engines take turns in random order: 3 ms that
do not count, then 12 ms or two calls, whose median does. Ours is ``edgeinfer.load(bundle,
threads=N).run(feeds)`` with its own choice, remembered from a load before.

Exits 1 where ours has wrong numbers or did not run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.overhead import machine
from benchmarks.peers import files, page, report
from benchmarks.peers.environments import OURS, Engine, engines, interpreters
from benchmarks.peers.race import Peer, PeerError, Row, race


def main() -> int:
    """Measure or read, print, write."""
    given = _arguments()
    if given.source:
        record = _merged([json.loads(Path(p).read_text(encoding="utf-8")) for p in given.source])
    else:
        record = _measured(given)
    rows, every = [Row.read(r) for r in record["rows"]], engines()
    for one in report.ranked(rows, every):
        mark = "LOSS " if one.is_loss else ""
        where = f"{one.row.model}, {one.row.kind}, {one.row.threads} threads"
        print(f"{mark}{where}: {one} of {every[one.other].title}")
    print("\n".join(map(str, report.headlines(rows, every))))
    for path, text in (
        (given.json, json.dumps(record, indent=1)),
        (given.html, page.page(record, every)),
        (given.markdown, report.markdown(record, every)),
    ):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    bad = [r for r in rows if r.results[OURS].state not in ("ran", "absent")]
    for row in bad:
        print(f"OURS {row.model}, {row.kind}, {row.threads}: {row.results[OURS].said}")
    return int(bool(bad))


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    folder = Path(given.folder).resolve()
    os.environ["EDGEINFER_CACHE"] = str(folder / "cache")
    chosen = _chosen(given)
    pythons = interpreters(chosen, None if given.here else folder / "environments")
    cores = sorted(os.sched_getaffinity(0))
    threads = [int(t) for t in given.threads.split(",")]
    names = given.models.split(",") if given.models else files.LONG if given.long else files.SHORT
    record: dict[str, Any] = {
        "machine": f"{machine()}, cores {','.join(map(str, cores))}, {platform.system()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python -m benchmarks.peers {' '.join(sys.argv[1:])}".strip(),
        "rounds": given.rounds,
        "versions": _versions(chosen, pythons),
        "rows": [],
    }
    for name in names:
        for kind in given.kinds.split(","):
            if kind == "int8" and name not in files.INT8:
                continue
            made = files.Files(name, kind, folder / "files", given.targets.split(","))
            for count in (t for t in threads if t <= len(cores)):
                row = race(made, chosen, pythons, cores, count, given.rounds)
                record["rows"].append(row.to_json())
                print(_line(row, chosen), flush=True)
                if given.json:
                    Path(given.json).write_text(json.dumps(record), encoding="utf-8")
    return record


def _chosen(given: argparse.Namespace) -> dict[str, Engine]:
    """The engines that were requested; ours always takes part."""
    names = given.engines.split(",") if given.engines else []
    return {
        name: engine
        for name, engine in engines().items()
        if name == OURS or (name in names if names else given.long or not engine.slow)
    }


def _line(row: Row, chosen: Mapping[str, Engine]) -> str:
    cells = [f"{name} {report.cell(row, name)}" for name in row.results]
    best = report.best_peer(row, chosen)
    return f"{row.model} {row.kind} {row.threads}: {', '.join(cells)}; {best or 'no peer ran'}"


def _versions(chosen: Mapping[str, Engine], pythons: Mapping[str, Path | str]) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for engine in chosen.values():
        python = pythons[engine.environment]
        if isinstance(python, str):
            continue
        for package in (*engine.packages, *engine.bare):
            name = package.split("==")[0]
            try:
                with Peer(python) as peer:
                    found |= peer.ask("versions", packages=[name])
            except PeerError:
                found[name] = "not installed"
    return found


def _merged(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Put records of the same machine together, run on cores apart."""
    first = records[0]
    rows = [row for record in records for row in record["rows"]]
    versions = {k: v for record in records for k, v in record["versions"].items()}
    if len(records) == 1:
        return first
    command = f"{first['command']}, and {len(records) - 1} more next to it on other cores"
    return {**first, "command": command, "versions": versions, "rows": rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="every model and engine")
    parser.add_argument("--models", default="", help="names, with commas between them")
    parser.add_argument("--engines", default="", help="tables of engines.toml, likewise")
    parser.add_argument("--kinds", default="fp32,int8")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--targets", default=",".join(files.targets()), help="of our bundles")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", default="build/peers", help="for environments and files")
    parser.add_argument("--here", action="store_true", help="make no environments")
    parser.add_argument("--from", dest="source", nargs="+", help="figures of earlier runs")
    parser.add_argument("--json", default="")
    parser.add_argument("--html", default="")
    parser.add_argument("--markdown", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
