"""What each operator of a session costs, for its report."""

from __future__ import annotations

from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend, LoadOptions, able
from edgeinfer.backends.operators import OperatorProfile, Placement, Placing, Profiling
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Variant
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.runtime.prebuilt_engines import artifact_of
from edgeinfer.runtime.select import Pair
from edgeinfer.types import Feeds

RUNS = 20


def profile_pair(
    bundle: Bundle,
    variant: Variant,
    pair: Pair,
    *,
    feeds: Feeds | None = None,
    options: LoadOptions,
    runs: int = RUNS,
    isolate: bool = False,
) -> OperatorProfile:
    """Open an artifact once more, with its engine's profiler, and run it.

    Args:
        bundle: open.
        variant: Variant of it.
        pair: what runs it.
        feeds: inputs; None takes those of the first test vector.
        options: it is opened with.
        runs: to time.
        isolate: in a process of its own, where fragile engines run always.

    Raises:
        NotAvailableError: the backend cannot say.
        UsageError: there are no inputs to run.
        LoadError: the engine refuses the artifact.
        RunError: it fails.
    """
    backend: Backend = registry.get(pair.backend)
    if not isinstance(backend, Profiling):
        raise NotAvailableError(f"backend {pair.backend!r} cannot say what operators cost")
    if isolate or backend.capabilities().fragile:
        from edgeinfer.backends.process.isolated import IsolatedBackend

        backend = IsolatedBackend(pair.backend, reuse=False)
    if not isinstance(backend, Profiling):
        raise NotAvailableError(f"backend {pair.backend!r} cannot say what operators cost")
    if feeds is None:
        first = next(bundle.vectors(), None)
        if first is None:
            raise UsageError(f"{bundle.location}: has no test vectors; give inputs to run")
        feeds = first[0]
    artifact = artifact_of(bundle, variant)
    return backend.profile(artifact, options, feeds, runs=runs)


def placement_of(executable: object) -> Placement | None:
    """Where an executable's operators run, if it says so.

    Others hand calls on to one that may know, so what they say of themselves decides nothing.
    """
    found = executable.placement() if able(executable, Placing) else None
    return found if isinstance(found, Placement) else None
