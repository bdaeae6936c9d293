"""Small graphs with a region, written for the CPU at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from edgeinfer.backends.base import Artifact
from edgeinfer.backends.onnxruntime.regions import FORMAT, LIBRARY
from edgeinfer.convert.lower.regions import cut, library
from edgeinfer.convert.lower.tvm import tuned
from edgeinfer.convert.lower.tvm.machines import machine

MACHINE = "x86-64-v3"


def model(text: str, opset: int = 21) -> ir.Model:
    """Read a graph of one line or more."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> g '
    made = ir.from_onnx_text(head + text)
    for node in made.graph:
        node.name = node.outputs[0].name
    return made


def region(source: ir.Model, names: Sequence[str], name: str = "Region0") -> library.Compiled:
    """Compile the nodes of these names, and put the operator in their place."""
    part = [n for n in source.graph if n.name in names]
    where = machine(MACHINE)
    made = library.compile_region(
        cut.taken_out(source, part), name, where, tuned.for_machine(where, ())
    )
    cut.put_in(source, part, name, made.weights)
    return made


def written(source: ir.Model, regions: Sequence[library.Compiled], folder: Path) -> Artifact:
    """Write a graph and its library."""
    path = folder / "model.onnx"
    ir.save(source, path)
    library.link(regions, machine(MACHINE), folder / LIBRARY)
    return Artifact(FORMAT, path, (), ())
