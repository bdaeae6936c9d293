"""What is known of the Mac at hand's chip, as far as it bears on how a package should be made."""

from __future__ import annotations

from collections.abc import Iterable

from edgeinfer import profiles
from edgeinfer.machine.sysfs import printed
from edgeinfer.profiles.schema import Chip, chip_of

PROFILE = "macos"


def processor() -> str:
    """Return the processor's name as the system tells it; empty where it does not."""
    return printed("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string").strip()


def chip() -> Chip | None:
    """Return what the profile of Macs says of this one's chip; None where it does not know it."""
    return chip_of(profiles.load(PROFILE).chips, processor())


def advice(here: Chip | None, operators: Iterable[str]) -> list[str]:
    """Say what a package asks for that the Neural Engine of a chip does not speed up.

    Args:
        here: the chip; nothing is said of one that is not known.
        operators: types of the package's operators.
    """
    if here is None or here.has_int8 or "quantize" not in {o.split(".")[-1] for o in operators}:
        return []
    return [
        f"its 8-bit activations are no faster than half precision on the Neural Engine of "
        f"{here.name} ({here.source})"
    ]
