"""The models of the comparison: with fixed sizes, and with open ones that two runs fill in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.coreml_peers.tools import Sizes
from benchmarks.tflite_peers.models import MODELS, Model, freeze, inputs
from tests import zoo
from tests.zoo.exported import exported

LARGE = frozenset({"resnet-50-dynamo", "mobilenet-v3-large-dynamo", "efficientnet-b0-dynamo"})
"""Left out: the other exporter's file of the same net is there."""

CASES = {n: m for n, m in MODELS.items() if n not in LARGE}

NAMED = {
    "batch": (1, 3),
    "tokens": (16, 11),
    "frames": (20, 33),
    "height": (64, 96),
    "width": (64, 128),
    "samples": (1600, 2400),
}
"""Two sizes of each dimension that the nets leave open."""

SECOND: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "basic-pitch": {"serving_default_input_2:0": (2, 43844, 1)},
    "silero-vad": {"input": (3, 576), "state": (2, 3, 128)},
    "silero-vad-16k-op15": {"input": (3, 576), "state": (2, 3, 128)},
    "silero-vad-16k-sequence": {"input": (7, 576)},
    "ppocrv4-det": {"x": (1, 3, 256, 416)},
    "ppocrv4-rec": {"x": (1, 3, 48, 192)},
    "ppocr-cls": {"x": (2, 3, 48, 192)},
    "ppocrv6-det": {"x": (1, 3, 256, 416)},
    "ppocrv6-rec": {"x": (1, 3, 48, 192)},
    "magika": {"bytes": (3, 2048)},
    "dnsmos-bak-ovr": {"input_1": (2, 901, 161)},
    "dnsmos-v8": {"input_1": (2, 900, 120)},
    "wake-embedding": {"input_1": (2, 76, 32, 1)},
    "wake-melspectrogram": {"input": (1, 17600)},
}
"""Other sizes of files that packages ship; the first ones are those of the comparison."""

Feeds = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Open:
    """A model with open sizes.

    Attributes:
        path: of the file.
        sizes: least, first and most by the name of a dimension.
        feeds: inputs in two sizes.
    """

    path: Path
    sizes: Sizes
    feeds: tuple[Feeds, Feeds]


def open_case(name: str, model: Model, folder: Path) -> Open | None:
    """The same model with open sizes; None where it has none."""
    if model.source is None:
        if name not in SECOND:
            return None
        proto = onnx.load(zoo.fetch(f"{name}.onnx"))
        freeze(proto, model.frozen)
        pairs = dict(_shipped(proto, model.shapes, SECOND[name]))
    else:
        net, _, exporter = name.rpartition("-")
        proto = onnx.load(exported(net, "dynamo" if exporter == "dynamo" else "script"))
        pairs = {d.dim_param: NAMED[d.dim_param] for d in _open_dims(proto)}
    path = folder / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, path)
    sizes = {n: (min(a, b), a, max(a, b)) for n, (a, b) in pairs.items()}
    feeds = [_feeds(proto, model, {n: p[i] for n, p in pairs.items()}) for i in (0, 1)]
    return Open(path, sizes, (feeds[0], feeds[1]))


def _open_dims(proto: Any) -> Iterator[Any]:
    for value in inputs(proto):
        yield from (d for d in value.type.tensor_type.shape.dim if not d.dim_value)


def _shipped(
    proto: Any, first: Mapping[str, tuple[int, ...]], second: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name what is open where it has no name; a dimension that both runs leave alone is fixed."""
    for value in inputs(proto):
        dims = value.type.tensor_type.shape.dim
        if value.name not in first:
            continue
        for axis, (dim, a, b) in enumerate(
            zip(dims, first[value.name], second[value.name], strict=True)
        ):
            if dim.dim_value:
                continue
            if a == b:
                dim.Clear()
                dim.dim_value = a
                continue
            if not dim.dim_param or dim.dim_param.startswith("unk"):
                dim.dim_param = f"{value.name.split(':')[0]}_{axis}"
            yield dim.dim_param, (a, b)


def _feeds(proto: Any, model: Model, sizes: Mapping[str, int]) -> Feeds:
    """Random inputs of these sizes, drawn as those of the fixed file are."""
    filled = onnx.ModelProto()
    filled.CopyFrom(proto)
    for dim in _open_dims(filled):
        size = sizes[dim.dim_param]
        dim.Clear()
        dim.dim_value = size
    keep = {t.name for t in filled.graph.initializer}
    del filled.graph.node[:]
    small = [numpy_helper.from_array(np.zeros(1, np.float32), n) for n in keep]
    del filled.graph.initializer[:]
    filled.graph.initializer.extend(small)
    return model.drawn(filled, 0)
