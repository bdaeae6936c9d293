"""What was asked of a conversion, checked before anything slow starts."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer import profiles
from edgeinfer.bundle.formats import SUFFIXES, format_of
from edgeinfer.convert.late import late
from edgeinfer.convert.pipeline.shape_sets import Given, Ranges, Sets, ranges_of, shape_sets
from edgeinfer.convert.quantize.recipe import (
    COREMLTOOLS,
    INSTEAD,
    METHODS,
    Method,
    Recipe,
    recipe,
    spelled_out,
)
from edgeinfer.errors import UsageError
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import ImageInput, Preprocessing, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.accuracy import Metric
    from edgeinfer.types import Feeds


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    Attributes:
        profiles: one per target, without repetition, in the order asked for.
        precision: recipe name; every profile can run it.
        destination: where the bundle goes, as given: a slash at the end asks for a folder. With
            ``alone`` where the artifact goes.
        name: the bundle's name.
        calibrator: how ranges are chosen.
        by_coremltools: ranges are coremltools' own, found on each written package.
        force: calibrate with data that is judged bad.
        max_drop: share of the float model's quality that ``auto`` may lose.
        metric: how quality is measured; None chooses by the data.
        signature: of a ``.tflite`` file with several.
        random: what takes the place of draws: ``input``, ``zero``, a seed, or empty.
        channels_last: inputs and outputs that get their channels on the last axis.
        channels_first: likewise, on the second.
        shape_sets: shapes to be written beside one another; ``input_shapes`` has what they share.
        ranges: bounds of sizes that stay open.
        states: outputs by the inputs that they feed in the next run.
        pictures: inputs that take pixels as they are; what makes numbers of them moves into the
            model.
        classifier: artifacts that can name the class do.
        deployment: oldest system of Apple's that is to open its artifacts; empty: the profile's.
        integers: what integer inputs lie between, by name.
        input_ranges: what inputs lie between, by name, as the user says.
        io_dtypes: element types of inputs and outputs in ``.tflite`` files, by name.
        unverified: what nothing here can run is written all the same, and marked.
        time_limit_s: that one run of the source model may take.
        records: files of tuned kernels.
        alone: one artifact is written as it is, without a bundle.
    """

    profiles: tuple[Profile, ...]
    precision: str
    destination: str
    name: str
    compress_weights: bool = False
    input_shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    data: Path | Sequence[Feeds] | None = None
    calibration: Path | None = None
    calibrator: Method = "mse"
    by_coremltools: bool = False
    force: bool = False
    max_drop: float | None = None
    metric: Metric | None = None
    signature: str | None = None
    random: str = ""
    channels_last: tuple[str, ...] = ()
    channels_first: tuple[str, ...] = ()
    shape_sets: Sets = ()
    ranges: Ranges = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    classifier: bool = False
    deployment: str = ""
    integers: dict[str, tuple[int, int]] = field(default_factory=dict)
    input_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    io_dtypes: dict[str, str] = field(default_factory=dict)
    unverified: bool = False
    time_limit_s: float = 600.0
    records: tuple[str, ...] = ()
    alone: bool = False

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


def check_request(
    model: Any,
    output: str | Path | None,
    *,
    targets: Sequence[str],
    precision: str,
    name: str | None,
    labels: Sequence[str],
    compress_weights: bool,
    input_shapes: Given | None,
    preprocessing: Mapping[str, Preprocessing] | None,
    data: str | Path | Sequence[Feeds] | None,
    calibration: str | Path | None,
    calibrator: str = "mse",
    force: bool = False,
    max_drop: float | None = None,
    metric: str | Metric | None = None,
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
) -> Request:
    """Check what can be checked without opening the model.

    Raises:
        UsageError: a target is unknown, or cannot do what is asked for.
    """
    chosen = _writing(resolve_profiles(targets), format_of(output), model, Path(output or ""))
    precision = precision_for(chosen, precision)
    _check_able(chosen, precision)
    if recipe(precision).is_static and calibration is None and data is None:
        raise UsageError(
            f"precision {precision!r} needs --calibration: a folder of pictures, recordings or "
            ".npz files, or an .npz file with all samples"
        )
    theirs = calibrator == COREMLTOOLS
    if theirs:
        _check_theirs(chosen, recipe(precision))
    method = next((m for m in METHODS if m == calibrator or theirs), None)
    if method is None:
        raise UsageError(f"calibrator {calibrator!r} is unknown; known: {', '.join(METHODS)}")
    if max_drop is not None and not 0.0 <= max_drop < 1.0:
        raise UsageError(f"max drop {max_drop}: expected a share from 0 up to 1, such as 1%")
    _check_there(deployment, data, calibration)
    kinds = _io_dtypes(io_dtypes, chosen)
    if isinstance(metric, str):
        # NumPy: what is refused above does not wait for it.
        from edgeinfer.accuracy import Named

        metric = Named(metric, tuple(labels))
    name = name or default_name(model)
    common, sets = shape_sets(input_shapes or {})
    return Request(
        profiles=chosen,
        precision=precision,
        destination=f"{name}.edge" if output is None else os.fspath(output),
        name=name,
        labels=tuple(labels),
        compress_weights=compress_weights,
        input_shapes=common,
        shape_sets=sets,
        ranges=ranges_of(input_shapes or {}),
        states=dict(states or {}),
        pictures=tuple(pictures),
        classifier=classifier,
        deployment=deployment,
        integers=dict(integers or {}),
        input_ranges=_input_ranges(input_ranges or {}),
        io_dtypes=kinds,
        unverified=unverified,
        time_limit_s=_time_limit(time_limit_s),
        records=tuple(records),
        alone=bool(format_of(output)),
        preprocessing=in_layout(preprocessing or {}, channels_last, channels_first),
        data=Path(data) if isinstance(data, str) else data,
        calibration=None if calibration is None else Path(calibration),
        calibrator=method,
        by_coremltools=theirs,
        force=force,
        max_drop=max_drop,
        metric=metric,
        signature=signature,
        random=check_mode(random),
        channels_last=tuple(channels_last),
        channels_first=tuple(channels_first),
    )


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
    for what, given in (("", data), ("calibration data ", calibration)):
        if isinstance(given, str | Path) and not Path(given).exists():
            raise UsageError(f"{what}{given}: no such file")


def _check_able(chosen: Sequence[Profile], precision: str) -> None:
    wanted = recipe(precision)
    unable = [p.name for p in chosen if not _can(p, wanted)]
    if unable:
        able = sorted(set.intersection(*(set(p.precisions) for p in chosen)))
        near = INSTEAD.get(precision, "")
        hint = f"; as small: {near}" if near in able else ""
        raise UsageError(
            f"precision {precision!r}: not possible on {', '.join(unable)}; "
            f"all targets asked for can do: {', '.join(able) or 'none in common'}{hint}"
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


IO_DTYPES = ("float32", "int8", "uint8", "int16")


def _io_dtypes(given: str | Mapping[str, str], chosen: Sequence[Profile]) -> dict[str, str]:
    kinds = ({"": given} if given else {}) if isinstance(given, str) else dict(given)
    for name, kind in kinds.items():
        if kind not in IO_DTYPES:
            where = f" of {name!r}" if name else ""
            raise UsageError(f"io dtype{where}: {kind!r} is none of {', '.join(IO_DTYPES)}")
    formats = {f for p in chosen for f in (*p.formats, *p.optional_formats)}
    if any(kind != "float32" for kind in kinds.values()) and "tflite" not in formats:
        names = ", ".join(p.name for p in chosen)
        raise UsageError(f"io dtype: only .tflite files hold integers there, not those of {names}")
    return kinds


def _check_theirs(chosen: Sequence[Profile], wanted: Recipe) -> None:
    others = [f for p in chosen for f in (*p.formats, *p.optional_formats) if f != "mlprogram"]
    # coremltools 9.0 writes scales in half precision, also beside single precision.
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
    """Let pictures be prepared in the layout that their inputs are to have."""
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
