"""One model, one precision, two converters: what each made, and how fast it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tflite_peers import onnx2tf, ours
from benchmarks.tflite_peers.models import Model
from benchmarks.tflite_peers.pairs import LIMIT_RATIO, expected, matched, summary
from benchmarks.tflite_peers.worker import FailedError, ask

ENOUGH_DB = {"fp32": 60.0, "fp16": 30.0, "dynamic_wi8_afp32": 10.0, "static_wi8_ai8": 10.0}
"""Signal to noise below which numbers are called wrong; ten is a third of the signal."""

SAMPLES = 8
"""Random inputs to calibrate with, the same for both."""

MARGIN_DB = 6.0
"""How far below what the last bit of the inputs changes float32 numbers may be and be right."""

LONGER = 4
"""How much longer is measured again what seemed slower."""


@dataclass(slots=True)
class Side:
    """What one converter made.

    Attributes:
        seconds: CPU time of the conversion.
        said: why there is no file that runs; empty if there is.
        db: signal to noise against ONNX Runtime on the float model.
        transposes: left in the file.
        ops: operators of all subgraphs.
        bytes: of the file.
        custom: operators no plain LiteRT has.
        path: of the file.
    """

    seconds: float = 0.0
    said: str = ""
    db: float = 0.0
    transposes: int = 0
    ops: int = 0
    bytes: int = 0
    custom: list[str] = field(default_factory=list)
    path: str = ""

    @property
    def runs(self) -> bool:
        """Whether there is a file that LiteRT runs."""
        return not self.said


@dataclass(slots=True)
class Row:
    """Both sides of one model in one precision.

    Attributes:
        model: its name.
        kind: precision recipe.
        ours: what edgeinfer made.
        theirs: what onnx2tf made.
        enough: signal to noise from which numbers are right.
        owed: transposes of results that onnx2tf leaves to the caller: it keeps the layout of inputs
            when told to, but not that of outputs.
        ms: median CPU time of ours and theirs.
        ratio: median over turns of ours by theirs, and the quartiles.
        n: turns.
        plain: whether ours and theirs run without XNNPACK, as half precision must where a processor
            has no arithmetic for it; requested that kind only.
    """

    model: str
    kind: str
    ours: Side
    theirs: Side
    enough: float
    owed: int = 0
    ms: tuple[float, float] = (0.0, 0.0)
    ratio: tuple[float, float, float] = (0.0, 0.0, 0.0)
    n: int = 0
    plain: tuple[bool, bool] = (False, False)

    def broken(self) -> list[str]:
        """Limits that do not hold."""
        found = []
        if not self.ours.runs:
            found.append(f"ours: {self.ours.said}")
        elif self.ours.db < self.enough:
            found.append(f"ours is wrong: {self.ours.db:.1f} dB")
        return found

    def behind(self) -> list[str]:
        """Where theirs is right and better in this row, which the columns add up."""
        found = []
        if self.ours.runs and self.theirs.runs and self.theirs.db >= self.enough:
            if self.ours.transposes > self.theirs.transposes + self.owed:
                left = f"{self.theirs.transposes} + {self.owed}"
                found.append(f"transposes: {self.ours.transposes} > {left}")
            if self.n and self.ratio[0] > LIMIT_RATIO:
                found.append(f"slower: {self.ratio[0]:.3f}")
        return found


def compare(
    model: Model, kind: str, program: Path, cache: Path, folder: Path, seconds: float
) -> Row:
    """Convert with both, run, race."""
    source = model.prepare(cache / "models")
    samples = [model.feeds(source, seed) for seed in range(100, 100 + SAMPLES)]
    stacked = {n: np.concatenate([s[n] for s in samples]) for n in samples[0]}
    feeds = model.feeds(source, 0)
    want = expected(model, source, feeds)
    mine = _side(lambda _: _ours(source, folder, kind, samples), 1, feeds, want)
    peers = cache / "made" / f"onnx2tf-{onnx2tf.VERSION}" / model.name / kind
    theirs = _kept(
        peers,
        lambda attempt: onnx2tf.convert(program, source, peers, kind, stacked, attempt),
        onnx2tf.attempts(kind),
        feeds,
        want,
    )
    row = Row(model.name, kind, mine, theirs, _enough(model, kind, source, feeds, want))
    if theirs.runs:
        row.owed = sum(map(_is_moved, *zip(*matched_raw(theirs.path, feeds, want), strict=True)))
    if kind == "fp16":
        row.plain = (_runs_plain(mine, feeds), _runs_plain(theirs, feeds))
    if mine.runs and theirs.runs and seconds:
        for factor in (1, LONGER):
            times = ask("race", [mine.path, theirs.path], [feeds, feeds], seconds * factor)
            row.ms, row.ratio, row.n = summary(times)
            if row.ratio[0] <= LIMIT_RATIO:
                break
    return row


def _runs_plain(side: Side, feeds: Any) -> bool:
    try:
        ask("run", side.path, feeds, False)
    except FailedError:
        return False
    return True


def matched_raw(path: str, feeds: Any, want: Any) -> list[tuple[Any, Any]]:
    """Shapes of results as a file gives them, next to those of the model."""
    got = ask("run", path, feeds)
    whole = matched(got, want)
    raw = {id(v): v.shape for v in got.values()}
    kept = [raw.get(id(have)) for have, _ in whole]
    free = [v.shape for v in got.values() if v.shape not in kept]
    return [
        (shape if shape is not None else free.pop(0), value.shape)
        for shape, (_, value) in zip(kept, whole, strict=True)
    ]


def _is_moved(got: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Whether axes of more than one element are in another order."""
    return [s for s in got if s != 1] != [s for s in want if s != 1]


def _enough(model: Model, kind: str, source: Path, feeds: Any, want: Any) -> float:
    """Some nets make much of the last bit of their inputs; no converter can do better there."""
    moved = expected(model, source, nudged(feeds))
    return min(ENOUGH_DB[kind], decibels(moved, want) - MARGIN_DB)


def nudged(feeds: dict[str, Any]) -> dict[str, Any]:
    """Change the last bit of half of the floats."""
    rng = np.random.default_rng(0)
    return {n: _nudged(v, rng) for n, v in feeds.items()}


def _nudged(value: Any, rng: np.random.Generator) -> Any:
    if value.dtype.kind != "f":
        return value
    return np.where(rng.integers(0, 2, value.shape) == 0, value, np.nextafter(value, value + 1))


def _ours(source: Path, folder: Path, kind: str, samples: list[Any]) -> onnx2tf.Made:
    try:
        seconds = ours.convert(source, folder, kind, samples)
    except RuntimeError as e:
        return onnx2tf.Made(None, 0.0, str(e))
    return onnx2tf.Made(folder / "model.tflite", seconds)


def _kept(
    folder: Path, make: Callable[[int], onnx2tf.Made], attempts: int, feeds: Any, want: Any
) -> Side:
    """What the peer made stays: it does not change with our code."""
    record = folder / "side.pickle"
    if record.exists():
        known: Side = pickle.loads(record.read_bytes())
        return known
    side = _side(make, attempts, feeds, want)
    folder.mkdir(parents=True, exist_ok=True)
    record.write_bytes(pickle.dumps(side))
    return side


def _side(make: Callable[[int], onnx2tf.Made], attempts: int, feeds: Any, want: Any) -> Side:
    """Judge the first attempt that runs, else tell what the last one said."""
    side = Side()
    for attempt in range(attempts):
        made = make(attempt)
        side.seconds, side.said = made.seconds, made.said
        if made.file is None:
            continue
        try:
            seen = ask("inspect", str(made.file))
            side.ops, side.bytes = sum(seen["ops"].values()), seen["bytes"]
            side.transposes, side.custom = seen["ops"].get("TRANSPOSE", 0), seen["custom"]
            side.path = str(made.file)
            side.db = decibels(ask("run", side.path, feeds), want)
        except FailedError as e:
            side.said = f"custom operators {sorted(set(side.custom))}" if side.custom else str(e)
        else:
            break
    return side


def decibels(got: dict[str, Any], want: dict[str, Any]) -> float:
    """Signal to noise of the worst output; 200 where nothing differs."""
    worst = 200.0
    for have, value in matched(got, want):
        signal = float(np.square(value, dtype=np.float64).sum())
        noise = float(np.square(have.astype(np.float64) - value).sum())
        if not np.isfinite(noise):
            return -100.0
        if noise:
            worst = min(worst, 10 * float(np.log10(max(signal, 1e-30) / noise)))
    return worst
