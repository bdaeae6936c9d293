"""Deployment targets: the oldest system that is to open a package, and what it knows."""

from __future__ import annotations

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Deployment:
    """One generation of Apple's systems.

    Attributes:
        specification: version of the package's specification.
        ios: the name by which it is requested.
        macos: the macOS of the same generation.
    """

    specification: int
    ios: str
    macos: str

    def __str__(self) -> str:
        return f"{self.ios}/{self.macos}"


DEPLOYMENTS = (
    Deployment(6, "iOS15", "macOS12"),
    Deployment(7, "iOS16", "macOS13"),
    Deployment(8, "iOS17", "macOS14"),
    Deployment(9, "iOS18", "macOS15"),
    Deployment(10, "iOS26", "macOS26"),
)
"""Those with ML Programs, oldest first.

Source: coremltools 9.0, ``AvailableTarget``.
"""

IOS16, IOS17, IOS18 = DEPLOYMENTS[1:4]
DEFAULT = IOS17
"""The oldest one whose operators take 8- and 16-bit integers and quantized activations."""


def deployment(name: str) -> Deployment:
    """Return the generation of a system's name, e.g. ``iOS17`` or ``macos14``.

    Raises:
        UsageError: there is none, or it has no ML Programs.
    """
    for one in DEPLOYMENTS:
        if name.lower() in (one.ios.lower(), one.macos.lower()):
            return one
    known = ", ".join(str(d) for d in DEPLOYMENTS)
    raise UsageError(f"deployment target {name!r}: expected one of {known}")


def knowing(specification: int) -> Deployment | None:
    """Return the first generation that reads a version of the specification."""
    return next((d for d in DEPLOYMENTS if d.specification >= specification), None)
