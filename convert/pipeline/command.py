"""The command line that a conversion could have been asked for by, for its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import join
from typing import Any

from edgeinfer.convert.pipeline.request import Request
from edgeinfer.media.description import Description

ELSEWHERE = "..."
"""Stands for what was given in memory, of which no file is known."""


def command_of(model: Any, request: Request, described: Description) -> str:
    """Return the command line; what only Python can give is written as ``...``."""
    source = str(model) if isinstance(model, str | Path) else ELSEWHERE
    words = ["edgeinfer", "convert", source, *_options(request, described)]
    return join(words).replace(f"'{ELSEWHERE}'", ELSEWHERE)


def _options(request: Request, described: Description) -> Iterator[str]:
    for profile in request.profiles:
        yield from ("-t", profile.name)
    if request.precision != "fp32":
        yield from ("--precision", request.precision)
    shapes = request.shape_sets or ((request.input_shapes,) if request.input_shapes else ())
    for shape in shapes:
        for name, sizes in shape.items():
            said = [_size(s, request.ranges.get((name, i))) for i, s in enumerate(sizes)]
            yield from ("--input-shape", f"{name}={','.join(said)}")
    for name, (low, high) in request.input_ranges.items():
        yield from ("--input-range", f"{name}={low:g}:{high:g}")
    for name, (first, last) in request.integers.items():
        yield from ("--integers", f"{name}={first}..{last}")
    for source, output in request.states.items():
        yield from ("--state", f"{source}:{output}")
    for option, names in (
        ("--picture", request.pictures),
        ("--channels-last", request.channels_last),
        ("--channels-first", request.channels_first),
        ("--records", request.records),
    ):
        for name in names:
            yield from (option, name)
    for name, kind in request.io_dtypes.items():
        yield from ("--io-dtype", f"{name}={kind}" if name else kind)
    yield from _data(request, described)
    for flag, asked in (
        ("--compress-weights", request.compress_weights),
        ("--classifier", request.classifier),
        ("--force", request.force),
        ("--unverified", request.unverified),
    ):
        if asked:
            yield flag
    yield from ("-o", request.destination)


def _data(request: Request, described: Description) -> Iterator[str]:
    if described != Description():
        yield from ("--pipeline", ELSEWHERE)
    elif request.preprocessing:
        yield from ("--preprocessing", ELSEWHERE)
    if request.labels and not described.labels:
        yield from ("--labels", ELSEWHERE)
    for option, place in (("--data", request.data), ("--calibration", request.calibration)):
        if place is not None:
            yield from (option, str(place) if isinstance(place, Path) else ELSEWHERE)
    if request.calibrator != "mse":
        yield from ("--calibrator", request.calibrator)
    if request.max_drop is not None:
        yield from ("--max-drop", f"{100 * request.max_drop:g}%")
    if request.metric is not None:
        yield from ("--metric", str(getattr(request.metric, "name", ELSEWHERE)))
    for option, text in (
        ("--signature", request.signature),
        ("--random", request.random),
        ("--deployment", request.deployment),
    ):
        if text:
            yield from (option, text)


def _size(size: int | None, bounds: tuple[int, int] | None) -> str:
    if bounds is not None:
        return f"{bounds[0]}..{bounds[1]}"
    return "?" if size is None else str(size)
