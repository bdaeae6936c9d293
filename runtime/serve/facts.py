"""What the Open Inference Protocol says of servers and models, over HTTP and gRPC alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgeinfer._version import __version__
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import datatype
from edgeinfer.types import TensorSpec

EXTENSIONS = (
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "sequence",
    "statistics",
)


NO_CUDA = "CUDA shared memory is not supported: tensors come in the body or in system shared memory"


def server(hub: Hub) -> dict[str, Any]:
    """Return what the server is."""
    more = () if hub.regions is None else ("system_shared_memory",)
    return {"name": "edgeinfer", "version": __version__, "extensions": [*EXTENSIONS, *more]}


def known(hub: Hub, name: str, version: str = "") -> Served:
    """Return a model, ready or not.

    Raises:
        RequestError: 404, there is none.
    """
    model = hub.visible.get(name)
    if model is None:
        raise RequestError(404, f"no model {name!r}; known: {', '.join(hub.visible)}")
    check_version(name, version)
    return model


def check_version(name: str, version: str) -> None:
    """Raise where another version is requested than the one there is.

    Raises:
        RequestError: 404.
    """
    if version not in ("", "1"):
        raise RequestError(404, f"model {name!r}: there is version 1 only")


def metadata(model: Served) -> dict[str, Any]:
    """Return what a model takes and gives; states that its sequences keep are left out."""
    inputs, outputs = _visible(model)
    return {
        "name": model.name,
        "versions": ["1"],
        "platform": _platform(model),
        "inputs": [_tensor(spec) for spec in inputs],
        "outputs": [_tensor(spec) for spec in outputs],
    }


def config(model: Served) -> dict[str, Any]:
    """Return a model's configuration in Triton's words."""
    inputs, outputs = _visible(model)
    found: dict[str, Any] = {
        "name": model.name,
        "platform": _platform(model),
        "backend": "edgeinfer",
        "max_batch_size": 0,
        "input": [_typed(spec) for spec in inputs],
        "output": [_typed(spec) for spec in outputs],
    }
    if model.sequences is not None:
        pairs = model.sequences.pairs
        found["sequence_batching"] = {
            "state": [
                {"input_name": s.name, "output_name": pairs[s.name], **_kind(s)}
                for s in model.sequences.specs
            ]
        }
    elif model.batch > 1:
        found["dynamic_batching"] = {"preferred_batch_size": [model.batch]}
    return found


def statistics(models: Sequence[Served]) -> dict[str, Any]:
    """Return what models did."""
    return {"model_stats": [_statistics(model) for model in models]}


def index(hub: Hub, *, ready: bool = False) -> list[dict[str, Any]]:
    """Return all models with their states.

    Args:
        hub: that has them.
        ready: only those that take requests.
    """
    return [
        {
            "name": m.name,
            "version": "1",
            "state": "READY" if m.is_ready else "UNAVAILABLE",
            "reason": "" if m.is_ready else m.state,
        }
        for m in hub.visible.values()
        if m.is_ready or not ready
    ]


def _visible(model: Served) -> tuple[list[TensorSpec], list[TensorSpec]]:
    pairs = {} if model.sequences is None else model.sequences.pairs
    kept = set(pairs.values())
    inputs = [spec for spec in model.inputs if spec.name not in pairs]
    return inputs, [spec for spec in model.outputs if spec.name not in kept]


def _platform(model: Served) -> str:
    return f"edgeinfer_{model.kind}"


def _shape(spec: TensorSpec) -> list[int]:
    return [d if isinstance(d, int) else -1 for d in spec.shape or ()]


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": datatype(spec), "shape": _shape(spec)}


def _kind(spec: TensorSpec) -> dict[str, Any]:
    name = datatype(spec)
    return {"data_type": f"TYPE_{'STRING' if name == 'BYTES' else name}", "dims": _shape(spec)}


def _typed(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, **_kind(spec)}


def _statistics(model: Served) -> dict[str, Any]:
    found: dict[str, Any] = {"name": model.name, "version": "1", "waiting": model.waiting}
    if model.sequences is not None:
        found["sequences"] = len(model.sequences)
    if (text := model.text) is not None:
        found["engine"] = asdict(text.stats())
    if (tensors := model.tensors) is not None:
        stats = tensors.stats()
        calls = stats.calls
        mean_ns = int((calls.mean_ms or 0.0) * 1e6)
        found |= {
            "inference_count": calls.runs,
            "execution_count": stats.batches,
            "inference_stats": {
                "success": {"count": calls.runs, "ns": calls.runs * mean_ns},
                "fail": {"count": sum(calls.failures.values()), "ns": 0},
                "queue": {"count": calls.runs, "ns": int(stats.queued_s * 1e9)},
                "compute_infer": {"count": calls.runs, "ns": int(stats.computed_s * 1e9)},
            },
            "memory_mb": stats.memory_mb,
        }
    return found
