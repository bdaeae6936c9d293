"""``edgeinfer tune``: a model's hot kernels tuned, and its bundle written anew if that pays."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_tvm
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.formats import refuse_artifact
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert.late import late
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.convert.lower.tvm.machines import machine as machine_of
from edgeinfer.convert.options import Given
from edgeinfer.convert.pipeline.engines import place_for
from edgeinfer.convert.tuning.costs import ENGINES, Costs, best
from edgeinfer.convert.tuning.workloads import Workloads
from edgeinfer.errors import EdgeInferError, NotAvailableError, UsageError
from edgeinfer.kernels.tuning import processor, ssh
from edgeinfer.kernels.tuning.database import WORTH, Database
from edgeinfer.kernels.tuning.task import Task
from edgeinfer.kernels.tuning.tune import Tuner, TuningBudget, Where, WorkloadOutcome, sure_gain
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass
from edgeinfer.remote.ssh import SCHEME
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.convert.pipeline.entry import ExportResult

ROUNDS = 21
_BATCH_S = 0.02
_OTHERS, _LEAST_OTHER = 3, 0.05
_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}(/.+)?")


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The whole model, measured in turns; microseconds of a bound call, medians of rounds.

    Attributes:
        before: with the converter's own kernels.
        tuned: with those that were tuned.
        engines: Engines of the libraries on this machine, by name.
        spread: Spread of ``tuned``, half the distance of the quartiles over the median.
        sure: how many times as fast as before three rounds in four at least were.
        rounds: that were measured.
    """

    before: float
    tuned: float
    engines: dict[str, float]
    spread: float
    sure: float
    rounds: int = ROUNDS

    @property
    def gain(self) -> float:
        """How many times as fast as before."""
        return self.before / self.tuned

    @property
    def pays(self) -> bool:
        """Whether that is worth it, and no noise."""
        return self.gain >= WORTH and self.sure > WORTH


@dataclass(slots=True)
class Tuned:
    """What came out.

    Attributes:
        where: the device.
        database: the file with every measurement.
        outcomes: Outcomes of each kernel, the one that takes most time first.
        engine: that runs the model fastest on this device, by whose operators the hot kernels are
            found; empty if none was asked, or none runs it.
        others: steps of that engine that take a large part and are no kernel of the table: the
            converter has one loop for them, or TVM a fused one under another name.
        open: kernels of open sizes, which nothing can measure.
        kept: measurements of this run.
        damaged: lines of the database that are none.
        whole: the whole model before and after; None if it was not measured.
        bundle: what was written; None if nothing was.
        note: why the bundle is as it is.
    """

    where: Where
    database: Path
    outcomes: list[WorkloadOutcome]
    engine: str = ""
    others: list[tuple[str, float]] = field(default_factory=list)
    open: int = 0
    kept: int = 0
    damaged: int = 0
    whole: WholeModel | None = None
    bundle: Path | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """What is requested; the defaults are those of the command.

    Attributes:
        target: name of a profile, such as ``tvm-x86-64-v3``.
        database: file of measurements; the default lies in the current folder.
        minutes: for all of it, apart from writing the bundle.
        trials: orders of one kernel at most.
        tasks: kernels at most.
        threads: Threads of parallel loops.
        workers: processes that measure at once.
        device: ``host:port`` of a TVM RPC server, ``host:port/key`` of a tracker, or
            ``ssh://[user@]host[:port][/python]``, where one is started.
        device_name: name of its processor, under which its figures are kept; over ssh it is asked.
        input_shapes: sizes to fix.
        output: the bundle to write.
        overwrite: replace an existing one.
        seed: Seed of the search.
        trust: options of opening a bundle, such as keys that must have signed it.
    """

    target: str
    database: Path | None = None
    minutes: float = 10.0
    trials: int = 512
    tasks: int = 24
    threads: int = 1
    workers: int = 1
    device: str = ""
    device_name: str = ""
    input_shapes: Given | None = None
    output: str | None = None
    overwrite: bool = False
    seed: int = 1
    trust: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what nothing can be done with.

        Raises:
            UsageError: a number is too small, or none.
        """
        if not 0 < self.minutes < math.inf:
            raise UsageError(f"minutes: expected more than 0, received {self.minutes:g}")
        for name in ("trials", "tasks", "threads", "workers"):
            if getattr(self, name) < 1:
                shown = "kernels" if name == "tasks" else name
                raise UsageError(f"{shown}: expected 1 at least, received {getattr(self, name)}")


def tune(model: str | Path, order: TuningRequest, progress: Progress | None = None) -> Tuned:
    """Tune what takes most of a model's time on a device.

    Raises:
        UsageError: the target is no instruction set, or the device is not named.
        NotAvailableError: TVM or the device is not there; what was measured is kept.
        UnsupportedError: the model cannot be compiled for the target.
    """
    order.check()
    profile = profiles.load(order.target)
    if "tvm" not in profile.formats:
        known = ", ".join(n for n in profiles.names() if n.startswith("tvm-"))
        raise UsageError(f"target {order.target!r} is not made by TVM; known: {known}")
    database = Database(order.database or Path(f"tuning-{profile.machine}.jsonl"))
    database.check()
    if order.output is not None:
        # All that may keep the bundle from its place is reported now, not after the search.
        refuse_artifact(order.output, "what is tuned is written as a bundle")
        with BundleWriter(order.output, overwrite=order.overwrite):
            pass
    budget = TuningBudget(order.minutes, order.trials, order.tasks)
    budget.start()
    with (
        tempfile.TemporaryDirectory(prefix="edgeinfer-") as temporary,
        _reached(order, progress) as order,
    ):
        source = _source(Path(model), Path(temporary), order.trust)
        if progress is not None:
            progress("read the model", None)
        graph = Path(temporary, "graph")
        graph.mkdir()
        machine, work = _workloads(source, profile, order, graph)
        tasks = work.tasks
        where = _where(machine, order)
        if order.device or order.output is not None:
            from edgeinfer.convert.lower.tvm.build import linker_for

            linker_for(machine)
        costs = None
        if not order.device:
            # Engines of this machine say nothing of another one.
            if progress is not None:
                progress("time operators in the engines", None)
            unit = place_for(profile.machine).device
            costs = best(work.graph, unit, order.threads)
        with Tuner(where, database, budget, progress, order.seed) as tuner:
            outcomes = (
                tuner.run(tasks, costs.of(tasks), costs.steps_us) if costs else tuner.run(tasks)
            )
            kept = tuner.kept
        damaged = database.read().damaged
        tuned = Tuned(where, database.path, outcomes, kept=kept, damaged=damaged, open=work.open)
        if costs is not None:
            tuned.engine, tuned.others = costs.engine, _others(costs, tasks)
        if order.output is not None:
            _write(source, order, tuned, Path(temporary), progress)
        return tuned


@contextmanager
def _reached(order: TuningRequest, progress: Progress | None) -> Iterator[TuningRequest]:
    """Give the order with the address of a device's RPC server, which ssh may have to start.

    Raises:
        UsageError: the device's name is none.
        NotAvailableError: there is no way to it.
    """
    if not order.device.startswith(SCHEME):
        if order.device and not _ADDRESS.fullmatch(order.device):
            raise UsageError(
                f"device {order.device!r}: expected HOST:PORT of a TVM RPC server, HOST:PORT/KEY "
                "of a tracker, or ssh://[USER@]HOST[:PORT][/PYTHON]"
            )
        yield order
        return
    tunnel = ssh.Tunnel(order.device)
    if progress is not None:
        progress(f"connect to {order.device}", None)
    name = order.device_name or tunnel.processor()
    with tunnel:
        yield replace(order, device=tunnel.address, device_name=name)


def _source(model: Path, folder: Path, trust: Mapping[str, Any] | None = None) -> Path:
    """Return a model's file; of a bundle, the ONNX file of a variant that was not rounded."""
    if model.suffix in (".onnx", ".pt2", ".tflite"):
        return model
    with Bundle.open(model, **(trust or {})) as bundle:
        if bundle.sealed_by:
            raise UsageError(
                f"{model}: is encrypted, and tuning writes its weights to the disk in plain; "
                "decrypt it to a place that is safe by other means, and name that"
            )
        for variant in bundle.manifest.variants:
            if variant.format == "onnx" and variant.precision == "fp32":
                path = folder / f"{bundle.manifest.name}.onnx"
                for index, record in enumerate(variant.files):
                    name = Path(record.path).name
                    (folder / name).write_bytes(bundle.read(record))
                    if not index:
                        shutil.copyfile(folder / name, path)
                return path
    raise UsageError(f"{model}: no variant of it is an ONNX model in fp32; name the model itself")


def _others(costs: Costs, tasks: Sequence[Task]) -> list[tuple[str, float]]:
    """The longest steps of the engine that nothing is tuned for, and their shares of its time."""
    return [
        (name, us / costs.steps_us)
        for name, us in costs.others(tasks)[:_OTHERS]
        if us >= _LEAST_OTHER * costs.steps_us
    ]


def _workloads(
    source: Path, profile: Profile, order: TuningRequest, folder: Path
) -> tuple[Machine, Workloads]:
    found: Workloads = late("pipeline.worker").read_apart(
        *("list kernels", Workloads, source, profile, order.input_shapes, folder),
        files=[source],
        writable=[folder],
    )
    return machine_of(found.machine), found


def _where(machine: Machine, order: TuningRequest) -> Where:
    tvm = import_tvm()
    target = machine.description(order.threads)
    here = machine.arch == platform.machine()
    if not order.device and not here:
        raise UsageError(
            f"{machine.name} is not this machine: --device ssh://USER@HOST of one, or HOST:PORT of "
            "a TVM RPC server on it (python -m tvm.exec.rpc_server --host 0.0.0.0), or "
            "HOST:PORT/KEY of a tracker"
        )
    cpus = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    if order.device:
        cpu = order.device_name or machine.cuda or machine.cpu
    elif machine.cuda:
        found = cuda_devices()
        if not found:
            raise NotAvailableError(f"{machine.name} needs an NVIDIA GPU and its driver")
        from edgeinfer.convert.lower.tvm import cuda_code

        # Measuring processes learn from their environment which of CUDA's compilers there is.
        cuda_code.get_ready(machine.name)
        cpu = found[0].name
    else:
        cpu = order.device_name or processor.name()
    return Where(
        target=target,
        machine=machine.name,
        cpu=cpu,
        threads=order.threads,
        linker=machine.linker,
        device=order.device,
        workers=1 if order.threads > 1 else order.workers,
        cpus=() if machine.cuda else cpus,
        tvm=str(tvm.__version__),
    )


# ---- the bundle


def _write(
    source: Path, order: TuningRequest, tuned: Tuned, folder: Path, progress: Progress | None
) -> None:
    """Write the bundle: with the tuned kernels if the gate lets them through and they pay."""
    better = any(o.is_better for o in tuned.outcomes)
    plain = _export(source, order, f"{folder}/plain.edge/", (), progress)
    chosen, tuned.note = plain, "no kernel is faster; written with the converter's own"
    if better:
        try:
            records = (str(tuned.database),)
            made = _export(source, order, f"{folder}/tuned.edge/", records, progress)
        except EdgeInferError as error:
            tuned.note = f"written with the converter's own kernels; the tuned ones: {error}"
        else:
            if progress is not None:
                progress("compare the whole model", None)
            chosen = _choose(source, plain, made, order, tuned)
    tuned.bundle = _put(chosen.path, str(order.output), order.overwrite)


def _put(made: Path, output: str, overwrite: bool) -> Path:
    """Write a bundle again where it is to be; nothing but a whole one has its name there."""
    with Bundle.open(made) as bundle, BundleWriter(output, overwrite=overwrite) as writer:
        for record in bundle.manifest.files().values():
            writer.add_file(record.path, bundle.path(record))
        return writer.finish(bundle.manifest)


def _choose(
    source: Path, plain: ExportResult, made: ExportResult, order: TuningRequest, tuned: Tuned
) -> ExportResult:
    if tuned.where.device:
        hot = [o for o in tuned.outcomes if o.before_us is not None]
        before = sum((o.before_us or 0) * o.task.calls for o in hot)
        after = sum(_after(o) * o.task.calls for o in hot)
        gain = before / max(after, 1e-9)
        what = f"its kernels together are {gain:.2f} times as fast on the device; the whole model "
        tuned.note = f"{what}was not measured there"
        return made if gain >= WORTH else plain
    tuned.whole = whole = _compare(source, plain, made, order, plain.path.parent)
    if whole.pays:
        tuned.note = f"written with the tuned kernels: {whole.gain:.2f} times as fast as without"
        return made
    tuned.note = (
        f"written with the converter's own kernels: with the tuned ones the whole model is "
        f"{whole.gain:.2f} times as fast, in a quarter of the rounds {whole.sure:.2f} or less; "
        f"{WORTH:g} is requested"
    )
    return plain


def _after(outcome: WorkloadOutcome) -> float:
    before = outcome.before_us or 0.0
    return before / outcome.final.gain if outcome.is_better and outcome.final else before


def _export(
    source: Path, order: TuningRequest, path: str, records: Sequence[str], progress: Progress | None
) -> ExportResult:
    from edgeinfer.convert.pipeline.entry import export

    return export(
        source,
        path,
        targets=[order.target],
        input_shapes=order.input_shapes or {},
        records=records,
        name=source.stem,
        overwrite=True,
        progress=progress,
    )


def _compare(
    source: Path, plain: ExportResult, made: ExportResult, order: TuningRequest, folder: Path
) -> WholeModel:
    with ExitStack() as stack:
        calls = {
            "before": _bound(plain.path, order.threads, stack),
            "tuned": _bound(made.path, order.threads, stack),
        }
        for engine in ENGINES:
            try:
                other = replace(order, target=engine)
                written = _export(source, other, f"{folder}/{engine}.edge", (), None)
                calls[engine] = _bound(written.path, order.threads, stack)
            except EdgeInferError:
                # Not installed, or it cannot run the model: not the best one here, then.
                continue
        times = in_turns(calls)
    medians = {name: statistics.median(row) * 1e6 for name, row in times.items()}
    low, middle, high = np.quantile(times["tuned"], (0.25, 0.5, 0.75))
    engines = {n: m for n, m in medians.items() if n in ENGINES}
    spread = float((high - low) / 2 / middle)
    sure = sure_gain(times["before"], times["tuned"])
    return WholeModel(medians["before"], medians["tuned"], engines, spread, sure)


def in_turns(
    calls: dict[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Time calls in turns; returns seconds of a call in each round."""
    counts = {}
    for name, call in calls.items():
        start = time.perf_counter()
        for _ in range(4):
            call()
        took = max(1e-7, (time.perf_counter() - start) / 4)
        counts[name] = max(1, int(_BATCH_S / took))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            found[name].append((time.perf_counter() - start) / counts[name])
    return found


def _bound(path: Path, threads: int, stack: ExitStack) -> Callable[[], object]:
    """Open the one variant of a bundle and bind it to its first test vector."""
    bundle = stack.enter_context(Bundle.open(path))
    (variant,) = bundle.manifest.variants
    artifact = Artifact(
        variant.format, bundle.paths(variant)[0], bundle.manifest.inputs, bundle.manifest.outputs
    )
    feeds, expected = next(iter(bundle.vectors()))
    machine = profiles.load(variant.target).machine
    options = LoadOptions(place_for(machine).device, threads=threads)
    loaded = registry.get(variant.engines[0].backend).load(artifact, options)
    stack.callback(loaded.close)
    return loaded.bind(feeds, {k: np.empty_like(v) for k, v in expected.items()})
