"""The engines that run what was written, each where it can do no harm."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import ClassVar

from edgeinfer.backends import registry
from edgeinfer.backends.base import (
    Artifact,
    Backend,
    Capabilities,
    DeviceKind,
    Executable,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.process import isolation
from edgeinfer.backends.process.emulator import Emulator, emulator
from edgeinfer.backends.process.isolated import IsolatedBackend
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import NotAvailableError
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.machine.host import host
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass

_PATIENCE_S = 600.0
"""For loading and for one run: an engine that hangs fails the gate."""

_EMULATED_S = 7200.0
"""The same under emulation, which is a hundred times slower."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an artifact is run.

    Attributes:
        device: kind of unit.
        emulator: Emulator of the CPU it is for, where that is not this one.
        missing: why it cannot be run here; empty if it can.
    """

    device: DeviceKind = "cpu"
    emulator: Emulator | None = None
    missing: str = ""

    @property
    def note(self) -> str:
        """What a reader of the report should know of it; empty for this machine itself."""
        if self.emulator is None:
            return ""
        cpu = self.emulator.command[self.emulator.command.index("-cpu") + 1]
        version = self.emulator.version
        return f"run under emulation of {cpu} (qemu {version}); its times say nothing of a device"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The backends of one artifact, and where they are to run."""

    names: Sequence[str]
    place: EnginePlace = EnginePlace()


def place_of(profile: Profile) -> EnginePlace:
    """Find where a target's artifacts are run to be judged."""
    return place_for(profile.machine) if profile.machine else EnginePlace(profile.unit)


def place_for(name: str) -> EnginePlace:
    """Find where code for a machine can be run; any place will do for no machine's."""
    if not name:
        return EnginePlace()
    wanted = machine(name)
    if wanted.system != host().system:
        return EnginePlace(
            missing=f"libraries for {wanted.name} are loaded by {wanted.system} only"
        )
    if wanted.arch != host().arch:
        if wanted.cuda:
            reason = f"{wanted.cuda} with a CPU that is {wanted.arch} is not here, nor emulated"
            return EnginePlace("gpu", missing=reason)
        try:
            return EnginePlace(emulator=emulator(wanted.arch, wanted.cpu))
        except NotAvailableError as error:
            return EnginePlace(missing=str(error))
    if not wanted.cuda:
        return EnginePlace()
    missing = "" if cuda_devices() else f"{wanted.cuda} needs an NVIDIA GPU and its driver"
    return EnginePlace("gpu", missing=missing)


def in_turn(wanted: Sequence[Wanted]) -> Generator[list[Backend], None, None]:
    """Give the backends of each artifact; their processes end when the next are requested.

    Those of the next artifact start while the one at hand is run. Close the iterator.

    Raises:
        NotAvailableError: a plugin cannot be used.
    """
    with ExitStack() as next_ends:
        upcoming = _started(wanted[0], next_ends) if wanted else []
        for following in (*wanted[1:], None) if wanted else ():
            with next_ends.pop_all():
                current = upcoming
                upcoming = [] if following is None else _started(following, next_ends)
                yield current


def _started(wanted: Wanted, ends: ExitStack) -> list[Backend]:
    place = wanted.place
    if place.missing:
        return [_Absent(name, place.missing) for name in wanted.names]
    if not isolation.apart() and place.emulator is None:
        return [registry.get(name) for name in wanted.names]
    limit = _PATIENCE_S if place.emulator is None else _EMULATED_S
    backends = [
        IsolatedBackend(name, run_s=limit, load_s=limit, emulator=place.emulator)
        for name in wanted.names
    ]
    for backend in backends:
        ends.enter_context(backend).start()
    return [*backends]


class _Absent:
    """A backend whose device is not here."""

    name: ClassVar[str] = ""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name  # type: ignore[misc]  # as with the backends in processes of their own
        self._reason = reason

    def probe(self) -> Probe:
        return Probe(self.name, None, reason=self._reason)

    def capabilities(self) -> Capabilities:
        return registry.get(self.name).capabilities()

    def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
        raise NotAvailableError(self._reason)
