"""What the best engine of a target takes for the operators of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, DeviceKind, LoadOptions
from edgeinfer.backends.checks import array_type
from edgeinfer.backends.operators import OperatorProfile, Profiling
from edgeinfer.backends.process.isolated import IsolatedBackend
from edgeinfer.errors import EdgeInferError
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, TensorSpec

ENGINES = ("onnxruntime", "openvino")
"""That open an ONNX file as it is and have clocks for its operators."""

_RUNS = 12
_FUSED = "fused "


class Workload(Protocol):
    """Part of a model that is one kernel."""

    key: str
    nodes: list[str]
    calls: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one engine.

    Attributes:
        engine: its name.
        whole_us: Microseconds of a run of the model.
        steps: names that a step of it may have, and its microseconds.
    """

    engine: str
    whole_us: float
    steps: tuple[tuple[frozenset[str], float], ...]

    def of(self, workloads: Sequence[Workload]) -> dict[str, float]:
        """Return microseconds of a run of the model, by the workloads' keys.

        A step that computes several of them is shared out evenly; those that it does not name are
        left out.
        """
        owners: dict[str, str] = {n: w.key for w in workloads for n in w.nodes if n}
        found: dict[str, float] = {}
        for names, us in self.steps:
            keys = {key for n in names for key in _owned(n, owners)}
            for key in keys:
                found[key] = found.get(key, 0.0) + us / len(keys)
        return found

    @property
    def steps_us(self) -> float:
        """Microseconds of all steps together."""
        return sum(us for _, us in self.steps)

    def others(self, workloads: Sequence[Workload]) -> list[tuple[str, float]]:
        """Return the steps that compute none of the workloads, the longest first."""
        owners: dict[str, str] = {n: w.key for w in workloads for n in w.nodes if n}
        found = [
            (min(names, default=""), us)
            for names, us in self.steps
            if not any(_owned(n, owners) for n in names)
        ]
        return sorted(found, key=lambda step: -step[1])


def _owned(name: str, owners: Mapping[str, str]) -> Iterable[str]:
    """Engines fuse and rename: what they made of a node has the node's name in its own."""
    if name in owners:
        return [owners[name]]
    return [k for node, k in owners.items() if name.startswith((f"{node}_", f"{node}/"))]


@dataclass(frozen=True, slots=True)
class ProfiledGraph:
    """A normalised model in a file.

    Attributes:
        path: Path of the file.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        makers: name of the node that makes a value, by the value's.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    makers: dict[str, str]


def written(model: Any, folder: Path) -> ProfiledGraph:
    """Write a normalised model into a folder."""
    import onnx_ir as ir

    from edgeinfer.convert.passes.interface import input_specs, output_specs

    path = folder / "profiled.onnx"
    # Weights lie in the file that the model came from, wherever that is.
    ir.save(model, path, external_data="profiled.data", size_threshold_bytes=1024)
    makers = {o.name: n.name for n in model.graph for o in n.outputs if o.name and n.name}
    return ProfiledGraph(path, tuple(input_specs(model)), tuple(output_specs(model)), makers)


def best(graph: ProfiledGraph, device: DeviceKind, threads: int) -> Costs | None:
    """Run a normalised model in each engine; return what the fastest one's operators take.

    None where no engine is here for the device, or none runs the model.
    """
    artifact = Artifact("onnx", graph.path, graph.inputs, graph.outputs)
    feeds = {s.name: _ones(s) for s in artifact.inputs}
    found = [
        Costs(engine, profile.plain_us, _steps(profile, graph.makers))
        for engine in ENGINES
        if (profile := _profile(engine, artifact, LoadOptions(device, threads=threads), feeds))
    ]
    return min(found, key=lambda c: c.whole_us, default=None)


def _ones(spec: TensorSpec) -> Any:
    sizes = [d if isinstance(d, int) else 1 for d in spec.shape or ()]
    return np.ones(sizes, array_type(spec.dtype))


def _profile(
    engine: str, artifact: Artifact, options: LoadOptions, feeds: Feeds
) -> OperatorProfile | None:
    """Time an engine's operators in a process of its own; None if it cannot run the model."""
    with IsolatedBackend(engine, reuse=False) as backend:
        if not isinstance(registry.get(engine), Profiling):
            return None
        try:
            return backend.profile(artifact, options, feeds, runs=_RUNS)
        except EdgeInferError:
            # Not installed, or no engine for this model: not the best one here, then.
            return None


def _steps(
    profile: OperatorProfile, makers: Mapping[str, str]
) -> tuple[tuple[frozenset[str], float], ...]:
    return tuple(
        (frozenset(_plain(n, makers) for n in (op.nodes or (op.name,))), op.us)
        for op in profile.operators
        if op.us
    )


def _plain(name: str, makers: Mapping[str, str]) -> str:
    name = name.removeprefix(_FUSED)
    return makers.get(name, name)
