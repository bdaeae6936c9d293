"""Which processors multiply floats of fewer bits."""

from __future__ import annotations

from collections.abc import Collection

NEEDED = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    "tf32": frozenset[str](),
}
"""By type, the features of processors that multiply it; one of them will do."""


def lacking(kind: str, features: Collection[str]) -> str:
    """Say what a processor lacks to compute in a type; empty where it does so.

    Args:
        kind: name of the type.
        features: Features of the processor.
    """
    known = NEEDED.get(kind)
    if known is None:
        return f"is to be computed in {kind}, which this version of edgeinfer does not know"
    if known.intersection(features):
        return ""
    needed = f": it needs {' or '.join(sorted(known))}" if known else ", a GPU may"
    return f"is to be computed in {kind}, which this processor does not multiply{needed}"
