"""One model through the three converters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import onnxruntime

from benchmarks.coreml_peers.cases import Feeds, Open, open_case
from benchmarks.coreml_peers.judge import judge, operations, size_bytes
from benchmarks.coreml_peers.tools import OURS, PEERS, Installed, Made, Sizes, Tool, convert
from benchmarks.tflite_peers.compare import MARGIN_DB, decibels, nudged
from benchmarks.tflite_peers.models import Model
from benchmarks.tflite_peers.pairs import expected

ENOUGH_DB = 60.0
"""Signal to noise below which fp32 numbers are called wrong."""

TIMED = frozenset(
    {
        *("mobilenet-v2-dynamo", "resnet-18-dynamo", "unet-dynamo", "vit-tiny-dynamo"),
        *("convnext-tiny-dynamo", "bert-mini-dynamo", "lstm-dynamo", "basic-pitch", "ppocrv4-det"),
        *("audio-dynamo", "yolo-head-dynamo", "crepe-tiny-dynamo"),
    }
)
"""Models whose conversion is timed."""

TURNS = 5


@dataclass(slots=True)
class Side:
    """What one converter made of one model.

    Attributes:
        made: whether there is a package.
        right: whether its numbers are.
        gap: whether the evaluator lacks an operation of it.
        db: signal to noise.
        said: what went wrong.
        seconds: CPU time of the conversion.
        ops: operations.
        bytes: of the package.
        timed: median CPU time of several conversions in turns; 0 where it was not measured.
        spread: from the fastest to the slowest of these.
        open_right: whether the package with open sizes is right at two sizes; None if not asked.
        open_said: what went wrong there.
    """

    made: bool = False
    right: bool = False
    gap: bool = False
    db: float = -100.0
    said: str = ""
    seconds: float = 0.0
    ops: int = 0
    bytes: int = 0
    timed: float = 0.0
    spread: float = 0.0
    open_right: bool | None = None
    open_said: str = ""

    @property
    def wrong(self) -> bool:
        """Whether there is a package with wrong numbers, or that does not run."""
        return self.made and not self.right and not self.gap


@dataclass(slots=True)
class Row:
    """All sides of one model.

    Attributes:
        model: its name.
        enough: signal to noise from which numbers are right.
        sides: by tool.
    """

    model: str
    enough: float
    sides: dict[str, Side] = field(default_factory=dict)


def measure(
    name: str,
    model: Model,
    there: Mapping[str, Installed],
    cache: Path,
    scratch: Path,
    with_open: bool,
) -> Row:
    """Convert with all, judge all."""
    source = model.prepare(cache / "models")
    feeds = model.feeds(source, 0)
    want = expected(model, source, feeds)
    near = decibels(expected(model, source, nudged(feeds)), want) - MARGIN_DB
    row = Row(name, min(ENOUGH_DB, near))
    opened = open_case(name, model, scratch / "open") if with_open else None
    wanted = _results(opened) if opened is not None else None
    for tool in (OURS, *PEERS):
        side = _side(tool, there[tool.name], source, _folder(tool, name, cache, scratch), {})
        _judge(side, _folder(tool, name, cache, scratch), feeds, want, row.enough)
        if opened is not None and wanted is not None:
            folder = _folder(tool, f"{name}-open", cache, scratch)
            made = convert(tool, there[tool.name], opened.path, folder, opened.sizes)
            _judge_open(side, made, opened, wanted, row.enough)
        row.sides[tool.name] = side
    if name in TIMED:
        # What peers wrote is kept by folder: a model has one of its own.
        _time(row, there, source, scratch / "timed" / name)
    return row


def _time(row: Row, there: Mapping[str, Installed], source: Path, scratch: Path) -> None:
    """Let the tools take turns on a machine that others use too; the median counts.

    The turn before the first fills caches and is not counted.
    """
    spent: dict[str, list[float]] = {}
    for turn in range(-1, TURNS):
        for tool in (OURS, *PEERS):
            if row.sides[tool.name].right:
                folder = scratch / f"{tool.name}-{turn}"
                made = convert(tool, there[tool.name], source, folder, {})
                if turn >= 0:
                    spent.setdefault(tool.name, []).append(made.seconds)
    for name, seconds in spent.items():
        row.sides[name].timed = median(seconds)
        row.sides[name].spread = max(seconds) - min(seconds)


def _results(opened: Open) -> tuple[Feeds, ...] | None:
    """What the file gives at its two sizes; None where it says open and is not."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(opened.path), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    try:
        made = [session.run(None, feeds) for feeds in opened.feeds]
    except Exception as e:
        print(f"{opened.path.name}: only runs at the sizes it was traced with: {str(e)[:80]}")
        return None
    return tuple(dict(zip(names, values, strict=True)) for values in made)


def _folder(tool: Tool, name: str, cache: Path, scratch: Path) -> Path:
    """Peers' packages are kept, ours are written anew."""
    if tool.version:
        return cache / "made" / f"{tool.name}-{tool.version}" / name
    return scratch / "ours" / name


def _side(tool: Tool, there: Installed, source: Path, folder: Path, sizes: Sizes) -> Side:
    made = convert(tool, there, source, folder, sizes)
    return Side(made=made.path is not None, said=made.said, seconds=made.seconds)


def _judge(side: Side, folder: Path, feeds: Feeds, want: Feeds, enough: float) -> None:
    if not side.made:
        return
    package = folder / "model.mlpackage"
    verdict = judge(package, feeds, want)
    side.db, side.said, side.gap = verdict.db, verdict.said, verdict.gap
    side.right = not verdict.said and verdict.db >= enough
    side.bytes = size_bytes(package)
    if not side.gap:
        side.ops = operations(package).total()


def _judge_open(
    side: Side, made: Made, opened: Open, wanted: tuple[Feeds, ...], enough: float
) -> None:
    side.open_right, side.open_said = made.path is not None, made.said
    if made.path is None:
        return
    for feeds, want in zip(opened.feeds, wanted, strict=True):
        verdict = judge(made.path, feeds, want)
        if verdict.said or verdict.db < enough:
            side.open_right = False
            shapes = [v.shape for v in feeds.values()]
            side.open_said = f"{shapes}: {verdict.said or f'{verdict.db:.1f} dB'}"
            break
