"""Which artifacts a conversion writes, decided before the slow part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import TYPE_CHECKING

from edgeinfer.backends.onnxruntime.regions import FORMAT as REGIONS
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions, Prepared
from edgeinfer.convert.machine_code import eligibility
from edgeinfer.errors import NotAvailableError, Problem, UnsupportedError, UsageError
from edgeinfer.profiles.schema import Profile, Quantization
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Job:
    """One artifact to write.

    Attributes:
        format: Format of the artifact.
        profiles: the targets that share it; the first one leads, the others want the very same.
        spare: it is written besides what was requested; with a fault it is reported and left out.
    """

    format: str
    profiles: tuple[Profile, ...]
    spare: bool = False

    @property
    def profile(self) -> Profile:
        """The target that leads."""
        return self.profiles[0]

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(profile.name for profile in self.profiles)

    @property
    def optional(self) -> bool:
        """Whether no target needs the format: a wrong artifact is left out, as one refused is."""
        return not any(self.format in profile.formats for profile in self.profiles)

    @property
    def title(self) -> str:
        """Targets and format, for messages."""
        return f"{', '.join(self.targets)} ({self.format})"


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What will be written, and what was left out and why.

    Attributes:
        jobs: artifacts to write.
        notes: lines on what was left out.
        prepared: for each job what is ready to be written of the model as it was planned for;
            None where it is to be made again. Whoever writes it takes it out.
    """

    jobs: tuple[Job, ...]
    notes: tuple[str, ...]
    prepared: list[Prepared | None] = field(default_factory=list)


def plan(
    model: ir.Model,
    profiles: Sequence[Profile],
    options: LowerOptions,
    *,
    integers: bool = False,
    alone: bool = False,
    keep: bool = False,
) -> ConversionPlan:
    """Check a normalised model against every format of every target.

    Targets that want the same format share the artifact: no lowering acts on the rest of a
    profile. With ``integers`` they must also want these in the same form. A format that a profile
    calls optional is left out with a note when it cannot be written; any other is an error. With
    ``alone`` there may be one artifact only, and nothing is added to what was requested. With
    ``keep`` what was made ready for a target stays for the writing.

    Raises:
        UsageError: ``alone``, and the targets do not share an artifact.
        UnsupportedError: lists the problems of all targets.
        NotAvailableError: libraries that write required formats are missing; lists them, and the
            problems of all targets.
    """
    jobs: list[Job] = []
    missing: dict[str, str] = {}
    ready: list[Prepared | None] = []
    notes: list[str] = []
    refused: dict[str, list[Problem]] = {}
    wanted = shared(profiles, integers, _apart(model, profiles, options))
    if alone and len(wanted) > 1:
        raise UsageError(
            f"one artifact was requested, and {' and '.join(job.title for job in wanted)} need one "
            "each: name fewer targets, or write a bundle (.edge)"
        )
    if not (integers or alone):
        code, why_not = eligibility.whole(model, profiles, options)
        wanted = _with_code(wanted, code) if code is not None else wanted
        notes += [f"machine code of the whole model was not made: {why_not}"] if why_not else []
    for job in wanted:
        needed = job.format in job.profile.formats
        try:
            prepared = target_for(job.format).prepare(model, job.profile, options)
        except NotAvailableError as e:
            if needed:
                missing[job.title] = str(e)
            else:
                notes.append(f"{job.title} was left out: {e}")
            continue
        problems = prepared.problems
        if not problems:
            jobs.append(job)
            ready.append(prepared if keep else None)
        elif needed:
            refused[job.title] = problems
        else:
            notes.extend(f"{job.title} was left out: {p}" for p in problems)
    # A model that is code as a whole needs no parts.
    if not (integers or alone or missing or refused or any(job.spare for job in jobs)):
        parts, why_not = eligibility.regions(model, profiles, options)
        notes += [f"regions were not compiled: {why_not}"] if why_not else []
        if parts is not None:
            jobs.append(Job(REGIONS, (parts,), spare=True))
            ready.append(None)
    refuse(missing, refused)
    return ConversionPlan(tuple(jobs), tuple(notes), ready)


def refuse(missing: Mapping[str, str], refused: Mapping[str, Sequence[Problem]]) -> None:
    """Refuse all at once what cannot be written; nothing where there is neither.

    Args:
        missing: why what writes an artifact cannot be used, by its title.
        refused: what an artifact cannot express, by its title.

    Raises:
        NotAvailableError: something is missing.
        UnsupportedError: nothing is, and something cannot be expressed.
    """
    pairs = [(title, problem) for title, ps in refused.items() for problem in ps]
    owners, problems = [title for title, _ in pairs], [problem for _, problem in pairs]
    unsupported = None
    if pairs:
        unsupported = UnsupportedError(", ".join(dict.fromkeys(owners)), problems, owners)
    if missing:
        # Targets that lack the same are named together.
        lacking: dict[str, list[str]] = {}
        for title, why in missing.items():
            lacking.setdefault(why, []).append(title)
        lines = [f"{', '.join(titles)}: {why}" for why, titles in lacking.items()]
        raise NotAvailableError("\n".join([*lines, *([str(unsupported)] if unsupported else [])]))
    if unsupported is not None:
        raise unsupported


def _apart(model: ir.Model, profiles: Sequence[Profile], options: LowerOptions) -> frozenset[str]:
    """Name the targets whose artifact has another form of attention, or floats of its own."""
    own = frozenset(
        p.name
        for p in profiles
        if (options.precision == "bf16" and p.bf16_ops)
        or (options.precision == "fp16" and p.fp16_ops)
    )
    if not any(node.op_type == "Attention" for node in model.graph.all_nodes()):
        return own
    return own | {p.name for p in profiles if options.precision in p.split_attention}


def _with_code(jobs: list[Job], code: Profile) -> list[Job]:
    """Add machine code for a target, or have it share what another target wants for the machine."""
    for index, job in enumerate(jobs):
        if job.format == "tvm" and job.profile.machine == code.machine:
            jobs[index] = replace(job, profiles=(*job.profiles, code))
            return jobs
    return [*jobs, Job("tvm", (code,), spare=True)]


def shared(profiles: Sequence[Profile], integers: bool, apart: AbstractSet[str]) -> list[Job]:
    """Make one job for each artifact, led by a target that needs it where there is one."""
    jobs: dict[tuple[str, tuple[Quantization, ...], str, bool, bool], Job] = {}
    for needed in (True, False):
        for profile in profiles:
            for format in profile.formats if needed else profile.optional_formats:
                limits = tuple(q for q in profile.quantization if q.format == format)
                # Machine code is for one instruction set, a compiler wants other operators.
                form = profile.machine, profile.strongly_typed, profile.name in apart
                key = format, limits if integers else (), *form
                known = jobs.get(key)
                jobs[key] = Job(format, (*(known.profiles if known else ()), profile))
    return list(jobs.values())
