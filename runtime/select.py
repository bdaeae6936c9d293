"""Which variant on which backend: a pure function, with a reason for every pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from edgeinfer.backends.base import DeviceKind, Probe
from edgeinfer.bundle import values
from edgeinfer.bundle.manifest import EngineRequirement, Variant
from edgeinfer.bundle.passing import is_passing
from edgeinfer.errors import NotAvailableError, RefusedError, UsageError
from edgeinfer.machine.arithmetic import lacking
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.records import dataclass
from edgeinfer.versions import accepts

if TYPE_CHECKING:
    from edgeinfer.profiles.schema import Chip, Profile

Policy = Literal["latency", "throughput", "memory", "energy", "explicit"]
"""What counts; ``explicit`` takes what the caller names, in the bundle's order, however fast."""
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Pair:
    """A variant on a backend on a kind of device.

    Attributes:
        variant: the variant's id.
        backend: the backend's name.
        device: the kind of unit.
    """

    variant: str
    backend: str
    device: DeviceKind

    def __str__(self) -> str:
        return f"{self.variant} on {self.backend} ({self.device})"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pair did on this machine.

    Attributes:
        median_ms: Median time in milliseconds of one run.
        p95_ms: P95 in milliseconds of one run.
        cpu_ms: processor time of one run over all threads; stands for energy where the machine
            has no meter.
        per_second: runs a second with as many callers as CPUs.
        memory_mb: memory that loading and running took.
        runs: how many runs were timed.
        problem: why it must not be used (numbers out of budget, refused by the engine).
        noise: relative error of the median against that of the fastest.
    """

    median_ms: float = math.inf
    p95_ms: float = math.inf
    cpu_ms: float = math.inf
    per_second: float = 0.0
    memory_mb: float = math.inf
    runs: int = 0
    problem: str = ""
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair that can run here.

    Attributes:
        pair: what and where.
        version: Version of the engine.
        reason: why it stands where it stands.
        measured: what is known of it; None before it was measured.
    """

    pair: Pair
    version: str
    reason: str
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A pair that cannot or must not run here, and why.

    Attributes:
        variant: id of it.
        backend: name of the engine.
        device: kind of device; empty where none was considered.
        reason: why.
        is_at_fault: the engine is here and failed with the artifact, whenever it is asked.
        gain: how many times better than the best candidate it was here, where only consent lacks
            and both were measured; else 0.
    """

    variant: str
    backend: str
    device: str
    reason: str
    is_at_fault: bool = False
    gain: float = 0.0

    def __str__(self) -> str:
        device = f" ({self.device})" if self.device else ""
        return f"{self.variant} on {self.backend}{device}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates, best first, and everything else with its reason."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    @property
    def best(self) -> Candidate:
        """The first candidate.

        Raises:
            NotAvailableError: there is none; says why for every pair.
            RefusedError: likewise, and an engine that is here refuses what it is given.
        """
        if not self.candidates:
            reasons = "; ".join(str(r) for r in self.rejected)
            kind = NotAvailableError
            if any(r.is_at_fault for r in self.rejected):
                kind = RefusedError
            raise kind(f"nothing in this bundle can run here: {reasons}")
        return self.candidates[0]


def distinct(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Keep the first of the variants that share files and constraints, with all their engines.

    Targets that write the same artifact share it; measuring it once is enough.
    """
    kept = []
    for first, *others in sharing(variants):
        engines = {engine.backend: engine for engine in first.engines}
        for engine in (e for variant in others for e in variant.engines):
            engines.setdefault(engine.backend, engine)
        kept.append(replace(first, engines=tuple(engines.values())))
    return tuple(kept)


def sharing(variants: Iterable[Variant]) -> list[tuple[Variant, ...]]:
    """Group the variants that share files and constraints, in their order."""
    groups: dict[object, tuple[Variant, ...]] = {}
    for variant in variants:
        how = variant.precision, variant.computed_in, variant.consent
        key = (variant.files, variant.format, *how, tuple(variant.constraints.items()))
        groups[key] = (*groups.get(key, ()), variant)
    return list(groups.values())


def also(variants: Iterable[Variant]) -> dict[str, tuple[str, ...]]:
    """Return the variants of other targets that are the same artifact, by the first one's id."""
    return {first.id: tuple(v.id for v in more) for first, *more in sharing(variants) if more}


@dataclass(frozen=True, slots=True)
class _Option:
    """A pair that can run, with its place in the order of preference."""

    pair: Pair
    version: str
    size_bytes: int
    order: tuple[float, ...]
    measured: Measured | None


def rank(
    variants: Sequence[Variant],
    probes: Mapping[str, Probe],
    device: Fingerprint,
    *,
    profile: Profile | None = None,
    chip: Chip | None = None,
    policy: Policy = "latency",
    history: Mapping[Pair, Measured] | None = None,
    backend: str | None = None,
    kind: DeviceKind | None = None,
    barred: Mapping[str, str] | None = None,
    unproven: AbstractSet[str] = frozenset(),
    allow: AbstractSet[str] = frozenset(),
    made_on: str = "",
) -> Plan:
    """Order all that can run here; a function of its arguments alone.

    Args:
        variants: Variants of the bundle.
        probes: by backend name.
        device: this machine.
        profile: its order of backends, used before anything was measured.
        chip: what is known of its processor, likewise.
        policy: what counts.
        history: what was measured on this very machine and engine version.
        backend: allow only this one.
        kind: allow only this kind of unit.
        barred: why variants may not run whatever could run them, by id.
        unproven: ids of variants that no test vector judges: engines older than the one that they
            were tested with do not run them.
        allow: precisions that variants may have which need consent; what others would
            gain is reported where it was measured.
        made_on: machine whose times those of the variants are, as a manifest names it.

    Raises:
        UsageError: the policy is unknown.
        NotAvailableError: a backend or kind was requested and nothing can run on it.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy {policy!r} is unknown; expected {', '.join(POLICIES)}")
    if policy == "explicit" and backend is None:
        raise UsageError("policy 'explicit' takes what is named: give backend= (--backend) too")
    options: list[_Option] = []
    unasked: list[tuple[str, _Option]] = []
    rejected: list[Rejected] = []
    for position, variant in enumerate(variants):
        for place, engine in enumerate(variant.engines):
            reason = (barred or {}).get(variant.id) or _unfit(
                variant, engine, probes, device, backend, unproven
            )
            if reason:
                rejected.append(Rejected(variant.id, engine.backend, "", reason))
                continue
            probe = probes[engine.backend]
            for step, unit in enumerate(_kinds(probe)):
                order = (
                    *(step, engine.is_newer_than(probe.version)),
                    *(_against(variant, unit, chip), _preference(profile, engine)),
                    *(place, _known_ms(variant), position),
                )
                pair = Pair(variant.id, engine.backend, unit)
                measured = (history or {}).get(pair)
                wanted = _refused(pair, kind, probe, measured)
                if problem := _elsewhere(variant, unit, device) or wanted:
                    failed = measured.problem if measured is not None else ""
                    at_fault = bool(failed) and not is_passing(failed)
                    rejected.append(Rejected(variant.id, engine.backend, unit, problem, at_fault))
                    continue
                version = probe.version or ""
                option = _Option(pair, version, variant.size_bytes, order, measured)
                if variant.consent and variant.consent not in allow:
                    unasked.append((variant.consent, option))
                else:
                    options.append(option)
    options.sort(key=lambda o: (_score(o, policy), o.order))
    plain = min((_known_ms(v) for v in variants if not v.consent), default=math.inf)
    here = made_on == f"{device.cpu} ({device.arch}, {device.os})" and policy == "latency"
    made = {v.id: plain / _known_ms(v) for v in variants if here and math.isfinite(plain)}
    rejected += [_unallowed(kind, o, options[:1], policy, made) for kind, o in unasked]
    plan = Plan(tuple(_explain(options, policy)), tuple(rejected))
    if not plan.candidates and (backend or kind):
        wanted = " and ".join(f"{w}" for w in (backend and f"backend {backend!r}", kind) if w)
        reasons = "; ".join(str(r) for r in rejected if backend in (None, r.backend))
        formats = ", ".join(dict.fromkeys(v.format for v in variants)) or "nothing"
        reasons = reasons or f"the bundle has {formats}, which it does not open"
        error = RefusedError if any(r.is_at_fault for r in rejected) else NotAvailableError
        raise error(f"{wanted} was requested and cannot be used: {reasons}")
    return plan


def _against(variant: Variant, unit: DeviceKind, chip: Chip | None) -> bool:
    """Whether a variant asks a neural processor for integers that it does not multiply faster."""
    slow = chip is not None and not chip.has_int8
    return slow and unit == "npu" and variant.precision.startswith("static_")


def _unfit(
    variant: Variant,
    engine: EngineRequirement,
    probes: Mapping[str, Probe],
    device: Fingerprint,
    backend: str | None,
    unproven: AbstractSet[str],
) -> str:
    if backend is not None and engine.backend != backend:
        return f"backend {backend!r} was requested"
    probe = probes.get(engine.backend)
    if probe is None:
        return "backend is unknown here"
    if not probe.available:
        return probe.reason or "engine is not available"
    if not accepts(engine.version, probe.version):
        return (
            f"expected version {engine.version}, received {probe.version}; install one that fits, "
            "or convert the model again for this one"
        )
    if variant.id in unproven and engine.is_newer_than(probe.version):
        return (
            f"was tested with {engine.tested}, {probe.version} is older, and no test vector says "
            "whether its numbers are right; install the newer one"
        )
    return _violated(variant.constraints, device)


def _violated(constraints: Mapping[str, str], device: Fingerprint) -> str:
    """An unknown constraint counts as violated: a newer converter had a reason to write it."""
    for key, value in constraints.items():
        wanted = value.replace(",", " ").split()
        match key:
            case "os" | "arch":
                here = device.os if key == "os" else device.arch
                if here not in wanted:
                    return f"needs {key} {' or '.join(wanted)}, this is {here}"
            case "cpu_features":
                if missing := sorted(set(wanted) - set(device.features)):
                    return f"needs CPU features that are missing here: {', '.join(missing)}"
            case "memory_mb":
                if device.memory_mb and not value.isdecimal():
                    return f"has a malformed constraint memory_mb={value!r}"
                if device.memory_mb and device.memory_mb < int(value):
                    return f"needs {value} MB of memory, there are {device.memory_mb}"
            case "device":
                # Of the unit, not of the machine: each is asked by itself.
                continue
            case values.KEY if value in values.LEVELS:
                # The session refuses the inputs instead, each time.
                continue
            case values.INTEGERS:
                # The backend refuses the inputs instead, each time.
                try:
                    values.integer_bounds(value)
                except ValueError as e:
                    return f"has a malformed constraint {key}: {e}"
            case _:
                return (
                    "has a constraint that this version of edgeinfer does not know: "
                    f"{key}={value}; another version made it: convert the model again, or update "
                    "edgeinfer here"
                )
    return ""


def _kinds(probe: Probe) -> list[DeviceKind]:
    return list(dict.fromkeys(unit.kind for unit in probe.devices))


def _elsewhere(variant: Variant, unit: DeviceKind, device: Fingerprint) -> str:
    wanted = variant.constraints.get("device", unit)
    if unit != wanted:
        return f"is code for the {wanted}"
    # Of a GPU the backend knows.
    is_told = variant.computed_in and unit == "cpu"
    return lacking(variant.computed_in, device.features) if is_told else ""


def _unallowed(
    kind: str,
    option: _Option,
    best: Sequence[_Option],
    policy: Policy,
    made: Mapping[str, float],
) -> Rejected:
    """Say that nobody allowed a candidate, and what it would gain where that was measured.

    That is here, or else, with ``made``, on such a processor when the bundle was made.
    """
    pair, factor = option.pair, _times_better(option, best, policy)
    measure = "as fast" if policy == "latency" else f"as good by {policy}"
    detail = f"{kind} runs only where it is allowed"
    if factor:
        detail = f"{kind} is {factor:.3g}x {measure} here"
    elif factor := made.get(pair.variant, 0.0):
        detail = f"{kind} was {factor:.3g}x {measure} on such a processor when it was converted"
    detail += (
        f"; allow {kind}" if not 0 < factor <= 1 else "; nothing would be gained by allowing it"
    )
    return Rejected(pair.variant, pair.backend, pair.device, detail, gain=factor)


def _times_better(option: _Option, best: Sequence[_Option], policy: Policy) -> float:
    """Return how many times better a candidate is than the best of others; 0 where unknown."""
    if not best or option.measured is None or best[0].measured is None or policy == "explicit":
        return 0.0
    own, other = (abs(_score(o, policy)[1]) for o in (option, best[0]))
    if not (math.isfinite(own) and math.isfinite(other) and own > 0 and other > 0):
        return 0.0
    return own / other if policy == "throughput" else other / own


def _preference(profile: Profile | None, engine: EngineRequirement) -> int:
    if profile is None or engine.backend not in profile.backends:
        return len(profile.backends) if profile else 0
    return profile.backends.index(engine.backend)


def _known_ms(variant: Variant) -> float:
    return math.inf if variant.latency_ms is None else variant.latency_ms


def _refused(pair: Pair, kind: DeviceKind | None, probe: Probe, measured: Measured | None) -> str:
    if kind is not None and kind not in _kinds(probe):
        return f"{pair.backend} {probe.version} finds no {kind} here"
    if kind is not None and pair.device != kind:
        return f"device {kind!r} was requested"
    return measured.problem if measured is not None else ""


def _score(option: _Option, policy: Policy) -> tuple[int, float]:
    """Smaller is better; what was measured goes before what was not."""
    measured = option.measured
    if policy == "explicit":
        return 0, 0.0
    if policy == "memory" and measured is None:
        return 1, float(option.size_bytes)
    if measured is None:
        return 1, 0.0
    match policy:
        case "latency":
            return 0, measured.median_ms
        case "throughput":
            return 0, -measured.per_second
        case "memory":
            return 0, measured.memory_mb
        case "energy":
            return 0, measured.cpu_ms


def _explain(options: Sequence[_Option], policy: Policy) -> Iterable[Candidate]:
    for place, option in enumerate(options):
        measured = option.measured
        if measured is None:
            reason = "not measured here; order of preference"
            if policy == "memory":
                reason = f"not measured here; {option.size_bytes} bytes of files"
        else:
            reason = _figure(measured, policy)
            if policy == "explicit":
                reason = f"named by the caller; {reason}"
            elif place == 0 and len(options) > 1:
                reason = f"best {policy} of {len(options)}: {reason}"
            elif place:
                reason += _behind(option, options[0], policy)
        yield Candidate(option.pair, option.version, reason, measured)


def _behind(option: _Option, best: _Option, policy: Policy) -> str:
    """How far a candidate lies behind the best one, and whether that differs from noise."""
    if option.measured is None or best.measured is None or policy != "latency":
        return ""
    ratio = option.measured.median_ms / best.measured.median_ms
    if not math.isfinite(ratio):
        return ""
    if ratio > 1.2:
        return f", {ratio:.3g} times the best"
    text = f", {ratio - 1:.1%} behind the best"
    return text + (", which is noise" if ratio - 1 <= 2 * option.measured.noise else "")


def _figure(measured: Measured, policy: Policy) -> str:
    match policy:
        case "latency" | "explicit":
            return f"{measured.median_ms:.3g} ms median, {measured.p95_ms:.3g} ms p95"
        case "throughput":
            return f"{measured.per_second:.4g} runs a second"
        case "memory":
            return f"{measured.memory_mb:.4g} MB"
        case "energy":
            return f"{measured.cpu_ms:.3g} ms of processor time a run"
