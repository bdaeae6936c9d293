"""``export`` and ``check``: what needs no graph and no engine is checked before any is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.bundle.formats import format_of, refuse_artifact
from edgeinfer.convert.late import late
from edgeinfer.convert.pipeline.request import check_request, precision_for, resolve_profiles
from edgeinfer.convert.pipeline.shape_sets import Given, ranges_of, shape_sets
from edgeinfer.convert.quantize.recipe import STORED, lowered_as, recipe
from edgeinfer.convert.sniff import is_llm, sniff
from edgeinfer.errors import Problem, UsageError

if TYPE_CHECKING:
    from edgeinfer.accuracy import Metric
    from edgeinfer.bundle.manifest import Manifest
    from edgeinfer.convert.verify import Report
    from edgeinfer.media.description import Description
    from edgeinfer.types import Feeds, Preprocessing, Progress


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished conversion.

    Attributes:
        path: the bundle, or the plain artifact that was asked for instead.
        manifest: what is in it.
        report: what was changed, measured and checked.
        files: the plain artifact and what lies beside it; empty where a bundle was written.
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


def export(
    model: Any,
    output: str | Path | None = None,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "",
    input_shapes: Given | None = None,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    description: Description | None = None,
    labels: Sequence[str] = (),
    data: str | Path | Sequence[Feeds] | None = None,
    calibration: str | Path | None = None,
    calibrator: str = "mse",
    max_drop: float | None = None,
    metric: str | Metric | None = None,
    force: bool = False,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    compress_weights: bool = False,
    signature: str | None = None,
    random: str = "",
    channels_last: Sequence[str] = (),
    channels_first: Sequence[str] = (),
    states: Mapping[str, str] | None = None,
    pictures: Sequence[str] = (),
    classifier: bool = False,
    deployment: str = "",
    integers: Mapping[str, tuple[int, int]] | None = None,
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
    io_dtypes: str | Mapping[str, str] = "",
    unverified: bool = False,
    time_limit_s: float = 600.0,
    records: Sequence[str] = (),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Convert a model for one or more targets, check every artifact, and write one bundle.

    An output that ends with ``.onnx``, ``.xml``, ``.tflite``, ``.mlpackage`` or ``.aimodel`` is
    written as that plain artifact, after the same checks, with its report and manifest beside it.

    Args:
        model: see ``sources.read``: a path, an ONNX model, a PyTorch module or program; or a
            language model: a GGUF file or a Hugging Face folder.
        output: the bundle, default ``<name>.edge``; a slash at the end asks for a folder. Or the
            one artifact.
        targets: names of device profiles, paths of ``.toml`` profiles, or ``all``.
        precision: recipe, e.g. ``fp32``, ``fp16``, ``static_wi8_ai8`` or ``auto``; of a language
            model ``w4``, ``w8``, ``fp16``, ``bf16`` or ``fp32``. Empty is ``fp32``, and of a
            language model what its weights are.
        input_shapes: sizes to fix, by input name; None keeps an axis as declared, ``range(1, 9)``
            bounds it. Several shapes for an input are all in the result: as signatures of one
            ``.tflite`` file, as the only shapes of a Core ML package, as open sizes elsewhere.
        preprocessing: how a picture or a recording becomes an input, by input name.
        description: of a pipeline file (``edgeinfer.media.parse_description``): the same and what
            the outputs mean; instead of ``preprocessing``.
        labels: class names in the order of the output's last axis.
        data: inputs to check with, and expected outputs where given: ``.npz``, folder or dicts.
        calibration: folder of pictures or recordings (needs ``preprocessing``), or an ``.npz`` of
            all samples: integers take their ranges from it, and the result is checked with it.
        calibrator: how ranges are chosen: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        max_drop: share of the float model's quality that ``precision="auto"`` may lose.
        metric: how quality is measured: ``top1``, ``top5``, ``f1``, ``map``, ``cer``, ``wer``,
            ``cosine`` or ``rmse`` of the labels, or a function from outputs of all runs and labels
            of all samples to a number that is higher the better it is; without it top-1 where
            labels are known, else agreement with the float model.
        force: calibrate with data that is judged bad.
        example_inputs: for a module: a tuple, or a dict by parameter name.
        dynamic_shapes: for a module: ``{"x": {0: "batch"}}``.
        compress_weights: store float weights as fp16 where the format computes in fp32 anyway.
        signature: of a ``.tflite`` file with several: which one.
        random: what takes the place of random numbers that the model draws: ``input``, ``zero``
            (their mean), or a seed, whose numbers are the same in every run.
        channels_last: names of inputs and outputs that are to have their channels on the last axis
            instead of the second, in every variant: a bundle has one signature.
        channels_first: the reverse.
        states: outputs by the inputs that they feed in the next run. Sessions pass them on by
            themselves; Core ML packages for iOS18 and later keep them inside.
        pictures: inputs that take pixels as they are: what makes numbers of them, by the record in
            ``preprocessing``, moves into the model. Core ML packages take images there.
        classifier: Core ML packages name the class, by ``labels``.
        deployment: oldest system that is to open Core ML packages, e.g. ``iOS18``.
        integers: lowest and highest value of integer inputs by name, for Core ML packages, whose
            integers have 32 bits; other values are refused when they run.
        input_ranges: lowest and highest value of inputs by name: what test vectors reach, what half
            precision is judged for, and beyond which sessions warn or refuse.
        io_dtypes: ``int8``, ``uint8`` or ``int16``: what the ``.tflite`` files take and give for
            floats, with the scales of the operators next to them; by name for some only, with the
            others' under ``""``. The bundle's inputs and outputs stay floats.
        unverified: write artifacts also where nothing here can run them, no engine and no emulator;
            the bundle says so of each for ever.
        time_limit_s: seconds that one run of the source model may take: a loop may have no end.
        records: files of kernels that ``edgeinfer tune`` measured, beside those that are shipped.
        name: of the bundle; default the model's.
        overwrite: replace an existing bundle.
        progress: told what is being done.

    Raises:
        SourceError: the model cannot be read.
        UnsupportedError: a target cannot express it; lists every node.
        VerifyError: an artifact left its accuracy budget; only the failing sub-model was written.
        UsageError: the request contradicts itself.
        OutputError: the bundle cannot be written.
    """
    if is_llm(model):
        if format_of(output):
            refuse_artifact(str(output), "a language model is written as a bundle")
        return _language_model(dict(locals()))
    if description is not None:
        preprocessing = late("pipeline.described").records_for(description, preprocessing)
        labels = labels or description.labels
    request = check_request(
        model,
        output,
        targets=targets,
        precision=precision or "fp32",
        name=name,
        labels=labels,
        compress_weights=compress_weights,
        signature=signature,
        random=random,
        channels_last=channels_last,
        channels_first=channels_first,
        states=states,
        pictures=pictures,
        classifier=classifier,
        deployment=deployment,
        integers=integers,
        input_ranges=input_ranges,
        io_dtypes=io_dtypes,
        unverified=unverified,
        time_limit_s=time_limit_s,
        records=records,
        input_shapes=input_shapes,
        preprocessing=preprocessing,
        data=data,
        calibration=calibration,
        calibrator=calibrator,
        force=force,
        max_drop=max_drop,
        metric=metric,
    )
    if isinstance(model, str | Path):
        sniff(Path(model))
    # What needs no engine is checked by now; the rest takes a second to import.
    made: ExportResult = late("pipeline.stages").run_stages(
        model, request, description, overwrite, progress, example_inputs, dynamic_shapes
    )
    return made


_TAKEN = ("targets", "precision", "name", "unverified", "overwrite", "progress")
"""What language models heed of a request."""


def _language_model(given: Mapping[str, Any]) -> ExportResult:
    """Convert a language model, which goes a way of its own.

    Raises:
        UsageError: something is asked for that says nothing to language models; lists all.
    """
    defaults = {n: p.default for n, p in inspect.signature(export).parameters.items()}
    rest = given.keys() - {"model", "output", *_TAKEN}
    idle = sorted(n for n in rest if given[n] != defaults[n] and given[n])
    if idle:
        raise UsageError(f"a language model is asked for; it heeds nothing of {', '.join(idle)}")
    asked = {name: given[name] for name in _TAKEN}
    asked["precision"] = asked["precision"] or STORED
    made: ExportResult = late("llm.pipeline").export(Path(given["model"]), given["output"], **asked)
    return made


def check(
    model: Any,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "fp32",
    input_shapes: Given | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    signature: str | None = None,
    deployment: str = "",
    integers: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, list[Problem]]:
    """Say what would keep a model from converting, by ``<target>-<format>``, before converting it.

    Raises:
        SourceError: the model cannot be read.
    """
    chosen = resolve_profiles(targets)
    precision = precision_for(chosen, precision)
    wanted = recipe(precision)
    source = late("sources").read(
        model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, signature=signature
    )
    passes, lower = late("passes"), late("lower")
    common, sets = shape_sets(input_shapes or {})
    normal = passes.normalise(source.model, input_shapes=common or None).model
    if source.original is None:
        late("verify.contradictions").refuse_contradictions(
            source.model, passes.input_specs(normal)
        )
    ranges = ranges_of(input_shapes or {})
    late("pipeline.shape_checks").check_ranges(normal, ranges)
    options = lower.LowerOptions(
        precision=lowered_as(precision),
        shape_sets=sets,
        ranges=ranges,
        recipe=wanted.name,
        deployment=deployment,
        integers=integers or {},
    )
    return {
        f"{profile.name}-{format}": lower.target_for(format).check(normal, profile, options)
        for profile in chosen
        for format in (*profile.formats, *profile.optional_formats)
    }
