"""What the first layer remembers of its training, against what the calibration data makes of it.

A batch normalisation keeps the mean and the variance of each channel as training saw them. Data
that was prepared in another way (pixels in 0..1 for a net that wants -1..1) gives the first layer
other ones: that shows without any record of how the data should be prepared. Many exporters fold
normalisations into convolutions; then nothing is remembered, and nothing is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer.convert.passes.infra import constant
from edgeinfer.convert.quantize.calibrate.judge import DataFinding, Level
from edgeinfer.convert.quantize.calibrate.observe import watched
from edgeinfer.errors import RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

SAMPLES = 32
"""Samples that are looked at."""

_PASSED = frozenset(
    {"Conv", "Pad", "Identity", "Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Dropout"}
)
"""Operators that may stand between an input and the normalisation."""

_CLOSE = 1.0
"""Distance up to which data is taken for what the net was trained with. It is the logarithm of how
many times the variance of the median channel is off, and by how many standard deviations its mean
is. Cut-outs on white against an EfficientNet's ImageNet have 0.6."""

_FAR = 2.5
"""Distance from which data is refused though no other preparation explains it."""

_MEAN = np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
_STD = np.array([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)

_OTHERWISE: dict[str, Callable[[Array], Array]] = {
    "values of 0..1 brought to -1..1": lambda x: x * 2.0 - 1.0,
    "values of -1..1 brought to 0..1": lambda x: (x + 1.0) / 2.0,
    "values divided by 255": lambda x: x / 255.0,
    "values multiplied by 255": lambda x: x * 255.0,
    "values of 0..255 brought to -1..1": lambda x: x / 127.5 - 1.0,
    "values of -1..1 brought to 0..255": lambda x: (x + 1.0) * 127.5,
}
_PICTURES: dict[str, Callable[[Array], Array]] = {
    "ImageNet's mean and deviation taken off": lambda x: (x - _MEAN) / _STD,
    "ImageNet's mean and deviation put back": lambda x: x * _STD + _MEAN,
    "-1..1 instead of ImageNet's mean and deviation": lambda x: (x * _STD + _MEAN) * 2.0 - 1.0,
    "ImageNet's mean and deviation instead of -1..1": (lambda x: ((x + 1.0) / 2.0 - _MEAN) / _STD),
    "0..255 brought to ImageNet's mean and deviation": lambda x: (x / 255.0 - _MEAN) / _STD,
    "ImageNet's mean and deviation brought to 0..255": lambda x: (x * _STD + _MEAN) * 255.0,
}
"""Mistakes that are made with images, and what undoes them."""


@dataclass(frozen=True, slots=True)
class FirstNormalization:
    """The first normalisation behind an input.

    Attributes:
        input: name of the model's input.
        value: name of what is normalised.
        mean: Mean of each channel in training.
        variance: likewise.
    """

    input: str
    value: str
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]


def memories(model: ir.Model) -> list[FirstNormalization]:
    """Return the first normalisation behind each input that has one."""
    found: dict[str, FirstNormalization] = {}
    for node in model.graph:
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        source, statistics = node.inputs[0], [constant(v) for v in node.inputs[3:5]]
        if source is None or len(statistics) < 2 or any(s is None for s in statistics):
            continue
        name = _input_behind(source)
        if name and name not in found and source.name:
            mean, variance = (np.asarray(s.numpy(), np.float64) for s in statistics if s)
            found[name] = FirstNormalization(name, source.name, mean, variance)
    return list(found.values())


def _input_behind(value: ir.Value) -> str:
    """Return the input that a value is made of through one convolution at most."""
    convolutions = 0
    while not value.is_graph_input():
        maker = value.producer()
        if maker is None or maker.op_type not in _PASSED or maker.inputs[0] is None:
            return ""
        convolutions += maker.op_type == "Conv"
        if convolutions > 1:
            return ""
        value = maker.inputs[0]
    return "" if value.const_value is not None else value.name or ""


def findings(
    model: ir.Model, data: Callable[[], Iterator[Feeds]], samples: int = SAMPLES
) -> list[DataFinding]:
    """Compare what the data does to the first layer with what training did.

    Args:
        model: as it was read: normalisations are still there.
        data: calibration samples.
        samples: how many of them are looked at.
    """
    found = []
    for memory in memories(model):

        def some() -> Iterator[Feeds]:
            return itertools.islice(data(), samples)

        try:
            finding = _finding(model, memory, some)
        except RunError:
            # The model itself fails on this data: calibration says so by itself, and better.
            continue
        if finding is not None:
            found.append(finding)
    return found


def _finding(
    model: ir.Model, memory: FirstNormalization, data: Callable[[], Iterator[Feeds]]
) -> DataFinding | None:
    now = _off(memory, *_seen(model, memory, data))
    if now is None:
        return None
    times, off, distance = now
    text = (
        f"input {memory.input!r}: the first layer's variance is {times:.3g} times that of "
        f"training, its mean off by {off:.2g} standard deviations"
    )
    if distance <= _CLOSE:
        return DataFinding("note", "first layer", text)
    best, name = distance, ""
    first = next(iter(data()))[memory.input]
    is_picture = np.ndim(first) == 4 and np.shape(first)[1] == 3
    for title, change in {**_OTHERWISE, **(_PICTURES if is_picture else {})}.items():
        other = _off(memory, *_seen(model, memory, lambda c=change: _changed(data, memory, c)))  # type: ignore[misc]
        if other is not None and other[2] < best:
            best, name = other[2], title
    if best <= min(_CLOSE, distance / 2.0):
        text += f"; with {name} it would be as in training: it was prepared in another way"
        return DataFinding("refused", "first layer", text)
    text += ": this is not what the net was trained with"
    level: Level = "refused" if distance > _FAR else "weak"
    return DataFinding(level, "first layer", text)


def _changed(
    data: Callable[[], Iterator[Feeds]],
    memory: FirstNormalization,
    change: Callable[[Array], Array],
) -> Iterator[Feeds]:
    for feeds in data():
        array = np.asarray(feeds[memory.input])
        yield {**feeds, memory.input: change(array).astype(array.dtype)}


def _seen(
    model: ir.Model, memory: FirstNormalization, data: Callable[[], Iterator[Feeds]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and variance of each channel of what is normalised."""
    first = model.clone()
    values = {v.name: v for n in first.graph for v in n.outputs}
    values |= {v.name: v for v in first.graph.inputs}
    first.graph.outputs.clear()
    first.graph.outputs.append(values[memory.value])
    RemoveUnusedNodesPass()(first)
    wanted = {v.name for v in first.graph.inputs}

    def feeds() -> Iterator[Feeds]:
        for one in data():
            yield {n: a for n, a in one.items() if n in wanted}

    count, total, squares = 0, np.zeros(memory.mean.size), np.zeros(memory.mean.size)
    for arrays in watched(first, [memory.value], feeds):
        array = np.asarray(arrays[memory.value], np.float64)
        if array.ndim < 2 or array.shape[1] != memory.mean.size:
            return np.zeros(0), np.zeros(0)
        rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
        rows = rows[:, np.isfinite(rows).all(axis=0)]
        count += rows.shape[1]
        total += rows.sum(axis=1)
        squares += np.square(rows).sum(axis=1)
    mean = total / max(1, count)
    return mean, np.maximum(0.0, squares / max(1, count) - np.square(mean))


def _off(
    memory: FirstNormalization, mean: npt.NDArray[np.float64], variance: npt.NDArray[np.float64]
) -> tuple[float, float, float] | None:
    """Return the ratio of variances, the distance of means, and both as one number."""
    # Channels that training left without a signal say nothing.
    alive = memory.variance > 1e-3 * float(np.median(memory.variance))
    if mean.shape != memory.mean.shape or not alive.any():
        return None
    known = memory.variance[alive]
    times = float(np.median(np.maximum(variance[alive], 1e-12 * known) / known))
    off = float(np.median(np.abs(mean[alive] - memory.mean[alive]) / np.sqrt(known)))
    return times, off, abs(math.log(times)) + off
