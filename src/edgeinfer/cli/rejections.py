"""What would run a bundle here, and of each other engine why it would not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from edgeinfer.backends.base import Capabilities
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.errors import NotAvailableError
from edgeinfer.runtime.select import Candidate, Plan

Row = tuple[str, bool | None, str, str]
"""As a ``Finding`` of the doctor."""

_FIRST_LOAD = "the first load measures it"

_EVALUATES = "checks the numbers of what another device runs, and is no engine to use"


def findings_of(path: str, policy: Any, trust: Mapping[str, Any]) -> list[Row]:
    """Look at a bundle; nothing is loaded or measured.

    Args:
        path: Path of the bundle.
        policy: what counts.
        trust: options of opening it.

    Raises:
        UsageError: there is no such bundle or policy.
        BundleError: it is damaged.
    """
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.runtime.choice import ranked
    from edgeinfer.runtime.options import ChoiceOptions
    from edgeinfer.runtime.profiledb import ProfileDB

    with Bundle.open(path, **trust) as bundle, ProfileDB() as history:
        plan = ranked(bundle, ChoiceOptions(policy=policy), history)
        return [*explained(bundle.manifest, plan, _able())]


def _able() -> dict[str, Capabilities]:
    """Return what each engine can do; the machine's own rows tell of one that is not here."""
    from edgeinfer.backends import registry

    found = {}
    for name in registry.names():
        with suppress(NotAvailableError):
            found[name] = registry.get(name).capabilities()
    return found


def explained(manifest: Manifest, plan: Plan, known: Mapping[str, Capabilities]) -> Iterator[Row]:
    """Say it of each engine; a function of its arguments alone.

    Args:
        manifest: Manifest of the bundle.
        plan: the ranking here.
        known: what each registered engine can do.
    """
    best = plan.candidates[0] if plan.candidates else None
    evaluated = not any(_keeps_time(c, known) for c in plan.candidates)
    named = {engine.backend for v in manifest.variants for engine in v.engines}
    for name in sorted(named | known.keys(), key=lambda n: _place(n, plan)):
        what = f"{manifest.name} on {name}"
        ours = [c for c in plan.candidates if c.pair.backend == name]
        refused = [r for r in plan.rejected if r.backend == name]
        if best is not None and ours and ours[0] is best and evaluated:
            yield what, None, f"would evaluate {best.pair.variant} ({best.pair.device})", _EVALUATES
        elif best is not None and ours and ours[0] is best:
            measured = "" if best.measured else f"; {_FIRST_LOAD}"
            yield what, True, f"would run {best.pair.variant} ({best.pair.device})", ""
            yield f"{what}: why", True, f"{best.reason}{measured}", ""
        elif ours and best is not None:
            yield what, None, "would not be chosen", _slower(ours[0], best)
        elif refused:
            reasons = "; ".join(dict.fromkeys(f"{r.variant}: {r.reason}" for r in refused))
            yield what, None, "cannot run it", reasons
        else:
            yield what, None, "has nothing to run", _nothing(manifest, known[name])


def _keeps_time(candidate: Candidate, known: Mapping[str, Capabilities]) -> bool:
    can = known.get(candidate.pair.backend)
    return can is None or can.keeps_time


def _place(name: str, plan: Plan) -> tuple[int, str]:
    order = [c.pair.backend for c in plan.candidates]
    return (order.index(name) if name in order else len(order), name)


def _slower(candidate: Candidate, best: Candidate) -> str:
    if candidate.measured is None:
        return f"{candidate.pair} comes behind {best.pair} in preference; {_FIRST_LOAD}"
    return f"{candidate.pair}: {candidate.reason}, against {best.reason} of {best.pair}"


def _nothing(manifest: Manifest, can: Capabilities) -> str:
    here = sorted({v.format for v in manifest.variants})
    shared = sorted(can.formats & set(here))
    if shared:
        return (
            f"it opens {', '.join(shared)}, but no artifact of the bundle was made for it; "
            "backend= tries it all the same"
        )
    return f"the bundle has {', '.join(here)}, it opens {', '.join(sorted(can.formats))}"
