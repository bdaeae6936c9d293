"""What the profile of a system says of the processor at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.machine.fingerprint import Fingerprint

if TYPE_CHECKING:
    from edgeinfer.profiles.schema import Chip

WITH_CHIPS = frozenset({"macos"})
"""Systems whose profile tells chips apart; elsewhere no profile is read."""


def chip_here(machine: Fingerprint) -> Chip | None:
    """What the profile of its system says of the processor."""
    if machine.os not in WITH_CHIPS:
        return None
    from edgeinfer import profiles
    from edgeinfer.profiles.schema import chip_of

    return chip_of(profiles.load(machine.os).chips, machine.cpu)
