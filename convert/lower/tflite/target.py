"""Write a model as TFLite, with builtin operators only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.convert.lower import zeros
from edgeinfer.convert.lower.expand import with_definitions, with_known
from edgeinfer.convert.lower.nan import input_constraint, keep
from edgeinfer.convert.lower.target import PRECISION_KEY, Lowered, LowerOptions, Prepared, Target
from edgeinfer.convert.lower.tflite.fuse import fuse
from edgeinfer.convert.lower.tflite.graph import Graph
from edgeinfer.convert.lower.tflite.halve import halve
from edgeinfer.convert.lower.tflite.hybrid import multiply_blocks, multiply_stored
from edgeinfer.convert.lower.tflite.io_quantization import store_borders
from edgeinfer.convert.lower.tflite.metadata import (
    ENTRY,
    OWN_ENTRY,
    Carried,
    append_labels,
    own_bytes,
    published_bytes,
)
from edgeinfer.convert.lower.tflite.precision import layers, summary
from edgeinfer.convert.lower.tflite.readback import read_back
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.scope import Scope
from edgeinfer.convert.lower.tflite.special import loses_nan, weighs, zero_form
from edgeinfer.convert.lower.tflite.writer import SIGNATURE, Metadata, write
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.agreed_sizes import agreed_sizes
from edgeinfer.convert.passes.flatten_last import FlattenLast
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, PassOutcome
from edgeinfer.convert.passes.interface import input_specs, output_specs
from edgeinfer.convert.passes.join_dynamic import JoinDynamic
from edgeinfer.convert.passes.layout import SPATIAL, PlanLayout
from edgeinfer.convert.passes.layout_groups import FuseGroups
from edgeinfer.convert.passes.split_quantized import SplitQuantized
from edgeinfer.convert.passes.strip_squeeze import strip_squeezes
from edgeinfer.errors import Remarks, UnsupportedError
from edgeinfer.machine.pages import SMALL_MB, give_back
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import Stored

_DYNAMIC = "dynamic_wi8_afp32"
_BLOCKS = "weight_only_wi4b32_afp32"

_PRECISIONS = frozenset({"fp32", "fp16"})


class TfliteTarget(Target):
    """Format ``tflite``."""

    format: ClassVar[str] = "tflite"

    def prepare(self, model: ir.Model, profile: Profile, options: LowerOptions) -> Prepared:
        """Build the graphs of ``model.tflite``."""
        self.check_precision(profile, options, _PRECISIONS)
        notes = Remarks()
        try:
            graphs = _built(model, options, notes)
        except UnsupportedError as e:
            return Prepared.refused(e)
        return Prepared([], profile.name, partial(self._write, model, options, graphs, notes))

    def _write(
        self,
        model: ir.Model,
        options: LowerOptions,
        graphs: list[Graph],
        notes: Remarks,
        folder: Path,
    ) -> Lowered:
        graph, *others = graphs
        path = folder / "model.tflite"
        names = [t.name for t in graph.inputs]
        results = [v.name or "" for v in model.graph.outputs]
        stored: dict[str, Stored] = {}
        for one in (*others, graph):
            stored = store_borders(one, options.io_dtypes, names, results)
        for name, kind in stored.items():
            notes.add(f"{name!r} is stored as {kind}")
        write(
            graph,
            path,
            input_names=names,
            output_names=results,
            others=[(key_of(s), g) for s, g in zip(options.shape_sets[1:], others, strict=True)],
            metadata=_metadata(model, options),
        )
        append_labels(path, options.labels)
        precision, ops = read_back(path)
        for line in _groups(path):
            notes.add(line)
        return Lowered(
            format=self.format,
            files=(path,),
            precision=precision,
            engines=(EngineRequirement("litert"),),
            notes=tuple(notes.lines),
            ops=ops,
            constraints=input_constraint(model, loses_nan, weighs),
            stored=stored,
        )


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Name the signature of a set of shapes, e.g. ``image_1x3x320x320``."""
    return "__".join(f"{name}_{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _built(model: ir.Model, options: LowerOptions, notes: Remarks) -> list[Graph]:
    """Lower once for each set of shapes, or once with open sizes where there is none."""
    graphs: list[Graph] = []
    for shapes in options.shape_sets or ({},):
        fixed = normalise(model, input_shapes=shapes).model if shapes else model
        kept, said = fixed.clone(), Remarks() if graphs else notes
        keep(kept, loses_nan, said)
        zeros.keep(kept, zero_form, said)
        graphs.append(build(kept, said))
        # Weights were read from the source's file; what became of them is on the heap.
        give_back(SMALL_MB)
        if options.precision == "fp16":
            halve(graphs[-1])
    if len(graphs) > 1:
        keys = [SIGNATURE, *map(key_of, options.shape_sets[1:])]
        notes.add(f"{len(keys)} signatures, one for each set of sizes: {', '.join(keys)}")
    return graphs


def _metadata(model: ir.Model, options: LowerOptions) -> list[Metadata]:
    """What the file says of its inputs and outputs, where anything is known."""
    carried = Carried(dict(options.preprocessing), tuple(options.labels))
    if not carried.preprocessing and not carried.labels:
        return []
    name = model.graph.name or "model"
    published = published_bytes(name, input_specs(model), output_specs(model), carried)
    return [Metadata(ENTRY, published), Metadata(OWN_ENTRY, own_bytes(carried))]


def _groups(path: Path) -> Iterator[str]:
    """Say what the operators with weights compute in, as the file has it."""
    for kinds, count in summary(layers(path, with_weights=True)).items():
        activations, weights = kinds.split("/")
        what = "1 operator" if count == 1 else f"{count} operators"
        yield f"{what} with {weights} weights, computed in {activations}"


def build(source: ir.Model, notes: Remarks) -> Graph:
    """Lower a normalised model to a graph that is ready to be written.

    Raises:
        UnsupportedError: with every node that has no lowering.
    """
    return with_definitions(source, lambda model: _build(model, notes), notes)


def _build(source: ir.Model, notes: Remarks) -> Graph:
    model = _with_agreed_sizes(source, notes)
    recipe = source.metadata_props.get(PRECISION_KEY)
    dynamic = recipe == _DYNAMIC
    if dynamic:
        JoinDynamic()(model)
    SplitQuantized()(model)
    model = with_known(model, _is_known, notes)
    squeezed = strip_squeezes(model)
    FuseGroups()(model)
    FlattenLast(SPATIAL)(model)
    planned = PlanLayout()(model)
    if isinstance(planned, PassOutcome):
        for line in planned.notes:
            notes.add(line)
    scope = Scope()
    scope.lower(model)
    _squeeze(scope, model, squeezed)
    # Else weights that are replaced from here on stay in memory next to what replaces them.
    scope.driver.values.clear()
    fuse(scope)
    multiply_stored(scope, None if dynamic else scope.dynamic)
    if recipe == _BLOCKS and (count := multiply_blocks(scope)):
        notes.add(f"{count} products with 4-bit weights round their activations to 8 bits")
    return scope


def _with_agreed_sizes(source: ir.Model, notes: Remarks) -> ir.Model:
    """Copy a model; fix the sizes that can only be one number, on which ranks may depend."""
    shapes = agreed_sizes(source)
    if not shapes:
        return source.clone()
    for name, shape in shapes.items():
        shown = ", ".join("?" if s is None else str(s) for s in shape)
        notes.add(f"input {name!r}: the model runs as [{shown}] only: written like that")
    return normalise(source, input_shapes=shapes).model


def _squeeze(g: Graph, model: ir.Model, names: Sequence[str]) -> None:
    """Let a run decide which axes of these outputs are of size 1, and with that on their rank."""
    for index, value in enumerate(model.graph.outputs):
        if value.name in names:
            whole = g.outputs[index]
            result = g.emit("SQUEEZE", [whole], whole.shape, squeeze_dims=[])
            whole.name, result.name = g.fresh_name("t"), whole.name
            g.outputs[index] = result


def _is_known(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    if node.domain in DEFAULT_DOMAINS and node.op_type in SPATIAL:
        return True
    return OPS.find(node.op_type, node.domain) is not None
