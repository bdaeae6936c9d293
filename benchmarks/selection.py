"""What choosing by measurement costs against the best engine picked by hand.

    python -m benchmarks.selection [--models A,B] [--bundles DIR] [--make] [--bound] [--json FILE]
    python -m benchmarks.selection --summary FILE.json...

Each model is converted for ONNX Runtime, OpenVINO, LiteRT and TVM, where these are installed; with
``--bundles`` the bundles are kept in a folder, and ``--make`` only makes them. With 1 and with 2
threads a bundle is loaded as a user does, with an empty history, three times; each time the very
session that the load returned races against every engine loaded by name, in turns of some
milliseconds, the first runs of each turn not counted: a user's engine runs again and again, its
weights in the cache and its workers awake.

Instances of one engine differ, and a machine is not the same for minutes: of a virtual one, cores
move closer together and apart. So an engine picked by hand is what three instances of it are, each
next to a load of its own: how much slower the chosen session is, median over pairs of turns, then
median of the three. Regret is that against the engine where it is the most; a choice that *is* the
engine has none against it, and how its session compares with another instance is distinguished, as
luck. A load counts where the same engine is the best by hand before and after it; where not, the
machine changed meanwhile, and it is repeated, as often as loads are requested. Three loads say
little where engines are close and their instances are not alike, so what is over the limit after
three is loaded three or six times more and judged by all of them.

Exits 1 when the median regret of all races is above 3 %, or that of one race is above 3 % beyond
what the race itself can tell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

import edgeinfer
from benchmarks.tflite_peers.models import MODELS
from edgeinfer.backends import registry
from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.options import Calls
from edgeinfer.runtime.profiledb import ProfileDB

LIMIT = 0.03
TURN_S, BEFORE_S = 5e-3, 1e-3
"""Seconds of a turn that count, and of those before them that do not."""
LOADS = 3
MORE = 3
"""Times as many loads where these say that the limit is passed."""

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
    *("mtcnn-onet-torchscript", "plcmos-v2", "dnsmos-v8", "wake-melspectrogram"),
    *("efficientnet-lite0-torchscript", "mobilenet-v2-torchscript"),
)
"""Published weights but for the last one."""


@dataclass(frozen=True, slots=True)
class Against:
    """A session that was chosen, next to an engine picked by hand.

    Attributes:
        ratio: how many times as long the session takes, median over pairs of turns.
        noise: error of that, three deviations.
    """

    ratio: float
    noise: float


@dataclass(frozen=True, slots=True)
class Load:
    """One load, and what became of it.

    Attributes:
        chosen: backend that it took.
        seconds: that it took, measurements included.
        ms: median of each backend picked by hand, and of the session under ``""``.
        against: the session next to each of them.
        turns: pairs of turns that say so.
    """

    chosen: str
    seconds: float
    ms: dict[str, float]
    against: dict[str, Against]
    turns: int


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one number of threads.

    Attributes:
        model: its name.
        threads: of the engines.
        reasons: what the ranking of the first load said of each candidate.
        loads: one after the other.
        absent: why a backend takes no part.
        changed: loads that do not count, because the machine changed meanwhile.
    """

    model: str
    threads: int
    reasons: list[str]
    loads: list[Load]
    absent: dict[str, str]
    changed: int = 0

    @classmethod
    def read(cls, text: dict[str, Any]) -> Row:
        """Make one of what was written as JSON."""
        loads = [
            Load(**{**load, "against": {k: Against(**a) for k, a in load["against"].items()}})
            for load in text["loads"]
        ]
        return cls(**{**text, "loads": loads})

    @property
    def chosen(self) -> str:
        """The backend that most loads took."""
        return Counter(load.chosen for load in self.loads).most_common(1)[0][0]

    @property
    def regret(self) -> tuple[float, float]:
        """How much slower what was chosen is than the best engine picked by hand; and the error."""
        worst = (0.0, 0.0)
        for backend in self.loads[0].against:
            beside = [
                Against(1.0, 0.0) if load.chosen == backend else load.against[backend]
                for load in self.loads
                if backend in load.against
            ]
            ratio = statistics.median(a.ratio for a in beside)
            noise = statistics.median(a.noise for a in beside)
            worst = max(worst, (ratio - 1, noise))
        return worst

    @property
    def luck(self) -> float:
        """How much slower the sessions are than other instances of their engines."""
        own = [load.against[load.chosen].ratio for load in self.loads]
        return statistics.median(own) - 1

    @property
    def ms(self) -> dict[str, float]:
        """Median of each backend, over its instances."""
        names = [name for name in self.loads[0].ms if name]
        seen = {n: [load.ms[n] for load in self.loads if n in load.ms] for n in names}
        return {name: statistics.median(each) for name, each in seen.items()}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="", help="only names with one of these parts")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each race")
    parser.add_argument("--loads", type=int, default=LOADS, help="of each bundle, and races")
    parser.add_argument("--bundles", default="", help="folder to keep bundles in")
    parser.add_argument("--make", action="store_true", help="make bundles, measure nothing")
    parser.add_argument("--bound", action="store_true", help="call over bound buffers")
    parser.add_argument("--without", default="", help="leave this engine out")
    parser.add_argument("--json", default="", help="write all figures here")
    parser.add_argument("--summary", nargs="+", default=[], help="judge what was written before")
    arguments = parser.parse_args()
    if arguments.summary:
        texts = [Path(file).read_text() for file in arguments.summary]
        found = [Row.read(row) for text in texts for row in json.loads(text)]
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
                how = How(threads, arguments.seconds, arguments.loads, arguments.bound)
                rows.append(race(name, bundle, how))
                print(_line(rows[-1]), flush=True)
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return _judged(rows) if rows else 0


def _judged(rows: list[Row]) -> int:
    regrets = [row.regret[0] for row in rows]
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
    lucks = sorted(row.luck for row in rows)
    print(f"luck of the instances kept: {lucks[0]:.1%} to {lucks[-1]:.1%}")
    loads = [row.loads[0].seconds for row in rows]
    print(f"first load: median {statistics.median(loads):.1f} s, longest {max(loads):.1f} s")
    changed = sum(row.changed for row in rows)
    print(f"loads repeated because the machine changed meanwhile: {changed}")
    lacking = {row.model for row in rows if row.absent}
    print(f"all engines run in {models - len(lacking)} models")
    broken = [row for row in rows if row.regret[0] > LIMIT + row.regret[1]]
    for row in broken:
        print(f"BROKEN {row.model} with {row.threads} threads: regret {row.regret[0]:.1%}")
    return int(bool(broken) or middle > LIMIT)


def make(name: str, folder: Path, without: str = "") -> Path:
    """Convert a model for every engine, unless that was done; absent ones stand next to it."""
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


@dataclass(frozen=True, slots=True)
class How:
    """Threads of the engines, seconds of each race, how many loads, and how engines are called."""

    threads: int
    seconds: float
    loads: int = LOADS
    bound: bool = False


def race(name: str, bundle: Path, how: How) -> Row:
    """Let the runtime choose, and race its choice against every engine; more than once."""
    absent = json.loads(bundle.with_suffix(".json").read_text())
    loads: list[Load] = []
    reasons: list[str] = []
    changed = 0
    before = _raced(bundle, how, absent)
    row = Row(name, how.threads, reasons, loads, absent)
    while len(loads) < how.loads or (len(loads) < MORE * how.loads and _is_over(row, how.loads)):
        with tempfile.TemporaryDirectory() as temporary, ProfileDB(Path(temporary) / "h") as kept:
            start = time.perf_counter()
            with _load(bundle, how, history=kept) as session:
                seconds = time.perf_counter() - start
                report = session.report()
                for other in report.rejected:
                    absent.setdefault(other.backend, other.reason)
                took = _raced(bundle, how, absent, session)
        if not reasons:
            reasons += [f"{c.pair}: {c.reason}" for c in report.candidates]
            reasons += map(str, report.rejected)
        if _has_changed(before, took) and changed < how.loads:
            changed += 1
        else:
            loads.append(
                Load(
                    chosen=report.backend,
                    seconds=seconds,
                    ms={b: statistics.median(times) * 1e3 for b, times in took.items()},
                    against={b: _against(took[""], times) for b, times in took.items() if b},
                    turns=len(took[""]),
                )
            )
        before = took
    return replace(row, changed=changed)


def _is_over(row: Row, each: int) -> bool:
    """Whether the loads so far pass the limit; asked after every so many of them."""
    return len(row.loads) % each != 0 or row.regret[0] > LIMIT


def _load(bundle: Path, how: How, **options: Any) -> edgeinfer.Session:
    calls: Calls = "bind" if how.bound else "run"
    return edgeinfer.load(bundle, threads=how.threads, calls=calls, **options)


def _raced(
    bundle: Path, how: How, absent: dict[str, str], chosen: edgeinfer.Session | None = None
) -> dict[str, list[float]]:
    """Race engines picked by hand, each opened for this; the chosen one is ``""``.

    What does not load or run is added to the absent.
    """
    feeds = _feeds(bundle)
    with contextlib.ExitStack() as open_ones:
        calls = {} if chosen is None else {"": _call(chosen, feeds, how.bound)}
        for backend in TARGETS:
            if backend in absent:
                continue
            try:
                session = _load(bundle, how, backend=backend, measure=False)
                call = _call(open_ones.enter_context(session), feeds, how.bound)
                call()
            except EdgeInferError as error:
                absent[backend] = str(error).splitlines()[0]
            else:
                calls[backend] = call
        return _race(calls, how.seconds)


def _has_changed(before: dict[str, list[float]], after: dict[str, list[float]]) -> bool:
    """Whether another engine is the best than was before the load: the machine, not the choice."""
    was, now = (
        {b: statistics.median(times) for b, times in took.items() if b and b in after}
        for took in (before, after)
    )
    one, other = min(was, key=was.__getitem__), min(now, key=now.__getitem__)
    return was[other] > was[one] * (1 + LIMIT) and now[one] > now[other] * (1 + LIMIT)


def _against(chosen: list[float], other: list[float]) -> Against:
    ratios = [a / b for a, b in zip(chosen, other, strict=False)]
    middle = statistics.median(ratios)
    spread = statistics.median(abs(r - middle) for r in ratios)
    return Against(middle, 3 * 1.25 * 1.4826 * spread / math.sqrt(len(ratios)))


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
    order = random.Random(0)
    for _ in _turns(until):
        for backend in order.sample(alive, len(alive)):
            call = calls[backend]
            _seconds(call, max(1, int(sizes[backend] * BEFORE_S / TURN_S)))
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
    regret, noise = row.regret
    turns = sum(load.turns for load in row.loads)
    others = "".join(f" ({load.chosen})" for load in row.loads if load.chosen != row.chosen)
    return (
        f"{row.model:32} {row.threads} thr  {row.chosen:12}{others} regret {regret:5.1%} "
        f"±{noise:.1%} (n {turns})  luck {row.luck:.1%}  load {row.loads[0].seconds:.1f} s  "
        f"ms: {figures}{lost}"
    )


if __name__ == "__main__":
    sys.exit(main())
