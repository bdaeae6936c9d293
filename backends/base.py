"""What a backend is: the protocol that ours and anybody's implement.

A backend runs artifacts; it knows nothing of targets, bundles or conversion. Implementations are
found through the entry-point group ``edgeinfer.backends`` and are checked by the conformance kit
in ``edgeinfer.backends.testing``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

from edgeinfer.machine.device import Device as Device
from edgeinfer.machine.device import DeviceKind as DeviceKind
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, Progress, TensorSpec

A = TypeVar("A")

ShapeRange = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, usual and largest shape."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend found on this machine.

    Attributes:
        backend: its name.
        version: the engine's version; None when it is not installed.
        devices: units it can run on, best first; empty when it cannot run here.
        reason: why not, with the install line; empty when it is available.
    """

    backend: str
    version: str | None
    devices: tuple[Device, ...] = ()
    reason: str = ""

    @property
    def available(self) -> bool:
        """Whether an artifact can be loaded here."""
        return bool(self.devices)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, apart from the machine.

    Attributes:
        formats: artifact formats it opens.
        dtypes: element types of inputs and outputs it takes.
        dynamic_shapes: one executable runs inputs of several sizes.
        zero_copy: ``bind`` reads and writes the caller's arrays without a copy.
        concurrent_runs: ``run`` may be called from several threads at once.
        unprepared_inputs: level of ``bundle.values`` that inputs must keep where an artifact was
            not lowered for this engine; empty where it takes any value.
        fragile: the engine may take its process down, or time and memory without end; it runs in
            one of its own.
        keeps_time: how long a run takes says something of a device; not of an evaluator's.
        forks: artifacts can be opened on the CPU in a process that was forked from one which used
            the engine. Otherwise they are opened in a process of their own there.
    """

    formats: frozenset[str]
    dtypes: frozenset[str]
    dynamic_shapes: bool = True
    zero_copy: bool = True
    concurrent_runs: bool = True
    unprepared_inputs: str = ""
    fragile: bool = False
    keeps_time: bool = True
    forks: bool = False


@dataclass(frozen=True, slots=True)
class Artifact:
    """Files that one engine opens together.

    Attributes:
        format: as in the manifest.
        path: the file that the engine opens; its companions lie where it expects them.
        inputs: the model's inputs, names as in the source model.
        outputs: the model's outputs, likewise.
        precision: as in the manifest; empty where nobody says.
        computed_in: floats of fewer bits that the engine is to compute the file in, ``bf16``,
            ``fp16`` or ``tf32``; empty for those that the file says. A backend refuses what its
            device does not compute in.
        digest: SHA-256 of the file in hex, where it was hashed when it was taken from a bundle.
    """

    format: str
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = ""
    computed_in: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load an artifact.

    Attributes:
        device: kind of unit; no backend may pick another one by itself.
        threads: intra-op threads; None lets the backend take what this process may use.
        spinning: worker threads spin between runs: lower latency alone, harmful in company.
        callers: how many runs go on at once; an engine that can divides its threads among them.
        optimize: the engine's own graph optimisation; off for oracles.
        precise: forbid shortcuts that lower precision below the artifact's (TF32, fp16 on ARM,
            bf16 on AMX).
        fallback: operators that the device does not take may run on the CPU. Without it an engine
            that is asked to refuse them does, by name; of others a session refuses what
            ``operators.Placing`` tells.
        extra: options of one engine, by its own names.
        shapes: smallest, usual and largest shape of inputs with open sizes, by name; for engines
            that are built for them.
        pooled: memory for runs comes from a store that all pooled executables of this process
            share, where the engine has one.
    """

    device: DeviceKind = "cpu"
    threads: int | None = None
    spinning: bool = False
    callers: int = 1
    optimize: bool = True
    precise: bool = True
    fallback: bool = False
    extra: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, ShapeRange] = field(default_factory=dict)
    pooled: bool = False


class Bound(Protocol):
    """An executable with its buffers fixed: fill ``inputs``, call, read ``outputs``."""

    @property
    def inputs(self) -> Feeds:
        """The buffers read by each call."""
        ...

    @property
    def outputs(self) -> Feeds:
        """The buffers written by each call."""
        ...

    def __call__(self) -> None:
        """Run once over the bound buffers.

        Raises:
            RunError: the engine failed.
            ClosedError: the executable was closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of an artifact runs in the engine's fast part.

    Attributes:
        unit: name of that part, e.g. ``XNNPACK``.
        ops: operators of the main graph.
        partitions: Parts of the graph that it takes; each border costs copies.
        left: types of the operators that it leaves to the engine's own kernels, with repeats.
    """

    unit: str
    ops: int
    partitions: int
    left: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the graph runs as one piece."""
        return self.partitions == 1 and not self.left

    def __str__(self) -> str:
        if self.whole:
            return f"{self.unit} takes all {self.ops} operators as one piece"
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        taken = f"{self.unit} takes {self.ops - len(self.left)} of {self.ops} operators"
        kinds = [f"{name} {count}" for name, count in Counter(self.left).most_common()]
        return f"{taken} in {parts}" + (f"; not: {', '.join(kinds)}" if kinds else "")


class Noting(Protocol):
    """An executable with something to say in a session's report."""

    notes: tuple[str, ...]


class Pooling(Protocol):
    """An executable whose runs may take their memory from what all pooled ones share."""

    pooled: bool


class TakingDeviceTensors(Protocol):
    """An executable that may take tensors where they lie, on an NVIDIA device too."""

    @property
    def takes_device_tensors(self) -> bool:
        """Whether it does, as it was loaded."""
        ...


class Apart(Protocol):
    """A backend or an executable in a process of its own."""

    is_apart: ClassVar[bool]


class Hosted(Protocol):
    """An executable whose engine may hold memory in another process."""

    @property
    def process_mb(self) -> float:
        """What the other process holds; 0 while there is none."""
        ...


class Timed(Protocol):
    """An executable that knows what a run took without the way there."""

    @property
    def last_run_s(self) -> float:
        """How long the last run took."""
        ...


def able(thing: object, kind: type[A]) -> TypeGuard[A]:
    """Say whether a backend or an executable has an optional ability, itself or by what it wraps.

    From Python 3.12 on ``isinstance`` looks at the class alone, which in a guard says nothing of
    what it guards.
    """
    names = {*vars(kind), *getattr(kind, "__annotations__", ())}
    return all(hasattr(thing, name) for name in names if not name.startswith("_"))


@runtime_checkable
class Covering(Protocol):
    """An executable that knows how much of it runs in the engine's fast part."""

    def coverage(self) -> Coverage | None:
        """Look at what the last run ran; None where the engine has no such part, or has it off."""
        ...


class Executable(Protocol):
    """A loaded artifact.

    Inputs were validated by the caller (``runtime.session``): a NumPy array for each input, of its
    element type in native byte order. ``run`` takes any strides and leaves inputs as they are.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller, in the order of ``outputs``.

        Raises:
            InputError: the artifact cannot take a value or size, which the model itself can.
            RunError: the engine failed.
            ClosedError: after ``close``.
        """
        ...

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix C-contiguous buffers of all inputs and outputs for repeated runs.

        Raises:
            RunError: a buffer is not one the engine can use in place.
        """
        ...

    def close(self) -> None:
        """Free the engine's memory; a second call does nothing."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """An executable that opens its artifact anew by itself after a run that failed."""

    def renew(self) -> None:
        """Do so before the next run; for a caller whom an answer tells that it must."""
        ...


class ProbedForCpu(Protocol):
    """A backend that can look for its engine alone."""

    def probe_cpu(self) -> Probe:
        """Likewise as ``probe``, with the CPU as only device: no driver of another is started."""
        ...


@runtime_checkable
class Threadless(Protocol):
    """An executable that may leave nothing in its process that a fork does not copy."""

    is_threadless: bool
    """Whether it has neither threads nor locks of the engine's."""


@runtime_checkable
class Backend(Protocol):
    """An engine behind a uniform door."""

    name: ClassVar[str]

    def probe(self) -> Probe:
        """Look for the engine and its devices; never raises, says the reason instead."""
        ...

    def capabilities(self) -> Capabilities:
        """Say what the engine can do; needs no engine installed."""
        ...

    def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
        """Open an artifact.

        Raises:
            NotAvailableError: the engine or the device is not here; the message says how to get it.
            LoadError: the engine refuses the artifact or an option.
        """
        ...


@runtime_checkable
class BuildsAhead(Protocol):
    """A backend that builds an engine for this machine from an artifact before anything runs.

    ``load`` builds too where no current engine is here, and says so in the log; ``run`` never does.
    """

    def unbuilt(self, artifact: Artifact, options: LoadOptions) -> str:
        """Say why an engine has to be built now; empty when a current one is here.

        Raises:
            NotAvailableError: the engine is not here.
            LoadError: an option or a shape is wrong.
        """
        ...

    def build(
        self, artifact: Artifact, options: LoadOptions, progress: Progress | None = None
    ) -> Path:
        """Return the folder of a current engine; builds it where there is none.

        Args:
            artifact: to build it from.
            options: Options of the loads that it is for.
            progress: Called with what is being done.

        Raises:
            NotAvailableError: the engine is not here.
            LoadError: the engine refuses the artifact, or the cache cannot be written.
        """
        ...
