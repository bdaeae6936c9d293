"""What choosing by measurement costs against the best engine picked by hand.

    python -m benchmarks.selection [--models A,B] [--bundles DIR] [--make] [--bound] [--json FILE]
    python -m benchmarks.selection --summary FILE.json...

Each model is converted for ONNX Runtime, OpenVINO, LiteRT and TVM, where these are installed; with
``--bundles`` the bundles are kept in a folder, and ``--make`` only makes them. With 1 and with 2
threads a bundle is loaded as a user does, with an empty history, and what was chosen is raced
against every engine loaded by name. They run in turns of some milliseconds, the first run of each
turn not counted: a user's engine runs again and again, and its weights are in the cache. Regret is
how much slower the choice is than the fastest, median over pairs of turns; two loads of one engine
differ by what the machine does meanwhile, so a choice that *is* the fastest engine has no regret.
Exits 1 when the median regret of all races is above 3 %, or that of one race is above 3 % beyond
what the race itself can tell.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import platformdirs

import edgeinfer
from benchmarks.tflite_peers.models import MODELS
from edgeinfer.backends import registry
from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.choice import Calls
from edgeinfer.runtime.profiledb import ProfileDB

LIMIT = 0.03
TURN_S = 5e-3
SLOW = 5.0
"""Times the fastest above which an engine gets one turn only: who is the fastest is clear."""

TARGETS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "rpi4",
    "tvm": "tvm-x86-64-v3",
}
NAMES = (
    *("wake-alexa", "wake-embedding", "silero-vad-16k-op15", "basic-pitch", "ppocr-cls"),
    *("ppocrv4-det", "ppocrv4-rec", "blazeface-front", "mtcnn-rnet-torchscript", "magika"),
    *("crepe-tiny-torchscript", "aecmos-1663829550", "dnsmos-sig", "minilm-torchscript"),
    *("efficientnet-lite0-torchscript", "mobilenet-v2-torchscript"),
)
"""Published weights but for the last one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one number of threads.

    Attributes:
        model: its name.
        threads: of the engines.
        chosen: backend that the load took.
        reasons: what the ranking said of each candidate.
        ms: median of each backend, raced in turns.
        regret: how much slower the choice is than the fastest.
        noise: error of the regret, three deviations.
        turns: pairs of turns that say so.
        load_s: of the first load, measurements included.
        absent: why a backend takes no part.
    """

    model: str
    threads: int
    chosen: str
    reasons: list[str]
    ms: dict[str, float]
    regret: float
    noise: float
    turns: int
    load_s: float
    absent: dict[str, str]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="", help="only names with one of these parts")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each race")
    parser.add_argument("--bundles", default="", help="folder to keep bundles in")
    parser.add_argument("--make", action="store_true", help="make bundles, measure nothing")
    parser.add_argument("--bound", action="store_true", help="call over bound buffers")
    parser.add_argument("--without", default="", help="leave this engine out")
    parser.add_argument("--json", default="", help="write all figures here")
    parser.add_argument("--summary", nargs="+", default=[], help="judge what was written before")
    arguments = parser.parse_args()
    if arguments.summary:
        found = [Row(**r) for file in arguments.summary for r in json.loads(Path(file).read_text())]
        for row in found:
            print(_line(row))
        return _judged(found)
    names = [n for n in NAMES if any(part in n for part in arguments.models.split(","))]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.bundles or temporary)
        for name in names:
            bundle = make(name, folder, arguments.without)
            if arguments.make:
                continue
            for threads in (1, 2):
                rows.append(race(name, bundle, threads, arguments.seconds, arguments.bound))
                print(_line(rows[-1]), flush=True)
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return _judged(rows) if rows else 0


def _judged(rows: list[Row]) -> int:
    regrets = [row.regret for row in rows]
    middle = statistics.median(regrets)
    hits = sum(not regret for regret in regrets)
    models = len({row.model for row in rows})
    print(
        f"machine: {platform.machine()}; {models} models, {len(rows)} races, "
        f"{hits} took the fastest engine"
    )
    print(
        f"regret: median {middle:.1%}, mean {statistics.mean(regrets):.1%}, max {max(regrets):.1%}"
    )
    loads = [row.load_s for row in rows]
    print(f"first load: median {statistics.median(loads):.1f} s, longest {max(loads):.1f} s")
    broken = [row for row in rows if row.regret > LIMIT + row.noise]
    for row in broken:
        print(f"BROKEN {row.model} with {row.threads} threads: regret {row.regret:.1%}")
    return int(bool(broken) or middle > LIMIT)


def make(name: str, folder: Path, without: str = "") -> Path:
    """Convert a model for every engine, unless that was done; absent ones stand beside it."""
    bundle, told = folder / f"{name}.edge", folder / f"{name}.json"
    if bundle.exists():
        return bundle
    source = MODELS[name].prepare(Path(platformdirs.user_cache_dir("edgeinfer-peers")) / "models")
    absent = {without: "left out as asked"} if without else {}
    targets = {}
    folder.mkdir(parents=True, exist_ok=True)
    for backend, target in TARGETS.items():
        probe = registry.get(backend).probe()
        if not probe.available:
            absent[backend] = probe.reason
        elif backend != without:
            targets[backend] = target
    start = time.perf_counter()
    try:
        edgeinfer.export(source, bundle, targets=list(targets.values()))
    except EdgeInferError:
        for backend, target in list(targets.items()):
            if problem := _refusal(source, target):
                absent[backend] = problem
                del targets[backend]
        edgeinfer.export(source, bundle, targets=list(targets.values()))
    told.write_text(json.dumps(absent))
    print(f"{name}: made in {time.perf_counter() - start:.0f} s, absent {absent}", flush=True)
    return bundle


def _refusal(source: Path, target: str) -> str:
    """Why a model cannot be had for a target; empty if it can."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            edgeinfer.export(source, Path(temporary) / "one.edge", targets=[target])
        except EdgeInferError as error:
            return " ".join(str(error).split())
    return ""


def race(name: str, bundle: Path, threads: int, seconds: float, bound: bool) -> Row:
    """Let the runtime choose, then race its choice against every engine."""
    absent = json.loads(bundle.with_suffix(".json").read_text())
    with tempfile.TemporaryDirectory() as temporary, ProfileDB(Path(temporary) / "h") as history:
        calls: Calls = "bind" if bound else "run"
        start = time.perf_counter()
        with edgeinfer.load(bundle, threads=threads, history=history, calls=calls) as session:
            report = session.report()
            load_s = time.perf_counter() - start
        sessions = {}
        for backend in TARGETS:
            if backend in absent:
                continue
            try:
                sessions[backend] = edgeinfer.load(
                    *(bundle,), threads=threads, history=history, backend=backend, calls=calls
                )
            except EdgeInferError as error:
                absent[backend] = str(error).splitlines()[0]
        feeds = _feeds(bundle)
        took = _race({b: _call(s, feeds, bound) for b, s in sessions.items()}, seconds)
        for each in sessions.values():
            each.close()
    medians = {backend: statistics.median(times) * 1e3 for backend, times in took.items()}
    chosen, best = report.backend, min(medians, key=medians.__getitem__)
    ratios = [a / b - 1 for a, b in zip(took[chosen], took[best], strict=False)]
    regret = statistics.median(ratios)
    spread = statistics.median(abs(r - regret) for r in ratios)
    noise = 3 * 1.25 * 1.4826 * spread / math.sqrt(len(ratios))
    if chosen == best:
        regret = noise = 0.0
    reasons = [f"{c.pair}: {c.reason}" for c in report.candidates]
    reasons += [str(r) for r in report.rejected]
    return Row(
        *(name, threads, chosen, reasons, medians, max(regret, 0.0), noise, len(ratios)),
        load_s=load_s,
        absent=absent,
    )


def _feeds(bundle: Path) -> dict[str, np.ndarray]:
    """Inputs of the first vector."""
    with Bundle.open(bundle, verify=False) as opened:
        feeds, _ = next(opened.vectors())
    return {name: np.ascontiguousarray(array) for name, array in feeds.items()}


def _call(
    session: edgeinfer.Session, feeds: dict[str, np.ndarray], bound: bool
) -> Callable[[], object]:
    if not bound:
        return lambda: session.run(feeds)
    outputs = {name: np.empty_like(array) for name, array in session.run(feeds).items()}
    return session.bind(feeds, outputs)


def _race(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Time every engine in turns; return seconds of a run, one figure a turn."""
    first = {}
    for backend, call in calls.items():
        call()
        first[backend] = min(_seconds(call, 1) for _ in range(4))
    quickest = min(first.values())
    sizes = {b: min(max(1, int(TURN_S / max(s, 1e-9))), 1000) for b, s in first.items()}
    took: dict[str, list[float]] = {b: [s] for b, s in first.items()}
    alive = [b for b, s in first.items() if s <= max(SLOW * quickest, quickest + 2e-4)]
    for backend in alive:
        took[backend].clear()
    until = time.perf_counter() + seconds
    for turn in _turns(until):
        at = turn % len(alive)
        for backend in [*alive[at:], *alive[:at]]:
            call = calls[backend]
            call()
            took[backend].append(_seconds(call, sizes[backend]))
    return took


def _turns(until: float) -> Iterator[int]:
    turn = 0
    while turn < 9 or time.perf_counter() < until:
        yield turn
        turn += 1


def _seconds(call: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def _line(row: Row) -> str:
    figures = "  ".join(f"{backend} {ms:.4g}" for backend, ms in row.ms.items())
    lost = "".join(f"  no {backend}: {why[:80]}" for backend, why in row.absent.items())
    return (
        f"{row.model:32} {row.threads} thr  {row.chosen:12} regret {row.regret:5.1%} "
        f"±{row.noise:.1%} (n {row.turns})  load {row.load_s:.1f} s  ms: {figures}{lost}"
    )


if __name__ == "__main__":
    sys.exit(main())
