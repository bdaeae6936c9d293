"""Run the float model over the data and remember of each value what calibration needs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.backends.onnxruntime.sums import precise_entries
from edgeinfer.convert.lower.onnxruntime.readable import readable
from edgeinfer.convert.quantize.calibrate.histogram import ChannelStats, Histogram, Spreads
from edgeinfer.convert.quantize.units import Unit
from edgeinfer.errors import RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

_AT_ONCE = 256 << 20
"""Bytes of inner values that one run gives out; the rest is seen in further runs."""


@dataclass(slots=True)
class Observation:
    """What was seen of a model.

    Attributes:
        values: by name of a value.
        channels: by name of a value that weights are multiplied with.
        spreads: by name of a value that becomes an output.
        samples: runs of the model.
    """

    values: dict[str, Histogram] = field(default_factory=dict)
    channels: dict[str, ChannelStats] = field(default_factory=dict)
    spreads: dict[str, Spreads] = field(default_factory=dict)
    samples: int = 0


def channel_axis(unit: Unit) -> int:
    """Return the axis of the input channels of what a weighted unit reads."""
    return 1 if unit.op in ("Conv", "ConvTranspose") else -1


def observe(
    model: ir.Model,
    names: Iterable[str],
    axes: dict[str, int],
    data: Callable[[], Iterator[Feeds]],
    *,
    ends: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Observation:
    """Watch values over a whole data set, one sample in memory at a time.

    Args:
        model: normalised, float.
        names: Names of the values to watch.
        axes: channel axis of those whose channels are distinguished.
        data: gives the samples; called once for each group of values.
        ends: names of those whose channels are held against each other.
        progress: called with the number of samples seen.

    Raises:
        RunError: the model failed on a sample.
    """
    found = Observation()

    def notify(count: int) -> None:
        found.samples = count
        if progress is not None:
            progress(count)

    for arrays in watched(model, list(dict.fromkeys(names)), data, notify=notify):
        _take(found, arrays, axes)
        for name in arrays.keys() & set(ends):
            found.spreads.setdefault(name, Spreads()).add(arrays[name])
    return found


def watched(
    model: ir.Model,
    names: Sequence[str],
    data: Callable[[], Iterator[Feeds]],
    *,
    notify: Callable[[int], None] = lambda _: None,
) -> Iterator[dict[str, Array]]:
    """Give the named values of each sample, in as many rounds over the data as memory asks for.

    Raises:
        RunError: the model failed on a sample.
    """
    inputs = {v.name for v in model.graph.inputs}
    for group in _groups(model, names, _sizes(model, next(data(), {}))):
        with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
            inner = [n for n in group if n not in inputs]
            session = _opened(with_outputs(model, inner), Path(folder))
            for count, feeds in enumerate(data(), 1):
                results = dict(zip(inner, _run(session, inner, feeds), strict=True))
                yield {n: np.asarray(results[n] if n in results else feeds[n]) for n in group}
                notify(count)
            del session


def _opened(model: ir.Model, folder: Path) -> Any:
    try:
        return open_session(model, folder)
    # ONNX Runtime raises a class of its own per status, with no common base below Exception.
    except Exception as e:
        raise RunError(f"ONNX Runtime cannot run the float model: {e}") from e


def _take(found: Observation, arrays: Mapping[str, Array], axes: dict[str, int]) -> None:
    for name, array in arrays.items():
        found.values.setdefault(name, Histogram()).add(array)
        if name in axes and array.ndim:
            axis = axes[name] % array.ndim
            stats = found.channels.setdefault(name, ChannelStats.of(array.shape[axis]))
            stats.add(array, axis)


def _run(session: Any, names: list[str], feeds: Feeds) -> list[Array]:
    if not names:
        return []
    try:
        results: list[Array] = session.run(names, dict(feeds))
    # ONNX Runtime raises a class of its own per status, with no common base below Exception.
    except Exception as e:
        raise RunError(f"the model failed on a calibration sample: {e}") from e
    return results


def _sizes(model: ir.Model, feeds: Feeds) -> dict[str | None, int]:
    """Return the sizes that a sample gives to the free axes of the inputs."""
    found: dict[str | None, int] = {}
    for value in model.graph.inputs:
        array = feeds.get(value.name or "")
        if array is not None and value.shape is not None:
            pairs = zip(value.shape, np.asarray(array).shape, strict=False)
            found.update({d.value: n for d, n in pairs if not isinstance(d, int)})
    return found


def _groups(
    model: ir.Model, names: Sequence[str], sizes: dict[str | None, int]
) -> Iterator[list[str]]:
    shapes = {v.name: v.shape for n in model.graph for v in n.outputs}
    group: list[str] = []
    size = 0
    for name in names:
        shape = shapes.get(name)
        dims = [1 << 16]
        if shape is not None:
            dims = [d if isinstance(d, int) else sizes.get(d.value, 64) for d in shape]
        bytes_ = 4 * int(np.prod(dims, dtype=np.int64))
        if group and size + bytes_ > _AT_ONCE:
            yield group
            group, size = [], 0
        group.append(name)
        size += bytes_
    if group:
        yield group


def with_outputs(model: ir.Model, names: Iterable[str]) -> ir.Model:
    """Return a copy whose outputs are also the named inner values."""
    copy = model.clone()
    known = {v.name: v for n in copy.graph for v in n.outputs}
    present = {v.name for v in copy.graph.outputs}
    for name in names:
        if name not in present:
            copy.graph.outputs.append(known[name])
    return copy


def open_session(model: ir.Model, folder: Path, *, optimise: bool = False) -> Any:
    """Open a model in ONNX Runtime on one thread; its files must stay until it is closed.

    Where that is not installed, it is evaluated in NumPy, which is slower.
    """
    if not has_onnxruntime():
        return _Evaluation(model)
    ort = import_onnxruntime()
    path = folder / "observed.onnx"
    ir.save(readable(model), path, external_data="observed.data", size_threshold_bytes=1024)
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for entry, value in precise_entries(ort).items():
        options.add_session_config_entry(entry, value)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class _Evaluation:
    """A model that is evaluated in NumPy, called as sessions of ONNX Runtime are."""

    def __init__(self, model: ir.Model) -> None:
        from edgeinfer.convert.verify.evaluate import Evaluator

        self._evaluator = Evaluator(model, wide=False)

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Return the named values."""
        found = self._evaluator.run(feeds, wanted=names)
        return [found[name] for name in names]
