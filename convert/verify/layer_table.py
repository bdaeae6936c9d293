"""The layers of an artifact: what each node of the graph loses in its engine, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edgeinfer.backends.base import Artifact, Backend, DeviceKind, LoadOptions
from edgeinfer.backends.operators import Operator, OperatorProfile, Profiling
from edgeinfer.errors import BackendError
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds

_RUNS = 20

ELSEWHERE = "this machine is none of the target's kind, so its times would say nothing"

EQUAL = "equal"
"""What stands for a ratio without end: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class NodeError:
    """What an engine makes of one node.

    Attributes:
        node: Name of the node.
        op: its operator.
        outputs: Names of what it gives.
        sqnr_db: signal to error of its results, in dB; infinite where they are equal, None where
            nobody can tell.
        max_rel: largest error as a share of the largest value; None likewise.
    """

    node: str
    op: str
    outputs: tuple[str, ...]
    sqnr_db: float | None
    max_rel: float | None


@dataclass(frozen=True, slots=True)
class NodeErrors:
    """The errors of all nodes in one engine.

    Attributes:
        engine: Name of the backend; empty where none is here.
        vector: number of the test vector.
        nodes: in the order of the graph.
        note: why some errors are not known, or are of another unit; empty where there is nothing.
        device: kind of unit that ran it.
    """

    engine: str
    vector: int
    nodes: tuple[NodeError, ...]
    note: str = ""
    device: str = "cpu"


def timed(
    backend: Backend, artifact: Artifact, feeds: Feeds, device: DeviceKind
) -> tuple[OperatorProfile | None, str]:
    """Let an engine's profiler run an artifact; also say why there are no times, where not."""
    if not isinstance(backend, Profiling):
        return None, f"{backend.name} cannot tell what its steps take"
    try:
        found = backend.profile(artifact, LoadOptions(device), feeds, runs=_RUNS)
    except BackendError as e:
        return None, str(e)
    return found, ""


def table(errors: NodeErrors, profile: OperatorProfile | None, why_not: str) -> dict[str, Any]:
    """Put errors and times together; JSON-ready.

    The time of a step that computes several nodes stands at the first of them, which the others
    name. Steps that are none of the graph's nodes, such as copies, are counted by their role.

    Args:
        errors: by node.
        profile: the engine's steps; None where nobody timed them.
        why_not: why nobody did.
    """
    found = _found(errors.nodes, profile.operators if profile is not None else ())
    whole = profile.timed_us if profile is not None else 0.0
    return {
        "engine": errors.engine,
        "device": errors.device,
        "vector": errors.vector,
        "clock": profile.tool if profile is not None else "",
        "notes": [n for n in (errors.note, why_not, profile.note if profile else "") if n],
        "rows": [
            _row(e, found.times.get(i), found.steps.get(i, ""), whole)
            for i, e in enumerate(errors.nodes)
        ],
        "own": _by_role(found.own) if whole else {},
    }


@dataclass(frozen=True, slots=True)
class _Found:
    """Steps of an engine by the positions of nodes; those of no node are the engine's own."""

    times: dict[int, float]
    steps: dict[int, str]
    own: list[Operator]


def _found(nodes: Sequence[NodeError], operators: Sequence[Operator]) -> _Found:
    rows: dict[str, int] = {}
    for place, node in enumerate(nodes):
        rows |= dict.fromkeys((*node.outputs, node.node), place)
    found = _Found({}, {}, [])
    for op in operators:
        here = sorted({rows[n] for n in (*op.nodes, op.name) if n in rows})
        if not here:
            found.own.append(op)
            continue
        first, *rest = here
        if op.us is not None:
            found.times[first] = found.times.get(first, 0.0) + op.us
        found.steps.update(dict.fromkeys(rest, nodes[first].node))
    return found


def _row(error: NodeError, us: float | None, step: str, whole: float) -> dict[str, Any]:
    db = error.sqnr_db
    return {
        "node": error.node,
        "op": error.op,
        "sqnr_db": db if db is None or math.isfinite(db) else EQUAL,
        "max_rel": error.max_rel,
        "us": us,
        "share": us / whole if whole and us is not None else None,
        "step": step,
    }


def _by_role(operators: Sequence[Operator]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for op in operators:
        one = found.setdefault(op.role, {"count": 0, "us": 0.0})
        one["count"] += 1
        one["us"] += op.us or 0.0
    return found
