"""Energy and power, where the kernel tells, and what a piece of work took of them."""

from __future__ import annotations

import threading
import time
from dataclasses import field
from pathlib import Path

from edgeinfer.machine.power import read_power, read_temperatures
from edgeinfer.machine.sysfs import number, text
from edgeinfer.records import dataclass

POWERCAP = Path("/sys/class/powercap")
_PERIOD_S = 1.0


class Energy:
    """The energy counters of the processor's packages (Linux powercap, Intel's and AMD's RAPL).

    What is counted is taken while somebody works, by whatever runs then. Counters turn over within
    minutes, so they are read every second of work, and idle times are left out.

    Args:
        root: folder of the kernel's power-capping zones.

    Attributes:
        joules: taken so far; None where the kernel does not tell.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = [
            zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1
        ]
        self._ranges = [number(zone / "max_energy_range_uj") or 0 for zone in self._zones]
        self._last = self._read()
        self._due: float | None = None
        self.joules: float | None = 0.0 if self._last is not None else None

    def _read(self) -> list[int] | None:
        found = [number(zone / "energy_uj") for zone in self._zones]
        known = [value for value in found if value is not None]
        return known if known and len(known) == len(found) else None

    def begin(self, now: float) -> None:
        """Work begins, or goes on, at a time in seconds."""
        if self.joules is not None and self._due is None:
            self._last, self._due = self._read(), now + 1

    def end(self, now: float, *, idle: bool) -> None:
        """A piece of work has ended; ``idle`` says that no other follows."""
        if self.joules is None or self._due is None or (now < self._due and not idle):
            return
        read = self._read()
        if read is None or self._last is None:
            # Half of a sum is no sum.
            self.joules = None
            return
        for new, old, most in zip(read, self._last, self._ranges, strict=True):
            self.joules += (new - old if new >= old else new + most - old) / 1e6
        self._last = read
        self._due = None if idle else now + 1


def read_watts(root: Path) -> dict[str, float]:
    """Return the power that the board's sensors measure now, in watts by the sensor's name.

    A sensor gives it itself, or as a voltage and a current of one rail, as those of a Jetson do
    (https://docs.kernel.org/hwmon/sysfs-interface.html). What a battery gives counts where nothing
    else is measured.

    Args:
        root: Root of the file system.
    """
    found: dict[str, float] = {}
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        name = text(chip / "name") or chip.name
        for sensor in sorted(chip.glob("power*_input")):
            micro = number(sensor)
            label = text(chip / sensor.name.replace("_input", "_label"))
            if micro is not None:
                found[label or name] = micro / 1e6
        for sensor in sorted(chip.glob("in*_label")):
            channel = sensor.name[2:].partition("_")[0]
            milli = number(chip / f"in{channel}_input"), number(chip / f"curr{channel}_input")
            if None not in milli:
                found[text(sensor)] = (milli[0] or 0) * (milli[1] or 0) / 1e6
    if not found:
        for supply in sorted((root / "sys/class/power_supply").glob("*")):
            micro = number(supply / "power_now")
            if text(supply / "type") == "Battery" and micro:
                found["battery"] = abs(micro) / 1e6
    return found


@dataclass(slots=True)
class Taken:
    """What a piece of work took of the machine, by whatever ran then.

    Attributes:
        seconds: that were watched.
        celsius_before: by thermal zone; empty where the kernel does not tell.
        celsius_highest: by thermal zone, of one reading a second.
        watts: means of one reading a second, by sensor; the processor's packages have the name
            ``processor``, counted by themselves. Empty where the kernel does not tell.
        complaints: what slows the machine down at the end, or did since it was started.
    """

    seconds: float = 0.0
    celsius_before: dict[str, float] = field(default_factory=dict)
    celsius_highest: dict[str, float] = field(default_factory=dict)
    watts: dict[str, float] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


class Watch:
    """Watches heat and power while its block runs, by one reading a second.

    Args:
        root: Root of the file system.

    Attributes:
        taken: what was seen, once the block has ended.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.taken = Taken()
        self._root = root
        self._sums: dict[str, list[float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgeinfer-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._begun = time.monotonic()
        self._energy = Energy(self._root / POWERCAP.relative_to("/"))
        self.taken.celsius_before = read_temperatures(self._root)
        self._energy.begin(self._begun)
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        now = time.monotonic()
        self._energy.end(now, idle=True)
        taken = self.taken
        taken.seconds = now - self._begun
        taken.watts = {name: sum(seen) / len(seen) for name, seen in self._sums.items()}
        if self._energy.joules and taken.seconds:
            taken.watts["processor"] = self._energy.joules / taken.seconds
        taken.complaints = read_power(self._root).complaints

    def _watch(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._look()
            self._energy.end(time.monotonic(), idle=False)

    def _look(self) -> None:
        highest = self.taken.celsius_highest
        for zone, celsius in read_temperatures(self._root).items():
            highest[zone] = max(celsius, highest.get(zone, celsius))
        for name, watts in read_watts(self._root).items():
            self._sums.setdefault(name, []).append(watts)
