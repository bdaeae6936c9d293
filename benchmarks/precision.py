"""Float, 8-bit integers and the accuracy budget on real models, next to others' quantizers.

    python -m benchmarks.precision --peers /path/to/python-with-peers [--tasks mnist,spam]

For each task and engine: quality on held-out samples, size and processor time of one run on one
thread, the files opened several times and taking turns. ``static_wi8_ai8`` is what the quantizer
writes, whether the gate would take it or not; ``auto`` comes out of a conversion. The peers'
interpreter needs ``nncf``, ``ai-edge-quantizer``, ``onnxruntime`` and ``openvino``. Trained nets,
prepared data and results lie in ``--work``; a pair of task and engine that has a result there is
not run again unless ``--again``. ``--prepare`` only trains and prepares, so that pairs can then be
run side by side. ``--markdown`` writes the table of all results, and the exit status says whether
every demand holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import platformdirs

import edgeinfer
from benchmarks import precision_data, precision_text
from benchmarks.precision_case import Case
from benchmarks.precision_table import (
    MAX_DROP,
    OURS,
    PLAIN,
    UNTIMED,
    Row,
    markdown,
    verdict,
)
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import lowered_as, recipe
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.samples import open_data
from edgeinfer.types import TensorSpec

TASKS: dict[str, Callable[[Path], Case]] = {
    "efficientnet-lite0": precision_data.efficientnet_lite0,
    "mnist": precision_data.mnist,
    "opencv-digits": precision_data.opencv_digits,
    "silero-vad": precision_data.silero,
    "ppocrv4-rec": precision_text.words,
    "minilm": precision_text.minilm,
    "spam": precision_text.spam,
}


@dataclass(frozen=True, slots=True)
class Engine:
    """Where files run.

    Attributes:
        target: whose profile they are written for.
        format: of the artifact.
        suffix: of its file.
        peers: whose files it runs too.
    """

    target: str
    format: str
    suffix: str
    peers: tuple[str, ...] = ()


ENGINES = {
    "onnxruntime": Engine("onnxruntime", "onnx", ".onnx", ("onnxruntime", "nncf")),
    "openvino": Engine("openvino", "openvino_ir", ".xml", ("nncf",)),
    "litert": Engine("android", "tflite", ".tflite", ("ai-edge-quantizer",)),
    "coreml-reference": Engine("ios", "mlprogram", ".mlpackage"),
}
"""By backend. Core ML packages are evaluated operator by operator: right, but of no real speed."""

OPENINGS = 7
"""How often all files are opened anew: one file takes up to a tenth more or less time each time
that it is opened, and keeps to it while it is open (memory's place is a guess at the reason)."""

ROUNDS = 15
"""Turns of each file in one opening, of which times are taken."""

TURN_MS = 1.0
"""A turn is as many runs as take so long: that of a small net is too short to be measured alone."""

RACE_SECONDS = 4.0
"""After so long a race is over, if everyone has had some turns."""

LEAST_ROUNDS = 3

SECONDS = 20.0
"""What the held-out samples may take on one file; an evaluator gets fewer of them."""

PEERS_TAKE = 32
"""Samples that the peers calibrate with: with 100 images one of them held 7 GB in memory."""


@dataclass(frozen=True, slots=True)
class Made:
    """One file to measure."""

    path: Path
    precision: str = ""
    note: str = ""


def stacked(feeds: Sequence[dict[str, Any]], path: Path, labels: Sequence[Any] = ()) -> Path:
    arrays: dict[str, Any] = {n: np.stack([f[n] for f in feeds]) for n in feeds[0]}
    if labels:
        arrays["labels"] = np.asarray(labels)
    scratch = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    np.savez(scratch, **arrays)
    return scratch.replace(path)


@dataclass(frozen=True, slots=True)
class Source:
    """The graph of a case, as every target gets it."""

    model: ir.Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def source_of(case: Case) -> Source:
    model = passes.normalise(ir.load(case.model)).model
    return Source(model, passes.input_specs(model), passes.output_specs(model))


def plain(
    case: Case,
    source: Source,
    engine: str,
    precision: str,
    work: Path,
    calibrated: Quantizer | None = None,
) -> Made:
    """Write floats, or integers everywhere, without asking the gate.

    Args:
        case: the task.
        source: its graph.
        engine: where it will run.
        precision: of floats, or a recipe of integers.
        work: for files.
        calibrated: with the same data for the same engine, so that it need not be done again.

    Raises:
        EdgeInferError: the target has no such form.
    """
    kind = ENGINES[engine]
    profile, model, asked = profiles.load(kind.target), source.model, recipe(precision)
    if asked.is_quantized:
        limits = limits_of(profile, kind.format, asked)
        if calibrated is None:
            calibrated = Quantizer(model, asked, Settings())
            if asked.is_static:
                data = open_data(work / f"{case.name}.npz", source.inputs)
                calibrated.calibrate(data, [limits], source.inputs)
        model = calibrated.write(limits).model
    folder = work / f"{case.name}-{engine}-{precision}"
    if folder.exists():
        # A package of an earlier run is a folder, which is not written over.
        shutil.rmtree(folder)
    folder.mkdir()
    lowered = target_for(kind.format).lower(
        model, profile, LowerOptions(lowered_as(precision), recipe=precision), folder
    )
    layers = readback.layers(lowered.files[0], kind.format)
    return Made(lowered.files[0], readback.precision_name(layers, lowered.precision))


def searched(case: Case, engine: str, work: Path) -> Made:
    """Convert with ``auto``; return the artifact.

    Raises:
        EdgeInferError: it was refused.
    """
    kind = ENGINES[engine]
    folder = work / f"{case.name}-{engine}-auto"
    done = edgeinfer.export(
        case.model,
        f"{folder}.edge",
        targets=[kind.target],
        precision="auto",
        calibration=work / f"{case.name}.npz",
        max_drop=MAX_DROP,
        metric=case.metric if case.labels else None,
        overwrite=True,
    )
    variant = next(v for v in done.manifest.variants if v.format == kind.format)
    if folder.exists():
        shutil.rmtree(folder)
    with zipfile.ZipFile(done.path) as archive:
        archive.extractall(folder)
    search = (done.report.quantization or {}).get("search", {})
    note = "; ".join(s["advice"] for s in search.values() if s.get("advice"))
    return Made(folder / variant.files[0].path, variant.precision, note)


@contextlib.contextmanager
def noted() -> Iterator[list[Quantizer]]:
    """Note the quantizers that are calibrated meanwhile; conversions stay in this process."""
    found: list[Quantizer] = []
    calibrate = Quantizer.calibrate

    def noting(self: Quantizer, *args: Any, **more: Any) -> None:
        calibrate(self, *args, **more)
        found.append(self)

    here = {"EDGEINFER_IN_PROCESS": "1"}
    with mock.patch.object(Quantizer, "calibrate", noting), mock.patch.dict(os.environ, here):
        yield found


def theirs(peers: Path, kind: str, model: Path, data: Path, output: Path) -> str:
    """Let a peer quantize; return why it could not."""
    if output.exists():
        return ""
    script = Path(__file__).with_name("precision_peers.py")
    command = [str(peers), str(script), kind, str(model), str(data), str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        return "not done in 15 minutes"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1][:160]


@contextlib.contextmanager
def opened(path: Path, engine: str, source: Source) -> Iterator[Executable]:
    artifact = Artifact(ENGINES[engine].format, path, source.inputs, source.outputs)
    executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
    try:
        yield executable
    finally:
        executable.close()


def size_mb(path: Path) -> float:
    package = next((p for p in path.parents if p.suffix == ".mlpackage"), None)
    if package is not None:
        return sum(f.stat().st_size for f in package.rglob("*") if f.is_file()) / 1e6
    files = [path, path.with_suffix(".bin"), path.with_name(path.name + ".data")]
    return sum(f.stat().st_size for f in files if f.exists()) / 1e6


def compare(
    case: Case, engine: str, work: Path, peers: Path | None, own: Sequence[str]
) -> Iterator[Row]:
    """Measure all files of one engine, their timed runs taking turns."""
    files: dict[str, Made] = {}
    source = source_of(case)
    with noted() as seen:
        # Integers everywhere come from the calibration of the conversion before.
        for precision in sorted(own, key=lambda p: p == PLAIN):
            start = time.perf_counter()
            try:
                if precision == "auto":
                    files[precision] = searched(case, engine, work)
                else:
                    before = seen[0] if seen else None
                    files[precision] = plain(case, source, engine, precision, work, before)
            except EdgeInferError as e:
                yield Row(case.name, engine, precision, note=str(e).splitlines()[0][:200])
                continue
            print(f"  {precision} made in {time.perf_counter() - start:.0f} s", flush=True)
    files = {what: files[what] for what in own if what in files}
    for kind in ENGINES[engine].peers if peers is not None else ():
        output = work / f"{case.name}-{engine}-{kind}{ENGINES[engine].suffix}"
        model = files["fp32"].path if engine == "litert" else case.model
        assert peers is not None  # noqa: S101 - said by the loop's head
        fault = theirs(peers, kind, model, work / f"{case.name}-peers.npz", output)
        if fault:
            yield Row(case.name, engine, kind, note=fault)
        else:
            files[kind] = Made(output)
    yield from measured(case, engine, files, source)


def measured(case: Case, engine: str, files: dict[str, Made], source: Source) -> Iterator[Row]:
    answers: dict[str, list[dict[str, Any]]] = {}
    count = len(case.tests)
    for what, made in files.items():
        try:
            with opened(made.path, engine, source) as executable:
                count = min(count, _affordable(executable, case))
                answers[what] = case.run(executable, count)
        except EdgeInferError as e:
            note = str(e).replace(f"{made.path.parent}/", "")[:200]
            yield Row(case.name, engine, what, note=note)
    paths = {what: files[what].path for what in answers}
    times = races(paths, engine, source, case.tests[0])
    wanted = list(case.answers[:count])
    judgement = Judgement([*answers["fp32"][:count]], wanted, case.metric)
    for what, found in answers.items():
        loss = judgement.loss(found[:count])
        made, turns = files[what], [t for race in times for t in race[what]]
        yield Row(
            *(case.name, engine, what, loss.quality, loss.drop, size_mb(made.path)),
            *(float(np.median(turns)), count, made.precision, made.note, case.unit),
            times=tuple(round(t, 6) for t in turns),
            openings=tuple(len(race[what]) for race in times),
        )


def races(
    paths: dict[str, Path], engine: str, source: Source, feeds: dict[str, Any]
) -> list[dict[str, list[float]]]:
    """Open all files several times, who is first changing, and let them take turns each time."""
    found, order = [], [*paths]
    for _ in range(1 if engine in UNTIMED else OPENINGS):
        with contextlib.ExitStack() as stack:
            loaded = {w: stack.enter_context(opened(paths[w], engine, source)) for w in order}
            found.append(race(loaded, feeds))
        order = [*order[1:], *order[:1]]
    return found


def race(loaded: dict[str, Executable], feeds: dict[str, Any]) -> dict[str, list[float]]:
    """Return the processor time of one run in ms, by file and turn; who begins changes."""
    times: dict[str, list[float]] = {what: [] for what in loaded}
    runs = {what: max(1, round(TURN_MS / _turn(e, feeds, 3))) for what, e in loaded.items()}
    order, end = [*loaded], time.perf_counter() + RACE_SECONDS
    for count in range(ROUNDS):
        if count >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for what in order:
            times[what].append(_turn(loaded[what], feeds, runs[what]))
        order = [*order[1:], order[0]]
    return times


def _turn(executable: Executable, feeds: dict[str, Any], runs: int) -> float:
    start = time.process_time()
    for _ in range(runs):
        executable.run(feeds)
    return max(1e-6, 1000.0 * (time.process_time() - start) / runs)


def _affordable(executable: Executable, case: Case) -> int:
    """Return how many held-out samples may be run; the first run of all takes longer."""
    once = min(_turn(executable, case.tests[0], 1) for _ in range(3)) / 1000.0
    return max(8, int(SECONDS / once))


def run(
    name: str,
    engines: Sequence[str],
    work: Path,
    peers: Path | None,
    *,
    own: Sequence[str] = OURS,
    again: bool = False,
) -> None:
    """Measure one task on some engines; each pair's rows go into a file of their own."""
    left = [e for e in engines if again or not _results(work, name, e).is_file()]
    if not left:
        return
    case = prepared(name, work)
    for engine in left:
        rows = []
        if again:
            for kind in ENGINES[engine].peers:
                (work / f"{name}-{engine}-{kind}{ENGINES[engine].suffix}").unlink(missing_ok=True)
        for row in compare(case, engine, work, peers, own):
            rows.append(row)
            print(row.line(), flush=True)
        place = _results(work, name, engine)
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps([asdict(r) for r in rows], indent=1))


def prepared(name: str, work: Path) -> Case:
    """Train a net, if that is to be done, and write its calibration data."""
    case = TASKS[name](work)
    stacked(case.feeds, work / f"{case.name}.npz", case.labels)
    spread = case.feeds[:: max(1, len(case.feeds) // PEERS_TAKE)][:PEERS_TAKE]
    stacked(spread, work / f"{case.name}-peers.npz")
    return case


def _results(work: Path, name: str, engine: str) -> Path:
    return work / "results" / f"{name}-{engine}.json"


def gathered(work: Path) -> list[Row]:
    """Read every result there is, in the order of tasks and engines."""
    found = []
    for name in TASKS:
        for engine in ENGINES:
            place = _results(work, name, engine)
            if place.is_file():
                found += [Row(**r) for r in json.loads(place.read_text())]
    return found


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = [n.strip() for n in text.split(",") if n.strip()]
    unknown = [n for n in names if n not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}")
    return names


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add what to run, and where what was prepared lies."""
    parser.add_argument("--tasks", type=lambda t: _names(t, [*TASKS]), default=[*TASKS])
    place = Path(platformdirs.user_cache_dir("edgeinfer-precision"))
    parser.add_argument("--work", type=Path, default=place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_tasks(parser)
    parser.add_argument("--engines", type=lambda t: _names(t, [*ENGINES]), default=[*ENGINES])
    parser.add_argument(
        "--files",
        type=lambda t: _names(t, OURS),
        default=[*OURS],
        help="ours to make",
    )
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--prepare", action="store_true", help="train and prepare only")
    parser.add_argument("--again", action="store_true", help="measure what has a result")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--note", default="", help="on which machines, for the page")
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        for name in options.tasks:
            prepared(name, work)
        return 0
    for name in options.tasks:
        run(
            *(name, options.engines, work, options.peers),
            own=options.files,
            again=options.again,
        )
    rows = gathered(work)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    if options.markdown:
        known = {(r.task, r.engine) for r in rows}
        pairs = [(t, e) for t in TASKS for e in ENGINES]
        lacking = [f"{t} on {e}" for t, e in pairs if (t, e) not in known]
        options.markdown.write_text(markdown(rows, lacking, options.note))
    faults = [f for f in verdict(rows) if f.failed]
    print(*(f.line for f in verdict(rows)), sep="\n")
    return min(len(faults), 1)


if __name__ == "__main__":
    sys.exit(main())
