"""Regions compiled and linked into one library of custom operators.

The library needs neither Python nor TVM where it runs: TVM's code and ``host.c`` stand in it
together, and ONNX Runtime, which loads it, is all that they call.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import tvm

from edgeinfer.backends.onnxruntime.regions import DOMAIN
from edgeinfer.convert.lower.regions.cut import is_gelu
from edgeinfer.convert.lower.tvm import hosted
from edgeinfer.convert.lower.tvm.build import linker_for, prepared
from edgeinfer.convert.lower.tvm.direct import NotDirectError, direct
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.convert.lower.tvm.target import module_of
from edgeinfer.convert.lower.tvm.tuned import Tuning
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.interface import input_specs, output_specs
from edgeinfer.errors import Remarks
from edgeinfer.records import dataclass
from edgeinfer.types import Array, TensorSpec

_HOST = Path(__file__).with_name("host.c")

_TASKS = 8
"""Pieces of a parallel loop: even for one, two, four and eight threads."""

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""Of DLPack, by NumPy's kind."""

_MOST_LINES = 5000


class NotARegionError(Exception):
    """A part of a graph cannot be written as one function."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A region's function.

    Attributes:
        name: Name of the operator.
        object: the compiled code.
        inputs: as the part's graph has them.
        outputs: likewise.
        weights: what it takes behind its inputs.
        kernels: that it consists of.
    """

    name: str
    object: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[Array, ...]
    kernels: int


def compile_region(part: ir.Model, name: str, machine: Machine, tuning: Tuning) -> Compiled:
    """Write a part of a graph as one function.

    Raises:
        NotARegionError: it has open sizes, operators without a lowering, or is too large.
    """
    normal = normalise(part.clone()).model
    made = module_of(normal, machine, Remarks(), tuning)
    if made.module is None:
        raise NotARegionError("; ".join(map(str, made.problems[:3])))
    if not made.is_static:
        raise NotARegionError("it has open sizes")
    ready = prepared(made.module, machine, tuning)
    lines = sum(f.script().count("\n") for f in ready.functions.values() if _is_loops(f))
    if lines > _MOST_LINES:
        raise NotARegionError(f"its loops have {lines} lines")
    try:
        written = direct(ready)
    except NotDirectError as error:
        raise NotARegionError(str(error)) from error
    function = written.function.with_attr("global_symbol", name)
    # TVM's own sharing of memory does not see that two shapes may be one buffer.
    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        compiled = tvm.compile(tvm.IRModule({name: function}), target=machine.target())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "region.o")
        compiled.mod.write_to_file(str(path), "o")
        code = path.read_bytes()
    specs = input_specs(normal), output_specs(normal)
    if not all(s.is_static for s in (*specs[0], *specs[1])):
        raise NotARegionError("it has open sizes")
    return Compiled(name, code, *specs, tuple(written.weights), len(ready.functions) - 1)


def _is_loops(function: Any) -> bool:
    return isinstance(function, tvm.tirx.PrimFunc)


def link(regions: Sequence[Compiled], machine: Machine, path: Path) -> None:
    """Write the library, with what a loader must know behind it.

    Raises:
        NotAvailableError: the compiler driver is not installed, or fails.
    """
    driver = linker_for(machine)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = []
        for region in regions:
            place = folder / f"{region.name}.o"
            place.write_bytes(region.object)
            objects.append(str(place))
        table = folder / "regions.h"
        table.write_text(_table(regions), encoding="utf-8")
        parts = [f'-DREGIONS="{table}"', str(_HOST), *objects]
        hosted.link(driver, parts, path, "regions", machine, parallel=True)


def _table(regions: Sequence[Compiled]) -> str:
    """Describe the regions in C."""
    lines = [f"#define COUNT {len(regions)}", f"#define TASKS {_TASKS}"]
    lines.append(f"#define DOMAIN {json.dumps(DOMAIN)}")
    entries = []
    for place, region in enumerate(regions):
        symbol = f"__tvm_ffi_{region.name}"
        lines.append(f"extern int {symbol}(void *, const argument *, int32_t, argument *);")
        tensors = [
            *((s.dtype, s.shape or ()) for s in (*region.inputs, *region.outputs)),
            *((w.dtype.name, w.shape) for w in region.weights),
        ]
        rows = []
        for index, (dtype, shape) in enumerate(tensors):
            sizes = ", ".join(map(str, shape)) or "0"
            lines.append(f"static int64_t shape_{place}_{index}[] = {{{sizes}}};")
            kind = np.dtype(dtype)
            onnx = int(ir.DataType.from_numpy(kind))
            bits = kind.itemsize * 8
            row = onnx, _CODES[kind.kind], bits, len(shape), prod(int(d) for d in shape)
            rows.append(f"{{{', '.join(map(str, row))}, shape_{place}_{index}}}")
        lines.append(f"static const tensor tensors_{place}[] = {{{', '.join(rows)}}};")
        counts = len(region.inputs), len(region.weights), len(region.outputs)
        numbers = ", ".join(map(str, counts))
        entries.append(f'{{"{region.name}", {symbol}, {numbers}, tensors_{place}}}')
    lines.append(f"static const region regions[] = {{{', '.join(entries)}}};")
    return "\n".join(lines) + "\n"


def supported(model: ir.Model) -> list[ir.Node]:
    """Nodes of a graph, without those in bodies, that there is a lowering or a definition for."""
    import onnx

    from edgeinfer.convert.lower import microsoft
    from edgeinfer.convert.lower.tvm import ops
    from edgeinfer.convert.lower.tvm.registry import OPS

    _ = ops
    newest = onnx.defs.onnx_opset_version()

    def is_known(node: ir.Node) -> bool:
        if node.domain not in ("", "ai.onnx"):
            own = OPS.find(node.op_type, node.domain) is not None
            return own or is_gelu(node) or microsoft.definition(node) is not None
        if OPS.find(node.op_type) is not None:
            return True
        try:
            schema = onnx.defs.get_schema(node.op_type, newest)
        except onnx.defs.SchemaError:
            return False
        return bool(schema.has_function or schema.has_context_dependent_function)

    return [node for node in model.graph if is_known(node)]
