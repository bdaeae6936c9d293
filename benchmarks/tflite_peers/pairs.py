"""Files that others made of the same weights, and ours made of their ONNX."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.tflite_peers import ours
from benchmarks.tflite_peers.models import MODELS, Model
from benchmarks.tflite_peers.worker import FailedError, arranged, ask
from tests import zoo

PAIRS = {
    "basic-pitch": "basic-pitch",
    "blazeface-front": "face-detection-front",
    "blazeface-back": "face-detection-back",
    **{
        f"wake-{n}": f"wake-{n}"
        for n in (
            *("alexa", "hey-jarvis", "hey-mycroft", "timer", "weather", "embedding"),
            "melspectrogram",
        )
    },
}
"""Our name of the ONNX file, and the name of their .tflite."""

_BOXES: dict[str, tuple[str, ...]] = {
    "regressors": ("Identity_2:0", "Identity_3:0"),
    "classificators": ("Identity:0", "Identity_1:0"),
}

JOINED = {"blazeface-front": _BOXES, "blazeface-back": _BOXES}
"""Outputs that theirs has in one, along axis 1."""

CONTROL = "wake-hey-rhasspy"
"""Same name, other weights: it must be found to differ."""

LIMIT_RATIO = 1.02

ULPS = 4
"""Steps of float32 at an output's largest value that two files may differ by and be called equal:
sums in another order alone give as much."""

SEEDS = (0, 1, 2)


@dataclass(slots=True)
class Pair:
    """What was measured of one pair.

    Attributes:
        name: of the model.
        ours_theirs: largest difference between the two files, of the output's largest value.
        theirs_onnx: likewise between theirs and ONNX Runtime.
        ours_onnx: likewise.
        ops: operators of ours and theirs.
        transposes: likewise.
        ms: median CPU time of ours and theirs.
        ratio: median over turns of ours by theirs, and the quartiles.
        n: turns.
        broken: limits that do not hold.
    """

    name: str
    ours_theirs: float = 0.0
    theirs_onnx: float = 0.0
    ours_onnx: float = 0.0
    ops: tuple[int, int] = (0, 0)
    transposes: tuple[int, int] = (0, 0)
    ms: tuple[float, float] = (0.0, 0.0)
    ratio: tuple[float, float, float] = (0.0, 0.0, 0.0)
    n: int = 0
    broken: list[str] = field(default_factory=list)


def measure(cache: Path, folder: Path, seconds: float, only: str = "") -> Iterator[Pair]:
    """Measure each pair, and the control."""
    for name in (*PAIRS, CONTROL):
        if only in name:
            yield _measure(MODELS[name], cache, folder, seconds)


def _measure(model: Model, cache: Path, folder: Path, seconds: float) -> Pair:
    found = Pair(model.name)
    source = model.prepare(cache / "models")
    theirs = str(zoo.fetch(f"{PAIRS.get(model.name, model.name)}.tflite"))
    try:
        ours.convert(source, folder / model.name, "fp32")
        mine = str(folder / model.name / "model.tflite")
        _differences(found, model, source, mine, theirs)
        if model.name == CONTROL:
            if found.theirs_onnx < 1e-2:
                found.broken.append("the control agrees: nothing is compared")
            return found
        feeds = model.feeds(source, 0)
        times = ask("race", [mine, theirs], [feeds, feeds], seconds)
        found.ms, found.ratio, found.n = summary(times)
        _count(found, mine, theirs)
    except (FailedError, RuntimeError) as e:
        found.broken.append(str(e))
        return found
    if found.ratio[0] > LIMIT_RATIO:
        found.broken.append(f"slower: {found.ratio[0]:.3f}")
    return found


def summary(times: list[list[float]]) -> tuple[Any, Any, int]:
    """Medians in ms of the first two, and median and quartiles of their ratios."""
    ratios = [a / b for a, b in zip(times[0], times[1], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ms = tuple(1e3 * statistics.median(t) for t in times[:2])
    return ms, (middle, low, high), len(ratios)


def _count(found: Pair, mine: str, theirs: str) -> None:
    seen = [ask("inspect", p)["ops"] for p in (mine, theirs)]
    found.ops = (sum(seen[0].values()), sum(seen[1].values()))
    found.transposes = (seen[0].get("TRANSPOSE", 0), seen[1].get("TRANSPOSE", 0))
    if found.ops[0] > found.ops[1]:
        found.broken.append("more operators")
    if found.transposes[0] > found.transposes[1]:
        found.broken.append("more transposes")


def _differences(found: Pair, model: Model, source: Path, mine: str, theirs: str) -> None:
    for seed in SEEDS:
        feeds = model.feeds(source, seed)
        want = expected(model, source, feeds)
        ours_, others = ask("run", mine, feeds), ask("run", theirs, feeds)
        parts = JOINED.get(model.name)
        if parts is not None:
            want, ours_ = _joined(want, parts), _joined(ours_, parts)
        found.theirs_onnx = max(found.theirs_onnx, difference(others, want))
        found.ours_onnx = max(found.ours_onnx, difference(ours_, want))
        found.ours_theirs = max(found.ours_theirs, difference(others, ours_))
    slack = ULPS * float(np.finfo(np.float32).eps)
    if found.ours_theirs > found.theirs_onnx + slack and model.name != CONTROL:
        found.broken.append("further from theirs than theirs from ONNX")


def _joined(values: dict[str, Any], parts: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return {n: np.concatenate([values[p] for p in own], axis=1) for n, own in parts.items()}


def expected(model: Model, source: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """What ONNX Runtime computes of the published file, unoptimised."""
    path, frozen = model.oracle(source)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {**feeds, **frozen}), strict=True))


def difference(got: dict[str, Any], want: dict[str, Any]) -> float:
    """The largest difference of any output, by the output's largest value."""
    worst = 0.0
    for have, value in matched(got, want):
        worst = max(worst, _distance(have, value))
    return worst


def matched(got: dict[str, Any], want: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Pair outputs by name, else by which fits best: tools rename, reorder and move channels.

    Raises:
        FailedError: an output is missing, or has another shape.
    """
    rest, pairs = dict(got), []
    for name, value in want.items():
        value = np.asarray(value)
        fitting = {}
        for other, have in rest.items():
            try:
                fitting[other] = arranged(have, value.shape)
            except ValueError:
                continue
        if not fitting:
            raise FailedError(f"no output for {name!r}: {[v.shape for v in rest.values()]}")
        near = {n: _distance(v, value) for n, v in fitting.items()}
        best = name if name in fitting else min(near, key=lambda n: near[n])
        pairs.append((fitting[best], value))
        del rest[best]
    return pairs


def _distance(got: Any, want: Any) -> float:
    wide = np.asarray(want, np.float64)
    scale = float(np.abs(wide).max(initial=0)) or 1.0
    gap = float(np.abs(got - wide).max(initial=0))
    return gap / scale if np.isfinite(gap) else float("inf")
