"""Lower one graph for every format and run it, for tests that compare all of them.

A node whose output is a graph output is left out where a format refuses it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert.lower import Lowered, LowerOptions, target_for
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.convert.lower.tflite.run import outputs as run_tflite
from tests.convert.lower.tflite.together import joined, joined_feeds, prefix


@dataclass(frozen=True)
class Place:
    """A format and what runs it.

    Attributes:
        name: of the place.
        format: that is written.
        backend: that runs it.
        profile: the shipped one.
    """

    name: str
    format: str
    backend: str
    profile: str


PLACES = {
    p.name: p
    for p in (
        Place("onnxruntime", "onnx", "onnxruntime", "onnxruntime"),
        Place("openvino", "openvino_ir", "openvino", "openvino"),
        Place("litert", "tflite", "litert", "rpi5"),
        Place("litert-without-xnnpack", "tflite", "litert", "rpi5"),
        Place("coreml", "mlprogram", "coreml-reference", "ios"),
        Place("tvm", "tvm", "tvm", "tvm-x86-64-v3"),
        Place("coreai", "aimodel", "coreai", "macos27"),
    )
}


ORACLE = "float64"
"""The gate's own evaluation, which judges all of them."""


@cache
def lacking(place: str) -> str:
    """Why a place cannot run here; empty where it can."""
    if place == ORACLE:
        return ""
    probe = registry.get(PLACES[place].backend).probe()
    return "" if probe.available else str(probe.reason)


def run(place: str, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Answers:
    """Lower and run; what the format refuses is left out."""
    if place == ORACLE:
        return Answers(Evaluator(ir.from_proto(model), wide=True).run(feeds), {}, {})
    at = PLACES[place]
    made, source, refused, _ = _lowered(at.format, at.profile, model.SerializeToString())
    found = _run(at, made, source, feeds)
    return Answers(found, refused, made.constraints)


# Two places run what one lowering wrote.
@lru_cache(maxsize=1)
def _lowered(
    form: str, profile_name: str, data: bytes
) -> tuple[Lowered, ir.Model, dict[str, str], tempfile.TemporaryDirectory[str]]:
    """Lower what a format takes; return it, its source, what is refused, and its files' folder."""
    profile, target = profiles.load(profile_name), target_for(form)
    proto, refused = onnx.load_from_string(data), dict[str, str]()
    while True:
        normal = _normal(proto.SerializeToString())
        prepared = target.prepare(normal, profile, LowerOptions())
        if not prepared.problems:
            break
        before = len(proto.graph.output)
        refused |= {p.node: p.detail for p in prepared.problems}
        proto = _without(proto, refused)
        if len(proto.graph.output) in (0, before):
            raise AssertionError(f"{profile_name}: {prepared.problems}")
    folder = tempfile.TemporaryDirectory()
    return prepared.write(Path(folder.name)), ir.from_proto(proto), refused, folder


# Lowerings leave it as it is.
@lru_cache(maxsize=4)
def _normal(data: bytes) -> ir.Model:
    return normalise(ir.from_proto(onnx.load_from_string(data))).model


def run_each(
    place: str, cases: Mapping[str, tuple[onnx.ModelProto, Mapping[str, Array]]]
) -> dict[str, Answers]:
    """Lower models of one opset as one, run it, and return what each of them gives."""
    models = [model for model, _ in cases.values()]
    whole = run(place, joined(models), joined_feeds([feeds for _, feeds in cases.values()]))

    def own(values: Mapping[str, Any], number: int) -> dict[str, Any]:
        start = prefix(number)
        return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}

    return {
        name: Answers(own(whole.outputs, n), own(whole.refused, n), whole.constraints)
        for n, name in enumerate(cases)
    }


@dataclass(frozen=True)
class Answers:
    """What a place computed.

    Attributes:
        outputs: by name.
        refused: why, by the node's name.
        constraints: of the artifact.
    """

    outputs: Mapping[str, Array]
    refused: Mapping[str, str]
    constraints: Mapping[str, str]


def _without(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    outputs = [o for o in model.graph.output if o.name not in names]
    nodes = [n for n in model.graph.node if n.name not in names]
    del made.graph.output[:], made.graph.node[:]
    made.graph.output.extend(outputs)
    made.graph.node.extend(nodes)
    return made


def _run(
    at: Place, made: Lowered, source: ir.Model, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    if at.format == "tflite":
        # In a child process, which a kernel may end.
        return run_tflite(made.files[0], feeds, xnnpack=at.name == "litert")
    artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
    extra: dict[str, Any] = {"trial": "off"} if at.format == "tvm" else {}
    executable = registry.get(at.backend).load(artifact, LoadOptions(extra=extra))
    try:
        return {k: np.array(v) for k, v in executable.run(dict(feeds)).items()}
    finally:
        executable.close()
