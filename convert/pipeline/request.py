"""What was asked of a conversion, checked before anything slow starts."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer import profiles
from edgeinfer.bundle.formats import SUFFIXES, format_of
from edgeinfer.convert.late import late
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.rows import resolved
from edgeinfer.convert.pipeline.shape_sets import Ranges, Sets, ranges_of, shape_sets
from edgeinfer.convert.quantize.recipe import (
    COREMLTOOLS,
    INSTEAD,
    METHODS,
    Method,
    Recipe,
    recipe,
    spelled_out,
)
from edgeinfer.errors import OutputError, UsageError
from edgeinfer.options import default_of, values_of
from edgeinfer.profiles.schema import MACHINE_CODE, Profile
from edgeinfer.records import dataclass
from edgeinfer.types import ImageInput, Preprocessing, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.accuracy import Metric
    from edgeinfer.types import Feeds


@dataclass(frozen=True, kw_only=True)
class Request(ConvertOptions):
    """Checked options, and what follows from them.

    Attributes:
        precision: Full name of a recipe that every profile can run.
        also: Full names of recipes that one profile at least can have next to it.
        name: Name of the bundle.
        profiles: One per target, without repetition, in the order requested.
        destination: Path of the result as given: a slash at the end asks for a folder.
        alone: Whether one artifact is written as it is, without a bundle.
        fixed_shapes: Sizes that all shapes of an input share.
        shape_sets: Shapes of all inputs, where several were requested.
        ranges: Bounds of sizes that stay dynamic.
        by_coremltools: Whether ranges are coremltools' own, found on each written package.
    """

    name: str = ""
    data: Path | Sequence[Feeds] | None = None
    calibration: Path | None = None
    calibrator: Method = "mse"
    metric: Metric | None = None
    io_dtypes: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[Profile, ...]
    destination: str
    alone: bool
    fixed_shapes: dict[str, tuple[int | None, ...]]
    shape_sets: Sets
    ranges: Ranges
    by_coremltools: bool

    def whole_ranges(self, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, int]]:
        """Return what integer inputs lie between, said in either way."""
        whole = {s.name for s in inputs if s.dtype.startswith(("int", "uint"))}
        said = {
            n: (math.ceil(low), math.floor(high))
            for n, (low, high) in self.input_ranges.items()
            if n in whole
        }
        return {**said, **self.integers}


def resolve_profiles(targets: Sequence[str]) -> tuple[Profile, ...]:
    """Return the profiles of the targets; ``all`` stands for those not ``by_name_only``.

    Raises:
        UsageError: no target was named.
        ProfileError: a target is unknown.
    """
    if isinstance(targets, str):
        targets = (targets,)
    if not targets:
        raise UsageError("targets: expected at least one, received none; see `edgeinfer targets`")
    loaded: dict[str, Profile] = {}
    for target in targets:
        found = [profiles.load(n) for n in (profiles.names() if target == "all" else (target,))]
        loaded |= {p.name: p for p in found if target != "all" or not p.by_name_only}
    return tuple(loaded.values())


def default_name(model: Any) -> str:
    """Name a bundle after its model: file stem, or the class of a module."""
    if isinstance(model, str | Path):
        return Path(model).stem
    name = type(model).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def check_request(options: ConvertOptions) -> Request:
    """Check what can be checked without opening the model.

    Raises:
        UsageError: a target is unknown, or cannot do what is requested.
    """
    model, output = options.model, options.output
    chosen = _writing(
        resolve_profiles(options.targets), format_of(output), model, Path(output or "")
    )
    precision = precision_for(chosen, options.precision or "fp32")
    _check_able(chosen, precision)
    also = resolved(
        options.also, chosen, _can, first=precision, alone=bool(format_of(options.output))
    )
    theirs = options.calibrator == COREMLTOOLS
    if theirs:
        _check_theirs(chosen, recipe(precision))
    method = next((m for m in METHODS if m == options.calibrator or theirs), None)
    if method is None:
        known = ", ".join(METHODS)
        raise UsageError(f"calibrator {options.calibrator!r} is unknown; known: {known}")
    if options.block != default_of(type(options), "block"):
        raise UsageError(f"block {options.block}: only weights of language models have blocks")
    if options.text_only:
        raise UsageError("text_only: only language models have a vision part to leave out")
    if options.adapters:
        raise UsageError(f"adapters {', '.join(options.adapters)}: only language models have such")
    if options.max_drop is not None and not 0.0 <= options.max_drop < 1.0:
        raise UsageError(f"max drop {options.max_drop}: expected a share from 0 up to 1, as 1%")
    _check_there(options.deployment, options.data, options.calibration)
    if options.keep is not None:
        _check_kept(options.keep)
    name = options.name or default_name(model)
    common, sets = shape_sets(options.input_shapes)
    records, labels = _described(options)
    checked: dict[str, Any] = {
        "profiles": chosen,
        "precision": precision,
        "also": also,
        "destination": f"{name}.edge" if output is None else os.fspath(output),
        "alone": bool(format_of(output)),
        "name": name,
        "fixed_shapes": common,
        "shape_sets": sets,
        "ranges": ranges_of(options.input_shapes),
        "input_ranges": _input_ranges(options.input_ranges),
        "io_dtypes": _io_dtypes(options.io_dtypes, chosen),
        "preprocessing": in_layout(records, options.channels_last, options.channels_first),
        "labels": tuple(labels),
        "data": _path(options.data),
        "calibration": _path(options.calibration),
        "calibrator": method,
        "by_coremltools": theirs,
        "metric": _metric(options),
        "machine_code": _machine_code(options.machine_code, chosen),
        "random": check_mode(options.random),
        "time_limit_s": _time_limit(options.time_limit_s),
    }
    return Request(**{**values_of(options), **checked})


def _check_kept(folder: str | Path) -> None:
    """Refuse a folder that holds something, before anything slow starts.

    Raises:
        UsageError: it is no folder, or not empty.
        OutputError: it cannot be made.
    """
    path = Path(folder)
    if path.is_dir():
        if any(path.iterdir()):
            raise UsageError(f"--keep {path}: the folder is not empty")
    elif path.exists():
        raise UsageError(f"--keep {path}: is no folder")
    elif not path.parent.is_dir():
        raise OutputError(f"--keep {path}: the folder {path.parent} does not exist")


def check_calibrated(request: Request) -> None:
    """Refuse integers that nothing says the ranges of.

    Raises:
        UsageError: there are no samples.
    """
    wanted = [n for n in (request.precision, *request.also) if recipe(n).is_static]
    if wanted and request.calibration is request.data is None:
        raise UsageError(
            f"precision {wanted[0]!r} needs --calibration: a folder of images, recordings "
            "or .npz files, or an .npz file with all samples"
        )


def _described(options: ConvertOptions) -> tuple[Mapping[str, Preprocessing], Sequence[str]]:
    """Return records and labels, which a pipeline file may hold."""
    described = options.description
    if described is None:
        return options.preprocessing, options.labels
    records = late("pipeline.described").records_for(described, options.preprocessing)
    return records, options.labels or described.labels


def _path(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given


def _machine_code(given: Sequence[str], chosen: Sequence[Profile]) -> tuple[str, ...]:
    """Return the kinds of machine code that are made.

    Raises:
        UsageError: there is no such kind, or none of the targets has it.
        NotAvailableError: what compiles it is not installed.
    """
    if not given:
        return ()
    able = {kind for p in chosen for kind in p.machine_code}
    able |= {"functions"} if any("linux" in p.os for p in chosen) else set()
    names = ", ".join(p.name for p in chosen)
    for kind in given:
        if kind not in (*MACHINE_CODE, "all"):
            known = ", ".join((*MACHINE_CODE, "all"))
            raise UsageError(f"machine code {kind!r} is unknown; known: {known}")
        if kind not in able and not (kind == "all" and able):
            raise UsageError(f"machine code {kind!r}: not made for {names}")
    wanted = tuple(k for k in MACHINE_CODE if k in (able if "all" in given else given))
    if {"model", "regions"} & set(wanted):
        late("machine_code.eligibility").check_able()
    if "functions" in wanted:
        late("machine_code.functions").check_able(chosen)
    return wanted


def _metric(options: ConvertOptions) -> Metric | None:
    if not isinstance(options.metric, str):
        return options.metric
    # NumPy: what is refused before does not wait for it.
    from edgeinfer.accuracy import TaskMeasure

    return TaskMeasure(options.metric, tuple(options.labels))


def precision_for(chosen: Sequence[Profile], precision: str) -> str:
    """Return the full name of a precision; an alias is the first of its names that all can do.

    Raises:
        UsageError: there is no such precision.
    """
    return spelled_out(precision, lambda wanted: all(_can(p, wanted) for p in chosen))


def _check_there(deployment: str, data: object, calibration: object) -> None:
    """Refuse a system that does not exist, and files that do not."""
    if deployment:
        late("lower.coreml.deployment").deployment(deployment)
    if calibration is not None:
        check_calibration_path(calibration, "numpy.savez(FILE, INPUT=array) writes arrays to one")
    for what, given in (("", data), ("calibration data ", calibration)):
        if isinstance(given, str | Path) and not Path(given).exists():
            raise UsageError(f"{what}{given}: no such file")


def check_calibration_path(given: object, otherwise: str) -> None:
    """Refuse calibration data that is no path.

    Args:
        given: its value.
        otherwise: how the user gets to a path.
    """
    if not isinstance(given, str | Path):
        received = f"received {type(given).__name__}; {otherwise}"
        raise UsageError(f"calibration: expected the path of a folder or a file, {received}")


def _check_able(chosen: Sequence[Profile], precision: str) -> None:
    wanted = recipe(precision)
    unable = [p.name for p in chosen if not _can(p, wanted)]
    if unable:
        able = sorted(set.intersection(*(set(p.precisions) for p in chosen)))
        near = INSTEAD.get(precision, "")
        hint = f"; as small: {near}" if near in able else ""
        raise UsageError(
            f"precision {precision!r}: not possible on {', '.join(unable)}; "
            f"all requested targets can do: {', '.join(able) or 'none in common'}{hint}"
        )


def _writing(
    chosen: tuple[Profile, ...], format: str, model: Any, output: Path
) -> tuple[Profile, ...]:
    """Return the profiles as they are where this format alone is wanted, if one is.

    Raises:
        UsageError: some do not write it, all of which are named, or the output is the model.
    """
    if not format:
        return chosen
    others = {
        p.name: [SUFFIXES.get(f, f) for f in (*p.formats, *p.optional_formats)]
        for p in chosen
        if format not in (*p.formats, *p.optional_formats)
    }
    if others:
        text = "; ".join(f"{name} writes {', '.join(found)}" for name, found in others.items())
        raise UsageError(
            f"output {str(output)!r}: {text}, not {SUFFIXES[format]}; a bundle (.edge) holds all "
            "that several targets need"
        )
    is_file = isinstance(model, str | Path) and output.exists() and Path(model).exists()
    if is_file and output.samefile(model):
        raise UsageError(f"{output}: is the model itself; choose another output")
    return tuple(replace(p, formats=(format,), optional_formats=()) for p in chosen)


def _input_ranges(given: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, (low, high) in given.items():
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise UsageError(f"input range {name!r}: expected LOW:HIGH, received {low}:{high}")
        found[name] = float(low), float(high)
    return found


HALVES = "float16"
IO_DTYPES = ("float32", HALVES, "int8", "uint8", "int16")


def _io_dtypes(given: str | Mapping[str, str], chosen: Sequence[Profile]) -> dict[str, str]:
    kinds = ({"": given} if given else {}) if isinstance(given, str) else dict(given)
    for name, kind in kinds.items():
        if kind not in IO_DTYPES:
            where = f" of {name!r}" if name else ""
            raise UsageError(f"io dtype{where}: {kind!r} is none of {', '.join(IO_DTYPES)}")
    formats = {f for p in chosen for f in (*p.formats, *p.optional_formats)}
    if any(k not in ("float32", HALVES) for k in kinds.values()) and "tflite" not in formats:
        names = ", ".join(p.name for p in chosen)
        raise UsageError(f"io dtype: only .tflite files hold integers there, not those of {names}")
    return kinds


def _check_theirs(chosen: Sequence[Profile], wanted: Recipe) -> None:
    others = [f for p in chosen for f in (*p.formats, *p.optional_formats) if f != "mlprogram"]
    # coremltools 9.0 writes scales in half precision, also with single precision.
    if others or wanted.name != "static_wi8_ai8+fp16":
        raise UsageError(
            f"calibrator {COREMLTOOLS!r} is for Core ML packages alone, with the precision "
            "static_wi8_ai8+fp16"
        )


def _can(profile: Profile, wanted: Recipe) -> bool:
    return profile.packed_weights if wanted.packing else wanted.name in profile.precisions


def in_layout(
    records: Mapping[str, Preprocessing], last: Sequence[str], first: Sequence[str]
) -> dict[str, Preprocessing]:
    """Let images be prepared in the layout that their inputs are to have."""
    found = dict(records)
    for name, record in records.items():
        if isinstance(record, ImageInput) and name in last:
            found[name] = replace(record, layout="NHWC")
        elif isinstance(record, ImageInput) and name in first:
            found[name] = replace(record, layout="NCHW")
    return found


def check_mode(random: str) -> str:
    """Return what is to take the place of draws.

    Raises:
        UsageError: it is neither ``input`` nor ``zero`` nor a seed.
    """
    if random and random not in ("input", "zero") and not random.isdecimal():
        raise UsageError(f"random {random!r}: expected input, zero or a seed, a whole number")
    return random


def _time_limit(seconds: float) -> float:
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise UsageError(f"time_limit_s: expected seconds above 0, received {seconds}")
    return float(seconds)
