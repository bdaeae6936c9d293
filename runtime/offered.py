"""Which variants a backend is offered: those made for it, and by name all that it can open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from edgeinfer.backends import registry
from edgeinfer.backends.base import Probe
from edgeinfer.bundle.manifest import EngineRequirement, Variant
from edgeinfer.bundle.values import KEY, LEVELS
from edgeinfer.runtime.select import Rejected, distinct


def with_requested(variants: Sequence[Variant], backend: str | None) -> tuple[Variant, ...]:
    """Let a backend that was asked for try every variant of a format it opens.

    Raises:
        UsageError: there is no such backend.
        NotAvailableError: the plugin that provides it cannot be used.
    """
    kept = distinct(variants)
    if backend is None:
        return kept
    can = registry.get(backend).capabilities()
    own = [v for v in kept if any(e.backend == backend for e in v.engines)]
    # What the engine loses in the artifact made for it, it loses in the others too.
    levels = [v.constraints[KEY] for v in own if v.constraints.get(KEY) in LEVELS]
    if not own and can.unprepared_inputs:
        levels = [can.unprepared_inputs]
    held = {KEY: max(levels, key=LEVELS.index)} if levels else {}
    return tuple(
        v
        if v.format not in can.formats or v in own
        else replace(
            v,
            engines=(*v.engines, EngineRequirement(backend)),
            constraints={**held, **v.constraints},
        )
        for v in kept
    )


def by_name_only(variants: Sequence[Variant], probes: Mapping[str, Probe]) -> Iterator[Rejected]:
    """Yield what a backend that is here is not offered unless it is asked for by name."""
    for variant in distinct(variants):
        made_for = {engine.backend for engine in variant.engines}
        for name, probe in probes.items():
            if name in made_for or not probe.available:
                continue
            if variant.format in registry.get(name).capabilities().formats:
                reason = f"not made for it; only with --backend {name}"
                yield Rejected(variant.id, name, "", reason)
