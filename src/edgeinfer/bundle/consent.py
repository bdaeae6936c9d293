"""Precisions that run only where somebody allowed them, apart from the others."""

from __future__ import annotations

import os
from collections.abc import Collection

from edgeinfer.errors import UsageError

KINDS = ("bf16", "fp16", "tf32", "int8", "int4", "fp8")
"""What can be allowed: floats of fewer bits, and weights or activations in integers."""

VARIABLE = "EDGEINFER_ALLOW"


def allowed(given: Collection[str] | None) -> frozenset[str]:
    """Return what a caller allows.

    Args:
        given: names of ``KINDS``, each alone or several with commas between them; None looks at
            EDGEINFER_ALLOW.

    Raises:
        UsageError: there is no such kind.
    """
    source = "allow"
    if given is None:
        source, given = VARIABLE, os.environ.get(VARIABLE, "")
    texts = [given] if isinstance(given, str) else given
    found = frozenset(word.strip() for text in texts for word in text.split(",") if word.strip())
    if unknown := sorted(found - {*KINDS}):
        raise UsageError(f"{source}: {unknown[0]!r} is unknown; known: {', '.join(KINDS)}")
    return found
