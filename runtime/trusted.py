"""Which variants of a bundle may not run here, because they are machine code of a stranger."""

from __future__ import annotations

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.trust import HINT, level_of


def barred(bundle: Bundle) -> dict[str, str]:
    """Return why variants may not run, by id; empty where all may."""
    if bundle.native.allowed:
        return {}
    reason = f"is machine code, and {bundle.native.why}; {HINT}"
    return {v.id: reason for v in bundle.manifest.variants if level_of(v) == "native"}


def left_out(bundle: Bundle) -> list[str]:
    """Return a note on the variants that may not run; empty where all may."""
    variants = barred(bundle)
    if not variants:
        return []
    return [f"{', '.join(variants)} left out: machine code, and {bundle.native.why}; {HINT}"]
