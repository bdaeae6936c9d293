"""``edgeinfer run`` where a bundle says what its outputs mean."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.cli.loading import steps_shown, told_stats
from edgeinfer.cli.output import Output, milliseconds
from edgeinfer.cli.ranking import ranking, why
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.results import Result
    from edgeinfer.runtime.pipelines import Pipeline

_ARRAYS = (".npz", ".npy")


def means_something(
    bundle: str, inputs: Sequence[str], asked: bool, opening: Mapping[str, Any]
) -> bool:
    """Whether inputs are to be run through a pipeline.

    Args:
        bundle: its manifest is read.
        inputs: arrays, and files named as NAME=FILE, ask for tensors.
        asked: an option asks for it.
        opening: how the bundle is opened.

    Raises:
        UsageError: it was requested, but the inputs are arrays.
    """
    plain = [i for i in inputs if not i.lower().endswith(_ARRAYS)]
    if len(plain) < len(inputs) and asked:
        raise UsageError(
            "--then, --overlay and -o FILE.wav take images, recordings or texts, not arrays"
        )
    if not inputs or len(plain) < len(inputs):
        return asked
    from edgeinfer.bundle.archive import Bundle

    with Bundle.open(bundle, verify=False, **opening) as opened:
        manifest = opened.manifest
    named = [i for i in inputs if any(i.startswith(f"{s.name}=") for s in manifest.inputs)]
    return asked or (manifest.head is not None and not named)


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that a run leaves behind.

    Attributes:
        overlay: the image to draw into.
        sound: the WAV file to write what is said into.
        overwrite: replace a file that is something else.
    """

    overlay: str | None
    sound: str | None
    overwrite: bool

    def check(self, inputs: Sequence[str]) -> None:
        """Refuse what cannot be kept of these inputs, before anything is loaded.

        Raises:
            UsageError: a file for one, and several inputs.
            OutputError: the file cannot be written.
        """
        for option, name in (("--overlay", self.overlay), (f"-o {self.sound}", self.sound)):
            if name is not None and len(inputs) != 1:
                raise UsageError(f"{option}: expected one INPUT, received {len(inputs)}")
        if self.sound is not None:
            check_output(Path(self.sound), ".wav", b"RIFF", overwrite=self.overwrite)

    def check_kind(self, bundle: str, kind: str) -> None:
        """Refuse to keep the audio of what gives none.

        Raises:
            UsageError: as said.
        """
        if self.sound is not None and kind != "speak":
            raise UsageError(
                f"-o {self.sound}: {bundle} gives {kind!r}, no audio; -o FILE.npz keeps tensors"
            )

    def write(self, given: str, results: Sequence[Result]) -> None:
        """Write what was found in one input."""
        from edgeinfer.results import Audio

        if self.overlay is not None:
            _draw(Path(self.overlay), given, results, self.overwrite)
        for result in results if self.sound is not None else ():
            if isinstance(result, Audio):
                write_bytes(Path(self.sound or ""), result.wav(), overwrite=True)

    def lines(self) -> Iterator[str]:
        """Name the files that were written."""
        if self.overlay is not None:
            yield f"drawn into {self.overlay}"
        if self.sound is not None:
            yield f"saved to {self.sound}"


def run_pipeline(
    bundles: Sequence[str],
    inputs: Sequence[str],
    kept: WrittenFiles,
    options: Mapping[str, Any],
    repeat: int,
    out: Output,
    *,
    verbose: bool = False,
) -> None:
    """Run every input and tell what was found."""
    from edgeinfer import pipeline
    from edgeinfer.cli.pipeline_output import as_table
    from edgeinfer.results import as_json

    kept.check(inputs)
    with (
        out.progress() as progress,
        steps_shown(progress),
        pipeline(*bundles, **options) as opened,
    ):
        if not inputs:
            raise UsageError(f"{bundles[0]}: no INPUT given; it takes {opened.takes}")
        kept.check_kind(bundles[-1], opened.models[-1].head.kind)
        found, spent = _each(opened, inputs, repeat)
        reports = [model.session.report() for model in opened.models]
        around = [line for model in opened.models for line in model.around]
        stats = [told_stats(model.session, options) for model in opened.models]
    kept.write(inputs[0], found[0])
    ordered = sorted(spent)
    data: dict[str, Any] = {
        "bundle": bundles[0],
        "bundles": list(bundles),
        "engines": [
            {"variant": r.variant, "backend": r.backend, "version": r.version, "device": r.device}
            for r in reports
        ],
        "latency_ms": _times(ordered) if repeat > 1 else None,
        "results": [
            {"input": name, "found": [as_json(r) for r in results]}
            for name, results in zip(inputs, found, strict=True)
        ],
        "around": around,
        "overlay": kept.overlay,
        "saved": kept.sound,
        "notes": [note for report in reports for note in report.notes],
        "rankings": [ranking(report) for report in reports],
    }
    if options["stats"]:
        data["stats"] = stats

    def view() -> Iterator[str | Table]:
        for report in reports:
            engine = f"{report.backend} {report.version} ({report.device})"
            yield f"{report.variant} on {engine}, {report.threads} threads"
        for name, results in zip(inputs, found, strict=True):
            yield ""
            yield from [name] if len(inputs) > 1 else []
            yield from as_table(results)
        if repeat > 1:
            median, p95 = milliseconds(statistics.median(ordered)), milliseconds(ordered[-1])
            yield ""
            yield f"{len(ordered)} runs with pre- and post-processing: median {median}, max {p95}"
        yield from kept.lines()
        yield from (f"{s.labels['model']}: {s}" for s in stats if s is not None)
        yield from (f"note: {note}" for report in reports for note in report.notes)
        yield from [*why(reports), *around] if verbose else ()

    out.result(data, view)


def _times(ordered: Sequence[float]) -> dict[str, float]:
    last = len(ordered) - 1
    p95 = ordered[min(last, int(0.95 * len(ordered)))]
    return {"median": statistics.median(ordered), "p95": p95, "runs": len(ordered)}


def _each(
    opened: Pipeline, inputs: Sequence[str], repeat: int
) -> tuple[list[list[Result]], list[float]]:
    found, spent = [], []
    for given in inputs:
        argument = _text(given) if opened.takes == "a text" else given
        results: list[Result] = opened(argument) if repeat > 1 else []
        for _ in range(repeat):
            start = time.perf_counter()
            results = opened(argument)
            spent.append((time.perf_counter() - start) * 1e3)
        found.append(results)
    return found, spent


def _text(given: str) -> str:
    """Return a text, or what a .txt file says."""
    path = Path(given)
    if path.suffix.lower() != ".txt":
        return given
    from edgeinfer.media.preprocessing import read_text

    return read_text(path)


def _draw(path: Path, picture: str, results: Sequence[Result], overwrite: bool) -> None:
    import io

    from edgeinfer.media.overlay import overlay

    if path.suffix.lower() != ".png":
        raise UsageError(f"--overlay {path}: expected a name that ends with .png")
    buffer = io.BytesIO()
    overlay(picture, results).save(buffer, "PNG")
    write_bytes(path, buffer.getvalue(), overwrite=overwrite)
