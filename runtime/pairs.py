"""Every artifact of a bundle on every engine that can run it here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend, Executable, LoadOptions
from edgeinfer.backends.process import guard, isolation
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.consent import KINDS
from edgeinfer.bundle.manifest import Variant
from edgeinfer.errors import LoadError, NotAvailableError, UsageError
from edgeinfer.machine.cuda import absence
from edgeinfer.machine.fingerprint import fingerprint
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass
from edgeinfer.runtime.offered_variants import by_name_only, with_requested
from edgeinfer.runtime.operators import placement_of
from edgeinfer.runtime.prebuilt_engines import artifact_of, as_built
from edgeinfer.runtime.select import Candidate, Pair, Rejected, also, rank, sharing
from edgeinfer.runtime.trusted import barred


@dataclass(frozen=True, slots=True)
class Pairs:
    """What can run here and what cannot.

    Attributes:
        candidates: one for each artifact, engine and kind of device; targets that share an
            artifact are listed once.
        rejected: the rest, with reasons.
        variants: Variants of the bundle, by id.
        sharing: by the same ids, the variant of each target that shares the artifact.
    """

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    variants: dict[str, Variant]
    sharing: dict[str, tuple[Variant, ...]]

    @property
    def also(self) -> dict[str, tuple[str, ...]]:
        """The variants of other targets that are the same artifact, by the first one's id."""
        return also(v for group in self.sharing.values() for v in group)

    def meant(self, pair: Pair) -> tuple[Variant, ...]:
        """Return the variants of all targets that want the artifact on this engine.

        Where none wants it there, and it was requested by name, these are all that share it.
        """
        shared = self.sharing[pair.variant]
        wanted = [v for v in shared if any(e.backend == pair.backend for e in v.engines)]
        return tuple(wanted) or shared


@contextmanager
def opened(bundle: str | Path | Bundle, opening: Mapping[str, Any]) -> Iterator[Bundle]:
    """Open a bundle for the block; one that is open already stays open."""
    if isinstance(bundle, Bundle):
        if opening:
            raise UsageError(f"an open bundle takes no {', '.join(opening)}")
        yield bundle
        return
    with Bundle.open(bundle, **opening) as found:
        yield found


def pairs(bundle: Bundle, backend: str | None = None) -> Pairs:
    """List them.

    Args:
        bundle: open.
        backend: only this one; it may then try every format it opens.

    Raises:
        NotAvailableError: nothing can run here; says why for each pair.
        UsageError: there is no such backend.
    """
    variants = with_requested(bundle.manifest.variants, backend)
    probes = {probe.backend: probe for probe in registry.probe_all()}
    refused = barred(bundle)
    plan = rank(
        *(variants, probes, fingerprint()),
        backend=backend,
        barred=refused,
        allow=frozenset(KINDS),
    )
    if not plan.candidates:
        reasons = "; ".join(str(r) for r in plan.rejected)
        raise NotAvailableError(f"{bundle.location}: nothing in it can run here: {reasons}")
    order = {variant.id: position for position, variant in enumerate(variants)}
    candidates = sorted(plan.candidates, key=lambda c: order[c.pair.variant])
    known = {v.id: v for v in variants}
    shared = {group[0].id: group for group in sharing(bundle.manifest.variants)}
    found = Pairs(tuple(candidates), (), known, shared)
    rejected = tuple(_absent(found))
    rejected += tuple(r for r in plan.rejected if backend in (None, r.backend))
    if backend is None:
        rejected += tuple(by_name_only([v for v in variants if v.id not in refused], probes))
    return replace(found, rejected=rejected)


def meant_for(variant: Variant) -> Profile | None:
    """Return what is known of the devices that a variant is for; None of a profile of others."""
    return profiles.load(variant.target) if variant.target in profiles.names() else None


def stands_in(profile: Profile | None, pair: Pair) -> bool:
    """Whether the CPU runs what is meant for another unit."""
    return profile is not None and pair.device == "cpu" != profile.unit


def _absent(found: Pairs) -> Iterator[Rejected]:
    """Name the units that the CPU stands in for, and why they are not here."""
    ran = {c.pair for c in found.candidates}
    for pair in (c.pair for c in found.candidates):
        for variant in found.meant(pair):
            profile = meant_for(variant)
            if profile is None or not stands_in(profile, pair):
                continue
            if replace(pair, device=profile.unit) not in ran:
                why = absence(pair.backend, profile.unit)
                yield Rejected(variant.id, pair.backend, profile.unit, why)


def open_pair(
    bundle: Bundle,
    found: Pairs,
    candidate: Candidate,
    threads: int | None = None,
    *,
    fallback: bool = False,
    limit_s: float | None = None,
) -> Executable:
    """Load one.

    Args:
        bundle: open.
        found: in it.
        candidate: Candidate of these.
        threads: Threads of the engine.
        fallback: operators that the device does not take may run on the CPU.
        limit_s: that loading it, and each run, may take; the engine then gets a process of its own,
            where this system has such. None for no limit.

    Raises:
        BundleError: a file is altered.
        CrashedError: the engine took longer, or crashed in its process.
        LoadError: the engine refuses the artifact.
    """
    variant, pair = found.variants[candidate.pair.variant], candidate.pair
    artifact = artifact_of(bundle, variant)
    options = LoadOptions(pair.device, threads, fallback=fallback)
    options = as_built(bundle, variant, pair.backend, options)
    executable = guard.load(within(pair.backend, limit_s), artifact, options)
    if pair.device != "cpu" and not fallback and (problem := fallen(executable)):
        executable.close()
        raise LoadError(f"{problem}; --allow-fallback lets them run there")
    return executable


def within(backend: str, limit_s: float | None) -> Backend:
    """Return a backend that is ended where it takes longer than it may; a fragile one always is."""
    engine = registry.get(backend)
    if limit_s is None and engine.capabilities().fragile:
        limit_s = isolation.TIMEOUT_S
    if limit_s is None or not isolation.apart():
        return engine
    # What starts processes takes milliseconds to import.
    from edgeinfer.backends.process.isolated import IsolatedBackend

    return IsolatedBackend(backend, run_s=limit_s, load_s=limit_s, reuse=False)


def fallen(executable: Executable) -> str:
    """Say which operators do not run on the unit that was requested; empty when all do."""
    placed = placement_of(executable)
    return str(placed) if placed is not None and placed.elsewhere else ""
