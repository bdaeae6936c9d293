"""A ``.tflite`` file with operators that LiteRT lacks, run by LiteRT as far as it can.

A copy of the file is without them: their results are inputs of it and their operands outputs. It
runs once more for each of them that stands behind another; between the runs NumPy computes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.engines import import_litert
from edgeinfer.backends.litert.trial import InterpreterOpening, check_runs
from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema
from edgeinfer.convert.sources.original import Original
from edgeinfer.convert.sources.tflite.file import FileGraph, FileOp, load
from edgeinfer.convert.verify.definitions import DEFINITIONS, define
from edgeinfer.types import Array, Feeds

_DATA_BYTES = 1 << 30


def open_reference(path: Path) -> Any:
    """Open a file with LiteRT's reference kernels, after a trial in a process of its own.

    Raises:
        LoadError: LiteRT ends the process with it.
        RuntimeError: LiteRT refuses it.
        ValueError: likewise.
    """
    litert = import_litert()
    check_runs(InterpreterOpening(str(path), 1, xnnpack=False), "oracle")
    return litert.Interpreter(
        model_path=str(path),
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
    )


class GraphParts:
    """The main graph of a file, in which custom operators are computed outside of the engine."""

    def __init__(self, path: Path, original: Original, folder: Path) -> None:
        """Write the copy and open it.

        Args:
            path: the file.
            original: its inputs and outputs.
            folder: for the copy.

        Raises:
            ValueError: it cannot be taken apart.
            LoadError: LiteRT ends the process with it.
            RuntimeError: LiteRT refuses it.
        """
        if original.graph:
            raise ValueError("its custom operators are not in its main graph")
        graph = load(path).graphs[0]
        self._graph, self._original = graph, original
        self._waves = _waves(graph)
        outside = [op for wave in self._waves for op in wave]
        self._asked = _read_by(graph, outside)
        self._made = [i for op in outside for i in op.outputs]
        copy = folder / "pieces.tflite"
        _write_without(path, copy, self._made, self._asked)
        self._engine: Any = open_reference(copy)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once, without any state.

        Raises:
            RuntimeError: LiteRT refuses the inputs.
            ValueError: likewise.
        """
        given = {index: feeds[name] for name, index in self._original.inputs}
        known = dict(given)
        for index in self._made:
            sizes = [s or 1 for s in self._graph.tensors[index].shape]
            known[index] = np.zeros(sizes, np.float32)
        for wave in self._waves:
            found = self._invoke(known)
            for op in wave:
                results = define(op, [self._operand(i, {**found, **known}) for i in op.inputs])
                known.update(zip(op.outputs, results, strict=True))
        found = self._invoke(known)
        return {n: known[i] if i in known else found[i] for n, i in self._original.outputs}

    def close(self) -> None:
        """Free the interpreter."""
        self._engine = None

    def _operand(self, index: int, known: dict[int, Array]) -> Array:
        """A constant is read from the engine, which has it from the file."""
        return known[index] if index in known else np.array(self._engine.get_tensor(index))

    def _invoke(self, known: dict[int, Array]) -> dict[int, Array]:
        engine = self._engine
        for index, array in known.items():
            engine.resize_tensor_input(index, array.shape)
        engine.allocate_tensors()
        engine.reset_all_variables()
        for index, array in known.items():
            engine.set_tensor(index, array)
        engine.invoke()
        wanted = {*self._asked, *(i for _, i in self._original.outputs)} - known.keys()
        return {i: engine.get_tensor(i) for i in wanted}


def _waves(graph: FileGraph) -> list[list[FileOp]]:
    """Custom operators by how many others stand before them."""
    depth: dict[int, int] = {}
    waves: list[list[FileOp]] = []
    for op in graph.ops:
        level = max((depth.get(i, 0) for i in op.inputs), default=0)
        if op.custom in DEFINITIONS:
            waves.extend([] for _ in range(level + 1 - len(waves)))
            waves[level].append(op)
            level += 1
        depth.update(dict.fromkeys(op.outputs, level))
    return waves


def _read_by(graph: FileGraph, ops: list[FileOp]) -> list[int]:
    """What operators read that is computed, each once."""
    read = dict.fromkeys(i for op in ops for i in op.inputs)
    return [i for i in read if graph.tensors[i].span is None]


def _write_without(path: Path, target: Path, made: list[int], asked: list[int]) -> None:
    """Write a file without some operators.

    Raises:
        ValueError: the file is too large to be written as one flatbuffer.
    """
    import flatbuffers

    size = path.stat().st_size
    if size > _DATA_BYTES:
        raise ValueError(f"weights of {size} bytes cannot be rewritten")
    s = schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(path.read_bytes(), 0))
    graph = model.subgraphs[0]
    outside = {*made}
    graph.operators = [op for op in graph.operators if not outside & {int(i) for i in op.outputs}]
    inputs, outputs = [int(i) for i in graph.inputs], [int(i) for i in graph.outputs]
    graph.inputs = list(dict.fromkeys([*inputs, *made]))
    known = {*graph.inputs}
    graph.outputs = [i for i in dict.fromkeys([*outputs, *asked]) if i not in known]
    model.signatureDefs = None
    builder = flatbuffers.Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    target.write_bytes(builder.Output())
