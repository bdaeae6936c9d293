"""What a variant of integers passed with and is worth a word: little left, or nothing gained."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from edgeinfer.convert.verify.gate import OutputResult, VariantResult
from edgeinfer.metrics import Budget

NEARLY = 0.85
"""Share of a budget from which it is said that little is left."""

AUTO_HELPS = (
    "--precision auto (with --calibration, and --max-drop or --metric) keeps the layers float that "
    "the accuracy needs"
)


AUTO_FASTER = (
    "--precision auto (with --calibration, and --max-drop or --metric) takes integers only where "
    "they are faster, or smaller"
)

SLOWER = 1.1
"""Share of the float model's time from which it is said that integers are slower."""


def doubts(result: VariantResult, source_bytes: int, slower: float | None = None) -> Iterator[str]:
    """Yield lines about a variant of integers that passed and may not be what was hoped for.

    Args:
        result: Result of the gate.
        source_bytes: Size in bytes of the float model's weights.
        slower: time of a run here, of the float model's; None where nothing was measured.
    """
    if not result.passed:
        return
    used = [
        (share, engine.backend, output)
        for engine in result.engines
        for output in engine.outputs
        if (share := _used(output, result.budget)) >= NEARLY
    ]
    if used:
        share, backend, output = max(used, key=lambda u: u[0])
        yield (
            f"{result.id} on {backend}: output {output.name!r} takes {share:.0%} of its budget: "
            f"{AUTO_HELPS}"
        )
    if slower is not None and slower >= SLOWER:
        yield (
            f"{result.id} takes {slower:.2f} times as long as fp32 here (median of runs that took "
            f"turns, {platform.machine()}): {AUTO_FASTER}"
        )
    if result.size_bytes >= source_bytes > 0:
        yield (
            f"{result.id} is no smaller than the float model: {result.size_bytes / 1e6:.2f} MB "
            f"with {source_bytes / 1e6:.2f} MB of float weights: {AUTO_FASTER}"
        )


def outweighed(variants: int, vectors: int, source_bytes: int, is_given: bool = False) -> str:
    """Say that a bundle of integers is no smaller than float weights; empty where it is.

    Args:
        variants: bytes of all artifacts.
        vectors: bytes of the test vectors next to them.
        source_bytes: Size in bytes of the float model's weights.
        is_given: vectors came with --data.
    """
    less = "what was given with --data always travels, so give less of it; " if is_given else ""
    if variants >= source_bytes or variants + vectors < source_bytes:
        return ""
    return (
        f"with {vectors / 1e6:.2f} MB of test vectors the bundle is no smaller than the float "
        f"weights ({variants / 1e6:.2f} MB of {source_bytes / 1e6:.2f} MB without them); "
        f"{less}{AUTO_FASTER}"
    )


def _used(output: OutputResult, budget: Budget) -> float:
    """Return the largest share of what may be lost that an output has lost."""
    metrics = output.metrics
    if output.floor is not None and metrics.max_abs <= output.floor:
        return 0.0
    shares = [metrics.max_rel / budget.max_rel if budget.max_rel else 0.0]
    # In dB: of the energy that may be wrong.
    shares.append(10.0 ** ((budget.sqnr_db - metrics.sqnr_db) / 10.0))
    return max(shares)
