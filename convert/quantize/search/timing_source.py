"""What a search's times were taken on, and whether they say anything of the device."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.backends.base import Backend
from edgeinfer.backends.process import emulator
from edgeinfer.machine.host import host
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass

LIKE_SIZE = 1.02
"""Files that differ by less are alike: where nothing is timed, other things tell them apart."""


@dataclass(frozen=True, slots=True)
class TimingSource:
    """Where candidates are run.

    Attributes:
        engine: that runs them, with its version.
        machine: this one: processor, system and architecture.
        why_not: why times taken here say nothing of the device; empty if they count.
        device: what the target is, where this machine is none of its kind; empty if it is.
        integers: processors of the device that multiply integers faster than halves, or ``all`` of
            them; empty where none is known to.
    """

    engine: str
    machine: str
    why_not: str = ""
    device: str = ""
    integers: tuple[str, ...] = ("all",)

    @property
    def counts(self) -> bool:
        """Whether the fastest here is taken for the fastest there."""
        return not self.why_not

    @property
    def is_device(self) -> bool:
        """Whether what is timed may be the device itself."""
        return self.counts and not self.device

    @property
    def line(self) -> str:
        """Say in the report what decided."""
        if self.counts:
            where = f"times are of {self.engine} on {self.machine}"
            away = f": nothing was timed on the device ({self.device})" if self.device else ""
            return where + away
        found = (
            f"time was not measured on the device: {self.why_not}. Of what holds the budget the "
            "smallest file is taken"
        )
        if not self.integers:
            return f"{found}; its profile knows no processor that multiplies integers faster"
        whose = "" if self.integers == ("all",) else f" ({', '.join(self.integers)})"
        return (
            f"{found}, and of sizes that are alike the one with the fewest multiplications in "
            f"float: its profile says that integers are faster{whose}"
        )


def clock_for(profile: Profile, engines: Sequence[str], backend: Backend) -> TimingSource:
    """Judge times of an engine here as those of a device.

    Args:
        profile: Profile of the device.
        engines: that an artifact is written for, best first.
        backend: the one of them that is here.
    """
    version = backend.probe().version or ""
    here = host()
    return TimingSource(
        f"{backend.name} {version}".rstrip(),
        str(here),
        _why_not(engines, backend),
        "" if here.is_kind(profile) else _kind(profile),
        _integers(profile),
    )


def _why_not(engines: Sequence[str], backend: Backend) -> str:
    name = backend.name
    if not backend.capabilities().keeps_time:
        return f"{name} evaluates operator by operator, and how long it takes says nothing"
    if kernel := emulator.emulated():
        return f"this machine ({kernel}) emulates the processor that {name} runs on"
    if engines and engines[0] != name:
        return f"its engine, {engines[0]}, is not here, and {name} stands in for the numbers only"
    return ""


def _kind(profile: Profile) -> str:
    return ", ".join(filter(None, ("/".join(profile.arch), "/".join(profile.os))))


def _integers(profile: Profile) -> tuple[str, ...]:
    if not profile.chips:
        return ("all",)
    return tuple(chip.name for chip in profile.chips if chip.has_int8)
