"""Heat and power, where the kernel or the firmware tells."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path

from edgeinfer.machine.sysfs import number, text
from edgeinfer.records import dataclass

_THROTTLED = {
    0: "the supply voltage is too low",
    1: "the clock is capped",
    2: "the processor is throttled",
    3: "the soft temperature limit is reached",
    16: "the supply voltage was too low",
    17: "the clock was capped",
    18: "the processor was throttled",
    19: "the soft temperature limit was reached",
}
"""https://www.raspberrypi.com/documentation/computers/os.html#get_throttled."""


@dataclass(frozen=True, slots=True)
class Power:
    """The state that decides how fast the device may run right now.

    Attributes:
        mode: a Jetson's power mode or the clock governor; empty when unknown.
        battery: whether it runs on a battery; None when unknown.
        celsius: by thermal zone.
        complaints: what slows it down now, or did since it was started.
    """

    mode: str = ""
    battery: bool | None = None
    celsius: dict[str, float] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


def read_power(root: Path) -> Power:
    """Read a Linux system.

    Args:
        root: Root of the file system.
    """
    return Power(power_mode(root), _battery(root), read_temperatures(root), _complaints(root))


def power_mode(root: Path) -> str:
    """Return a Jetson's power mode or the clock governor; empty when unknown."""
    found = text(root / "var/lib/nvpmodel/status")
    match = found and re.search(r"pmode:(\d+)", found)
    if not match:
        return text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    table = text(root / "etc/nvpmodel.conf")
    names = dict(re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", table))
    mode = str(int(match[1]))
    return f"nvpmodel {mode}" + (f" ({names[mode]})" if mode in names else "")


def _battery(root: Path) -> bool | None:
    supplies = sorted((root / "sys/class/power_supply").glob("*"))
    mains = [number(s / "online") for s in supplies if text(s / "type") == "Mains"]
    if any(online is not None for online in mains):
        return 1 not in mains
    states = [text(s / "status") for s in supplies if text(s / "type") == "Battery"]
    return "Discharging" in states if any(states) else None


def read_temperatures(root: Path) -> dict[str, float]:
    """Return degrees Celsius by thermal zone; empty when unknown."""
    found: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        milli = number(zone / "temp")
        if milli is not None:
            found[text(zone / "type") or zone.name] = milli / 1000
    return found


def _complaints(root: Path) -> tuple[str, ...]:
    raw = text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    bits = int(raw, 16) if raw and re.fullmatch(r"(0x)?[0-9a-fA-F]+", raw) else 0
    return tuple(words for bit, words in _THROTTLED.items() if bits >> bit & 1)
