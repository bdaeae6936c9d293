"""Which variants a backend is offered: those made for it, and by name all that it can open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from edgeinfer.backends import registry
from edgeinfer.backends.base import Probe
from edgeinfer.bundle.manifest import EngineRequirement, Variant
from edgeinfer.bundle.values import KEY, LEVELS, stricter
from edgeinfer.runtime.select import Rejected, distinct


def with_requested(variants: Sequence[Variant], backend: str | None) -> tuple[Variant, ...]:
    """Let a backend that was requested try every variant of a format it opens.

    Where variants were made for it, these alone: others lack the repairs of what it gets wrong, and
    nobody has checked them on it.

    Raises:
        UsageError: there is no such backend.
        NotAvailableError: the plugin that provides it cannot be used.
    """
    kept = distinct(variants)
    if backend is None:
        return kept
    can = registry.get(backend).capabilities()
    own = [v for v in kept if _is_made_for(v, backend)]
    if own:
        return kept
    return tuple(
        v
        # What an engine is set to compute in is for the engine that was checked so.
        if v.format not in can.formats or v.computed_in
        else replace(
            v,
            engines=(*v.engines, EngineRequirement(backend)),
            constraints=_held_to(v.constraints, can.unprepared_inputs),
        )
        for v in kept
    )


def unprepared(variants: Sequence[Variant], backend: str | None) -> str:
    """Say of a backend that was requested that no variant is made for it; empty otherwise."""
    if backend is None or not variants or any(_is_made_for(v, backend) for v in variants):
        return ""
    return (
        f"no artifact is made for {backend}: what others are made for runs on it as requested, "
        "without repairs of what it gets wrong, and only the bundle's vectors check its numbers"
    )


def _is_made_for(variant: Variant, backend: str) -> bool:
    return any(engine.backend == backend for engine in variant.engines)


def _held_to(constraints: Mapping[str, str], level: str) -> dict[str, str]:
    """Add what an engine loses to what an artifact loses: the stricter of both levels holds."""
    own = constraints.get(KEY, level)
    # One that is not known stays, and nothing is run.
    strict = stricter(own, level) if own in LEVELS and level else own
    return {**constraints, KEY: strict} if strict else dict(constraints)


def by_name_only(variants: Sequence[Variant], probes: Mapping[str, Probe]) -> Iterator[Rejected]:
    """Yield what a backend that is here is not offered unless it is requested by name."""
    kept = distinct(variants)
    own = {name: [v.id for v in kept if _is_made_for(v, name)] for name in probes}
    for variant in kept:
        made_for = {engine.backend for engine in variant.engines}
        for name, probe in probes.items():
            if name in made_for or not probe.available:
                continue
            can = registry.get(name).capabilities()
            if variant.format in can.formats and not variant.computed_in:
                reason = f"made for {' and '.join(sorted(made_for))}; "
                reason += (
                    f"{name} runs {' and '.join(own[name])}, made for it"
                    if own[name]
                    else f"--backend {name} tries it all the same"
                )
                yield Rejected(variant.id, name, "", reason)
