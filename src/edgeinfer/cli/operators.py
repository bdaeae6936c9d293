"""What ``edgeinfer bench --ops`` says of each operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.base import LoadOptions
from edgeinfer.cli.output import table
from edgeinfer.errors import BackendError
from edgeinfer.runtime.operators import profile_pair
from edgeinfer.runtime.report import sum_line

if TYPE_CHECKING:
    from edgeinfer.backends.operators import Operator, OperatorProfile
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.pairs import Pairs
    from edgeinfer.runtime.select import Pair
    from edgeinfer.types import Array

SHOWN = 15
"""Operators of each artifact that are printed, the dearest first; ``--json`` has all."""


def profiles(
    bundle: Bundle,
    found: Pairs,
    feeds: dict[str, Array],
    threads: int | None,
    *,
    fallback: bool,
    runs: int,
) -> tuple[dict[Pair, OperatorProfile], list[str]]:
    """Profile every pair; also say which cannot be, and why."""
    measured: dict[Pair, OperatorProfile] = {}
    silent: list[str] = []
    for candidate in found.candidates:
        pair = candidate.pair
        options = LoadOptions(pair.device, threads, fallback=fallback)
        try:
            measured[pair] = profile_pair(
                *(bundle, found.variants[pair.variant], pair),
                feeds=feeds,
                options=options,
                runs=runs,
            )
        except BackendError as e:
            silent.append(f"{pair}: {e}")
    return measured, silent


def view(measured: dict[Pair, OperatorProfile], silent: list[str]) -> Iterator[str | Table]:
    """Yield what is printed."""
    for pair, profile in measured.items():
        yield ""
        yield f"{pair}: {sum_line(profile)}"
        rows = sorted(profile.operators, key=lambda o: -(o.us or 0.0))[:SHOWN]
        columns = ("operator", "kind", "unit", ">us", ">share", "precision", "role", "nodes")
        yield table(columns, [_row(op, profile) for op in rows])
        if len(profile.operators) > SHOWN:
            yield f"and {len(profile.operators) - SHOWN} more; --json has them"
    yield from (f"no operators: {line}" for line in silent)


def _row(op: Operator, profile: OperatorProfile) -> tuple[str, ...]:
    share = _share(op, profile)
    return (
        op.name,
        op.kind,
        op.unit,
        "" if op.us is None else f"{op.us:.1f}",
        "" if share is None else f"{share:.1%}",
        op.precision,
        op.role,
        ", ".join(n for n in op.nodes if n != op.name),
    )


def _share(op: Operator, profile: OperatorProfile) -> float | None:
    return op.us / profile.timed_us if op.us is not None and profile.timed_us else None


def to_data(measured: dict[Pair, OperatorProfile], silent: list[str]) -> dict[str, Any]:
    """Return what is saved."""
    return {
        "profiles": [
            {
                "variant": pair.variant,
                "backend": pair.backend,
                "device": pair.device,
                "tool": profile.tool,
                "runs": profile.runs,
                "whole_us": profile.whole_us,
                "plain_us": profile.plain_us,
                "timed_us": profile.timed_us,
                "covered": profile.covered,
                "note": profile.note,
                "roles": {
                    role: {"count": count, "us": us}
                    for role, (count, us) in profile.by_role().items()
                },
                "operators": [
                    {
                        "name": op.name,
                        "kind": op.kind,
                        "unit": op.unit,
                        "us": op.us,
                        "share": _share(op, profile),
                        "precision": op.precision,
                        "role": op.role,
                        "nodes": list(op.nodes),
                    }
                    for op in profile.operators
                ],
            }
            for pair, profile in measured.items()
        ],
        "silent": silent,
    }
