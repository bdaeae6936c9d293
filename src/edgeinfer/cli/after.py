"""What to type after a conversion, device by device."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.convert.pipeline.entry import ExportResult
    from edgeinfer.profiles.schema import Profile

APPS = {
    "ios": "add {what} to the project in Xcode (docs/phones.md, iPhone)",
    "android": "copy {what} into app/src/main/assets (docs/phones.md, Android)",
}
"""What an app does with an artifact, by system: there is no runtime of ours on phones."""


def next_lines(result: ExportResult) -> Iterator[str]:
    """Yield a line for each kind of device that the result is for: how to run it there."""
    from edgeinfer import profiles
    from edgeinfer.errors import ProfileError
    from edgeinfer.machine.host import host

    path = quote(str(result.path))
    here: list[Profile] = []
    others: list[Profile] = []
    for name in dict.fromkeys(v.target for v in result.manifest.variants):
        try:
            profile = profiles.load(name)
        except ProfileError:
            # One that the user gave as a file: nothing is known of it by its name.
            continue
        # A GPU is the machine's, but only a run says whether there is one.
        (here if host().is_kind(profile) and not profile.accelerators else others).append(profile)
    apps = [p for p in others if any(system in APPS for system in p.os)]
    if result.files:
        yield from (f"for {p.title}: {_in_app(p, path)}" for p in apps)
        return
    if here:
        yield f"run it here: edgeinfer {_run(result, path)}; time it: edgeinfer bench {path}"
    if any(p.machine_code for p in here) and not _has_code(result):
        yield "maybe faster here: convert with --machine-code all, which takes longer"
    yield from (_copied(p, path, result) for p in others if p not in apps)
    for profile in apps:
        extract = f"edgeinfer extract {path} -t {profile.name} -o {profile.name}/"
        ids = [v.id for v in result.manifest.variants if v.target == profile.name]
        where = f"{profile.name}/{ids[0]}/" if len(ids) == 1 else f"{profile.name}/"
        yield f"for {profile.title}: {extract}; {_in_app(profile, where)}"


def _has_code(result: ExportResult) -> bool:
    """Whether code was compiled for this machine, or cannot be."""
    from edgeinfer.bundle.trust import level_of
    from edgeinfer.machine.host import host

    able = (host().system, host().arch) == ("linux", "x86_64")
    return not able or any(level_of(v) == "native" for v in result.manifest.variants)


def _in_app(profile: Profile, place: str) -> str:
    from edgeinfer.bundle.formats import SUFFIXES

    suffix = SUFFIXES[profile.formats[0]]
    what = f"the {suffix} in {place}" if place.endswith("/") else place
    return next(APPS[s] for s in profile.os if s in APPS).format(what=what)


def _copied(profile: Profile, path: str, result: ExportResult) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    copy = f"scp -r {path}" if path.endswith("/") else f"scp {path}"
    build = f"edgeinfer build {name} && " if profile.strongly_typed else ""
    run = f"{build}edgeinfer verify {name} && edgeinfer {_run(result, name)}"
    return f"on {profile.title}: {copy} DEVICE:; there: {run}"


def _run(result: ExportResult, path: str) -> str:
    """Return the command that gives a first answer, with what stands for an input of its kind."""
    from edgeinfer.llm.generation import FORMAT
    from edgeinfer.types import AudioInput, ImageInput

    if any(v.format == FORMAT for v in result.manifest.variants):
        return f'generate {path} "Once upon a time"'
    kinds = {type(record) for record in result.manifest.preprocessing.values()}
    given = "IMAGE" if ImageInput in kinds else "AUDIO" if AudioInput in kinds else "INPUT.npz"
    return f"run {path} {given}"
