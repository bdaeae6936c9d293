"""Weights that several artifacts of a bundle hold alike are stored once.

An ONNX graph may have its weights in other files, at an offset. Those that lie in a ``.tflite``
file or in OpenVINO's ``.bin`` with the very same bytes are read from there, so that the graph moves
into that file's folder, where it names it. Where the axes are in another order, the graph has a
``Transpose``, which ONNX Runtime folds when it opens it. Each file is what its own engine opens.
"""

from __future__ import annotations

import hashlib
import mmap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.external_data import convert_tensors_to_external

from edgeinfer.bounded import open_file
from edgeinfer.convert.lower.onnxruntime.target import EXTERNAL_ABOVE
from edgeinfer.convert.lower.transposed_weights import may_turn, transposed
from edgeinfer.convert.memory import release_memory
from edgeinfer.convert.passes.infra import Namer, add_initializer
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.convert.pipeline.front import Written

LEAST_TENSOR = 1024
"""Bytes of a tensor that may lie elsewhere: engines want sizes and axes within the graph."""

LEAST_SHARED = 1 << 20
"""Bytes that have to be saved; below, one file that holds everything is worth more."""

_ORDERS = {
    2: ((1, 0),),
    3: ((0, 2, 1), (1, 2, 0)),
    4: ((0, 2, 3, 1), (1, 2, 3, 0)),
    5: ((0, 2, 3, 4, 1), (2, 3, 4, 1, 0)),
}
"""By rank, the orders of ONNX's axes that formats with channels last store weights in."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """A constant of a graph, with the digests that its bytes have in each order of its axes."""

    graph: ir.Graph
    value: ir.Value
    tensor: ir.TensorProtocol
    digests: dict[tuple[int, ...] | None, bytes]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a file a weight is: the order of its axes there, None for its own, and its span."""

    order: tuple[int, ...] | None
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Holder:
    """A file with weights.

    Attributes:
        title: Title of its artifact, for the report.
        path: Path of the file.
        spans: offset and length of each constant, by its digest.
    """

    title: str
    path: Path
    spans: dict[bytes, tuple[int, int]]

    def place(self, weight: _Weight) -> _Place | None:
        """Return where a weight lies, if it does, and where its elements may."""
        size = int(weight.tensor.dtype.itemsize) or 1
        for order, digest in weight.digests.items():
            span = self.spans.get(digest)
            if span is not None and span[0] % size == 0:
                return _Place(order, span)
        return None


def share_weights(written: Sequence[Written]) -> tuple[tuple[Written, ...], list[str]]:
    """Let each ONNX graph read what another artifact has, on disk.

    Args:
        written: all artifacts of a bundle, each in a folder of its own.

    Returns:
        The artifacts, and a line for each that shares.

    Raises:
        OSError: an artifact cannot be written again.
    """
    holders: list[_Holder] = []
    if any(w.job.format == "onnx" for w in written):
        holders = [_holder(w) for w in written if w.job.format in _SPANS]
    made, lines = [], []
    for one in written:
        shared = _shared(one, holders) if holders and one.job.format == "onnx" else None
        made.append(one if shared is None else shared[0])
        lines += [] if shared is None else [shared[1]]
    return tuple(made), lines


def _shared(written: Written, holders: Sequence[_Holder]) -> tuple[Written, str] | None:
    """Write a graph anew in the folder of the file that has most of its weights, if one has."""
    path = written.lowered.files[0]
    model = ir.load(path)
    # A compiler for strong types wants constants where they are read.
    weights = [*_weights(model, transposed=not written.job.profile.strongly_typed)]
    sizes = [sum(w.tensor.nbytes for w in weights if h.place(w)) for h in holders]
    saved = max(sizes)
    holder = holders[sizes.index(saved)]
    folder = holder.path.parent
    if saved < LEAST_SHARED or any((folder / f.name).exists() for f in written.lowered.files):
        return None
    namer = Namer(model)
    for weight in weights:
        if (place := holder.place(weight)) is not None:
            _refer(weight, holder.path, place, namer)
    files = _rewritten(model, folder / path.name, holder)
    for file in written.lowered.files:
        file.unlink()
    path.parent.rmdir()
    total = sum(w.tensor.nbytes for w in weights)
    line = (
        f"{written.job.title} reads {saved / 1e6:.1f} of its {total / 1e6:.1f} MB of weights from "
        f"{holder.path.name} of {holder.title}, which holds the same"
    )
    return replace(written, lowered=replace(written.lowered, files=(*files, holder.path))), line


def _weights(model: ir.Model, *, transposed: bool) -> Iterator[_Weight]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or not _is_large(tensor):
                continue
            digests: dict[tuple[int, ...] | None, bytes] = {None: _digest(tensor.tobytes())}
            turns = transposed and graph is model.graph and not value.is_graph_output()
            if turns and tensor.dtype.itemsize >= 1 and may_turn(value):
                array = tensor.numpy()
                for order in _ORDERS.get(array.ndim, ()):
                    digests[order] = _digest(np.ascontiguousarray(array.transpose(order)).data)
            yield _Weight(graph, value, tensor, digests)


def _refer(weight: _Weight, path: Path, place: _Place, namer: Namer) -> None:
    """Have a weight read from a file, in place of what the graph has."""
    tensor, name = weight.tensor, weight.value.name or ""
    shape = tensor.shape.numpy()
    if place.order is not None:
        name = namer.fresh(f"{name}.stored")
        shape = tuple(shape[axis] for axis in place.order)
    reference = ir.ExternalTensor(
        path.name, *place.span, tensor.dtype, shape=ir.Shape(shape), name=name, base_dir=path.parent
    )
    if place.order is None:
        weight.value.const_value = reference
        return
    stored = add_initializer(weight.graph, name, reference)
    back = [place.order.index(axis) for axis in range(len(shape))]
    made = transposed(weight.graph, namer, stored, weight.value, weight.graph[0], back)
    weight.value.replace_all_uses_with(made)
    del weight.graph.initializers[weight.value.name or ""]


def _rewritten(model: ir.Model, place: Path, holder: _Holder) -> tuple[Path, ...]:
    """Write a graph whose shared weights are references; return its files."""
    data = place.with_name(place.name + ".data")
    rest = [
        (value, tensor)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if (tensor := value.const_value) is not None and _is_own(tensor, holder)
    ]
    own = [tensor for _, tensor in rest]
    outside = sum(t.nbytes for t in own) > EXTERNAL_ABOVE
    made: Sequence[ir.TensorProtocol] = (
        convert_tensors_to_external(own, place.parent, data.name)
        if outside
        else [ir.Tensor(t.numpy(), dtype=t.dtype, name=t.name) for t in own]
    )
    for (value, _), tensor in zip(rest, made, strict=True):
        value.const_value = tensor
    ir.save(model, place)
    release_memory(model)
    return (place, data) if outside else (place,)


def _is_own(tensor: ir.TensorProtocol, holder: _Holder) -> bool:
    """Whether a tensor is still to be written: it is large, or lies in the file it had before."""
    if isinstance(tensor, ir.ExternalTensor):
        return Path(tensor.path) != holder.path
    return _is_large(tensor)


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes >= LEAST_TENSOR


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _holder(written: Written) -> _Holder:
    path, spans = _SPANS[written.job.format](written.lowered.files[0])
    found: dict[bytes, tuple[int, int]] = {}
    if not path.stat().st_size:
        # A graph without constants.
        return _Holder(written.job.title, path, found)
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for offset, length in spans:
            if length >= LEAST_TENSOR:
                with memoryview(data)[offset : offset + length] as view:
                    found.setdefault(_digest(view), (offset, length))
    return _Holder(written.job.title, path, found)


def _tflite_spans(path: Path) -> tuple[Path, list[tuple[int, int]]]:
    # Readers of operators come with it.
    from edgeinfer.convert.sources.tflite import file as tflite

    return path, sorted({t.span for g in tflite.load(path).graphs for t in g.tensors if t.span})


def _openvino_spans(path: Path) -> tuple[Path, list[tuple[int, int]]]:
    """Return the file with the weights of an IR, and where constants are in it."""
    found = {
        (int(data.get("offset", "0")), int(data.get("size", "0")))
        for layer in ET.parse(path).getroot().iter("layer")
        if layer.get("type") == "Const"
        for data in layer.iterfind("data")
    }
    return path.with_suffix(".bin"), sorted(found)


_SPANS: dict[str, Callable[[Path], tuple[Path, list[tuple[int, int]]]]] = {
    "tflite": _tflite_spans,
    "openvino_ir": _openvino_spans,
}
"""By format, which file holds its weights and where."""
