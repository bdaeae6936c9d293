"""Processing units of a machine."""

from __future__ import annotations

from typing import Literal

from edgeinfer.records import dataclass

DeviceKind = Literal["cpu", "gpu", "npu"]


@dataclass(frozen=True, slots=True)
class Device:
    """A processing unit that an engine offers here."""

    kind: DeviceKind
    name: str
    index: int = 0
