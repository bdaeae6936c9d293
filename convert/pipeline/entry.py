"""``export`` and ``check``: what needs no graph and no engine is checked before any is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.bundle.formats import format_of, refuse_artifact
from edgeinfer.convert.late import late
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.request import (
    check_calibrated,
    check_calibration_path,
    check_request,
)
from edgeinfer.convert.quantize.recipe import STORED
from edgeinfer.convert.sniff import is_llm, sniff
from edgeinfer.errors import Problem, UsageError
from edgeinfer.options import called_with, default_of, values_of
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.bundle.manifest import Manifest
    from edgeinfer.convert.verify import Report


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished conversion.

    Attributes:
        path: the bundle, or the plain artifact that was requested instead.
        manifest: what is in it.
        report: what was changed, measured and checked.
        files: the plain artifact and what lies next to it; empty where a bundle was written.
    """

    path: Path
    manifest: Manifest
    report: Report
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        count = len(self.manifest.variants)
        return f"<ExportResult {self.path}: {self.report.verdict}, {count} variants>"

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        return self.report._repr_html_()


@called_with(ConvertOptions)
def export(options: ConvertOptions) -> ExportResult:
    """Convert a model for one or more targets, check every artifact, and write one bundle.

    An output that ends with ``.onnx``, ``.xml``, ``.tflite``, ``.mlpackage`` or ``.aimodel`` is
    written as that plain artifact, after the same checks, with its report and manifest next to it.

    {options}

    Raises:
        SourceError: the model cannot be read.
        UnsupportedError: a target cannot express it; lists every node.
        VerifyError: an artifact left its accuracy budget; only the failing sub-model was written.
        UsageError: the request contradicts itself.
        OutputError: the bundle cannot be written.
    """
    if is_llm(options.model):
        if format_of(options.output):
            refuse_artifact(str(options.output), "a language model is written as a bundle")
        return _language_model(options)
    request = check_request(options)
    check_calibrated(request)
    _sniff(options.model)
    # What needs no engine is checked by now; the rest takes a second to import.
    made: ExportResult = late("pipeline.stages").run_stages(request)
    return made


_TAKEN = (
    *("targets", "precision", "block", "name", "calibration", "adapters"),
    *("text_only", "unverified", "overwrite", "progress", "trust_source"),
)
"""What language models heed of a request."""


def _language_model(options: ConvertOptions) -> ExportResult:
    """Convert a language model, which goes a way of its own.

    Raises:
        UsageError: something is requested that says nothing to language models; lists all.
    """
    given = values_of(options)
    rest = sorted(given.keys() - {"model", "output", *_TAKEN})
    idle = [n for n in rest if given[n] and given[n] != default_of(ConvertOptions, n)]
    if idle:
        raise UsageError(f"a language model is requested; it ignores {', '.join(idle)}")
    asked = {name: given[name] for name in _TAKEN}
    asked["precision"] = asked["precision"] or STORED
    if asked["calibration"] is not None:
        check_calibration_path(asked["calibration"], "write the texts to a file")
        asked["calibration"] = Path(asked["calibration"])
    made: ExportResult = late("llm.pipeline").export(Path(options.model), options.output, **asked)
    return made


@called_with(ConvertOptions)
def check(options: ConvertOptions) -> dict[str, list[Problem]]:
    """Say what would keep a model from converting, by ``<target>-<format>``, before converting it.

    {options}

    Raises:
        SourceError: the model cannot be read.
        UsageError: the request contradicts itself.
        NotAvailableError: what writes a format is missing; lists that and all problems.
    """
    request = check_request(options)
    _sniff(options.model)
    worker = late("pipeline.worker")
    is_apart = worker.can_work_apart(options.model, options.example_inputs)
    front = worker.Worker(request) if is_apart else late("pipeline.front").Front(request)
    found: dict[str, list[Problem]] = front.check()
    return found


def _sniff(model: Any) -> None:
    """Refuse a file that is no model before the libraries that read models are imported."""
    if isinstance(model, str | Path):
        sniff(Path(model))
