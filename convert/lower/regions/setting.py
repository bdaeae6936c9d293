"""Whether and for how long parts of a model are tried, and for which CPU."""

from __future__ import annotations

import os
import platform

from edgeinfer.backends.tvm_library import cpu_features
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import UsageError

SECONDS = "EDGEINFER_REGIONS"
"""Seconds of a conversion in which parts of the graph are tried; ``off`` for none."""

_SECONDS = 45.0
_MACHINES = ("x86-64-v4", "x86-64-v3")


def seconds() -> float:
    """How long parts are tried for; 0 if not at all.

    Raises:
        UsageError: the setting is no number.
    """
    text = os.environ.get(SECONDS, "")
    if text in ("", "off"):
        return 0.0 if text else _SECONDS
    try:
        return max(0.0, float(text))
    except ValueError:
        raise UsageError(f"{SECONDS}={text!r}: expected seconds or off") from None


def machine_here() -> str:
    """The newest instruction set that this CPU has and code is made for; empty if none."""
    known = cpu_features()
    for name in _MACHINES:
        found = machine(name)
        if found.arch == platform.machine() and set(found.features) <= known:
            return name
    return ""
