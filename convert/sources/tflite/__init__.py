"""TensorFlow Lite models: one signature of a ``.tflite`` file becomes an ONNX graph.

Inputs and outputs keep their names, types and layout; channels stay last where the file has them
last. What the expected values of the model are is asked of LiteRT on the file itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.lower.tflite.metadata import ENTRY, OWN_ENTRY, Carried, carried_by
from edgeinfer.convert.passes.interface import input_specs
from edgeinfer.convert.sources.external import digest
from edgeinfer.convert.sources.original import LITERT, Original
from edgeinfer.convert.sources.repair import repair
from edgeinfer.convert.sources.tflite import ops as _families  # noqa: F401  (fills the table)
from edgeinfer.convert.sources.tflite.file import Damaged, FileGraph, FileModel, FileSignature, load
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand
from edgeinfer.convert.sources.tflite.ops.conv import HYBRID
from edgeinfer.convert.sources.tflite.weights import TYPES
from edgeinfer.errors import Remarks, SourceError, UnsupportedError, UsageError

OPSET = 24
IR_VERSION = 12
DEFAULT_SIGNATURE = "serving_default"


class TfliteSource(NamedTuple):
    """What a file holds.

    Attributes:
        model: the graph of one signature.
        record: where it came from.
        notes: what was decided and repaired.
        original: the file, for its own engine.
        carried: what its metadata says.
    """

    model: ir.Model
    record: SourceRecord
    notes: Remarks
    original: Original
    carried: Carried


def read_file(path: Path, signature: str | None = None) -> TfliteSource:
    """Read a ``.tflite`` file; large weights stay in it until they are touched.

    Args:
        path: the file.
        signature: which one, where the file has several.

    Raises:
        SourceError: the file is damaged.
        UnsupportedError: operators cannot be read; lists all of them.
        UsageError: there is no such signature, or several and none was named.
        NotAvailableError: LiteRT's schema is not installed.
    """
    file = load(path)
    chosen = _choose(file, signature)
    number = chosen.graph if chosen else 0
    graph = file.graphs[number]
    notes = Remarks()
    inputs = _ports(graph, graph.inputs, chosen.inputs if chosen else (), unique=True)
    outputs = _ports(graph, graph.outputs, chosen.outputs if chosen else ())
    try:
        model, custom = _build(file, graph, inputs, outputs, notes)
    except Damaged as error:
        raise SourceError(
            f"{path}: a damaged .tflite file: {error}; write or download it again"
        ) from None
    repair(model, notes, str(path))
    if lacking := [name for name in custom if name not in LITERT]:
        notes.add(
            f"{', '.join(lacking)}: read by MediaPipe's definitions; LiteRT has no kernels of its "
            "own for them and cannot run the whole file"
        )
    key = chosen.key if chosen else None
    original = Original(
        path.resolve(),
        number,
        key,
        tuple(inputs),
        tuple(outputs),
        hybrid=HYBRID in notes.lines,
        custom=custom,
    )
    record = SourceRecord("tflite", path.name, digest(path, ()))
    return TfliteSource(model, record, notes, original, _carried(file, model, notes))


def _carried(file: FileModel, model: ir.Model, notes: Remarks) -> Carried:
    """Read the metadata; what is wrong with it is no fault of the model."""
    entries = {n: file.read(file.metadata[n]) for n in (ENTRY, OWN_ENTRY) if n in file.metadata}
    try:
        return carried_by(entries, file.path, input_specs(model))
    except ValueError as error:
        notes.add(f"the file's metadata was left out: {error}")
        return Carried()


def _choose(file: FileModel, wanted: str | None) -> FileSignature | None:
    keys = {s.key: s for s in file.signatures}
    names = ", ".join(map(repr, keys)) or "none"
    if wanted is not None:
        if wanted not in keys:
            raise UsageError(f"{file.path}: no signature {wanted!r}; it has {names}")
        return keys[wanted]
    if not keys:
        return None
    if len(keys) == 1:
        return next(iter(keys.values()))
    if DEFAULT_SIGNATURE in keys:
        return keys[DEFAULT_SIGNATURE]
    raise UsageError(f"{file.path}: several signatures, {names}; choose one: --signature NAME")


def _build(
    file: FileModel,
    graph: FileGraph,
    inputs: Sequence[tuple[str, int]],
    outputs: Sequence[tuple[str, int]],
    notes: Remarks,
) -> tuple[ir.Model, tuple[str, ...]]:
    """Build the graph; tells the custom operators in it as well."""
    g = Importer(file, notes)
    if not outputs:
        raise Damaged("its graph has no outputs")
    for name in (*(n for n, _ in inputs), *(n for n, _ in outputs)):
        if g.fresh(name) != name:
            raise Damaged(f"two inputs or outputs are called {name!r}")
    given = [_input(g, graph, name, index) for name, index in inputs]
    results = g.run(graph, [Operand(g, graph.tensors[i], value=v) for i, v in given])
    if g.problems:
        raise UnsupportedError("the reader of .tflite files", g.problems)
    made: list[ir.Value] = []
    for name, index in outputs:
        operand = results[index]
        if operand is None:
            raise Damaged(f"output {name!r} is made by nothing")
        made.append(_output(g, operand, name, made))
    main = ir.Graph(
        [v for _, v in given],
        made,
        nodes=g.nodes,
        initializers=g.initializers,
        opset_imports={"": OPSET},
        name=file.path.stem,
    )
    model = ir.Model(main, ir_version=IR_VERSION, producer_name="edgeinfer")
    return model, tuple(sorted(g.custom))


def _ports(
    graph: FileGraph,
    tensors: Sequence[int],
    named: Sequence[tuple[str, int]],
    unique: bool = False,
) -> list[tuple[str, int]]:
    """Name tensors as LiteRT does: by the signature, in the order of the graph."""
    found: list[tuple[str, int]] = []
    for index in dict.fromkeys(tensors):
        names = [n for n, i in named if i == index] or [graph.tensors[index].name or f"t{index}"]
        found.extend((n, index) for n in (names[:1] if unique else names))
    return found


def _input(g: Importer, graph: FileGraph, name: str, index: int) -> tuple[int, ir.Value]:
    tensor = graph.tensors[index]
    if tensor.kind not in TYPES:
        raise Damaged(f"input {name!r} has elements of type {tensor.kind}")
    sizes = [f"{name}_{i}" if s is None else s for i, s in enumerate(tensor.shape)]
    value = ir.Value(name=name, type=ir.TensorType(TYPES[tensor.kind]), shape=ir.Shape(sizes))
    return index, value


def _output(g: Importer, operand: Operand, name: str, taken: list[ir.Value]) -> ir.Value:
    """Give an output its name, type and shape; each is made by a node and listed once."""
    value = operand.stored
    if value.producer() is None or any(value is t for t in taken):
        value = g.emit("Identity", value)
    value.name = name
    value.type = ir.TensorType(operand.dtype)
    value.shape = ir.Shape(operand.shape)
    return value
