"""ONNX Runtime: where its operators were assigned, and its profile read back."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.operators import (
    Elsewhere,
    Operator,
    OperatorProfile,
    Placement,
    Role,
    role_of,
    timed,
    undisturbed,
)
from edgeinfer.errors import RunError

RECORD_OPTION = "session.record_ep_graph_assignment_info"
CPU_REFUSED_OPTION = "session.disable_cpu_ep_fallback"

_MADE = re.compile(r"(_nchwc|_token_[0-9]+)$")
"""Suffix of the names of nodes that the engine replaced by an operator of its own."""

_SUFFIX = "_kernel_time"
_HOLDERS = frozenset({"If", "Loop", "Scan"})
_ROLES: dict[str, Role] = {
    "MemcpyToHost": "copy",
    "MemcpyFromHost": "copy",
    "ReorderInput": "reorder",
    "ReorderOutput": "reorder",
    "Transpose": "transpose",
    "Cast": "convert",
    "QuantizeLinear": "convert",
    "DequantizeLinear": "convert",
}


def is_for_fallback(error: Exception) -> bool:
    """Whether the engine refuses a model because some of it would run on the CPU."""
    return "fallback to CPU EP has been explicitly disabled" in str(error)


def placement(session: Any, wanted: Sequence[str]) -> Placement | None:
    """Say which operators the engine gave to other providers than the wanted ones.

    Args:
        session: opened with ``RECORD_OPTION``.
        wanted: names of providers of one device, the one that was requested first.
    """
    asked = getattr(session, "get_provider_graph_assignment_info", None)
    if asked is None:
        return None
    try:
        groups = asked()
    # A session without the record raises; what then is known is nothing.
    except Exception:
        return None
    ops = 0
    elsewhere: list[Elsewhere] = []
    for group in groups:
        nodes = group.get_nodes()
        ops += len(nodes)
        if group.ep_name not in wanted:
            why = f"the {_unit(wanted[0])} provider has not taken it"
            elsewhere += [Elsewhere(n.name, n.op_type, _unit(group.ep_name), why) for n in nodes]
    return Placement(_unit(wanted[0]), ops, tuple(elsewhere), "ONNX Runtime's assignment")


def _unit(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def profile(
    session: Any, feeds: Mapping[str, Any], *, runs: int, plain_us: float
) -> OperatorProfile:
    """Run a session that was opened with its profile on, and read what it wrote.

    Raises:
        RunError: a run fails, or the profile cannot be read.
    """
    names = [output.name for output in session.get_outputs()]
    warm = max(1, runs // 4)
    try:
        spent = timed(lambda: session.run(names, dict(feeds)), warm + runs)
    except Exception as error:
        raise RunError(f"onnxruntime failed: {one_line(error)}") from error
    path = Path(session.end_profiling())
    try:
        events = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"onnxruntime's profile cannot be read: {one_line(error)}") from error
    spent = spent[warm:]
    kept = undisturbed(spent)
    operators, note = read(events, warm, kept)
    whole_us = float(np.mean([spent[i] for i in kept]))
    return OperatorProfile("ONNX Runtime's profiler", operators, runs, whole_us, plain_us, note)


def read(
    events: Sequence[Mapping[str, Any]], warm: int, kept: Sequence[int] | None = None
) -> tuple[tuple[Operator, ...], str]:
    """Read a profile.

    Args:
        events: Events of the profile.
        warm: first runs, which are left out.
        kept: runs behind them that count; None takes all.

    Returns:
        The operators, in the order of the last run, and what the figures do not say.
    """
    starts = sorted(int(e["ts"]) for e in events if e.get("name") == "model_run")[warm:] or [0]
    since = starts[0]
    nodes = [
        e
        for e in events
        if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX) and int(e["ts"]) >= since
    ]
    own = _own_times(nodes)
    kernels = _kernels(events, starts)
    counted = range(len(starts)) if kept is None else kept
    totals: dict[tuple[str, str], list[float]] = {}
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event, us in zip(nodes, own, strict=True):
        # Names need not be unique; the engine's own number is, within a graph.
        key = (event["name"], str(event["args"].get("node_index", "")))
        run = bisect_right(starts, int(event["ts"])) - 1
        totals.setdefault(key, [0.0] * len(starts))[run] += us
        last[key] = event
    found = []
    for key in sorted(last, key=lambda k: int(last[k]["ts"])):
        each = kernels.get(key[0], totals[key])
        us = float(np.mean([each[run] for run in counted]))
        found.append(_operator(key[0].removesuffix(_SUFFIX), last[key]["args"], us))
    note = ""
    if any(op.unit not in ("CPU",) for op in found) and not kernels:
        note = "on a GPU these are times to start the work; this build does not time kernels"
    return tuple(found), note


def _operator(name: str, arguments: Mapping[str, Any], us: float) -> Operator:
    kind = str(arguments.get("op_name", ""))
    kinds = [t for item in arguments.get("output_type_shape", []) for t in item]
    kinds += [t for item in arguments.get("input_type_shape", []) for t in item]
    unit = _unit(str(arguments.get("provider", "")))
    precision = _short(kinds[0]) if kinds else ""
    role = role_of(kind, _ROLES)
    # Copies and reorders are the engine's own; a transpose or a cast may be the model's.
    nodes = () if role in ("copy", "reorder") else (_MADE.sub("", name),)
    return Operator(name, kind, unit, us, precision, role, nodes)


def _short(name: str) -> str:
    return {"float": "float32", "double": "float64"}.get(name, name)


def _own_times(nodes: Sequence[Mapping[str, Any]]) -> list[float]:
    """Take out of each operator what ran inside of it: If, Loop and Scan hold others."""
    order = sorted(range(len(nodes)), key=lambda i: (int(nodes[i]["ts"]), -int(nodes[i]["dur"])))
    own = [float(node["dur"]) for node in nodes]
    open_: dict[object, list[int]] = {}
    for index in order:
        stack = open_.setdefault(nodes[index].get("tid"), [])
        while stack and _end(nodes[stack[-1]]) <= int(nodes[index]["ts"]):
            stack.pop()
        if stack and nodes[stack[-1]]["args"].get("op_name") in _HOLDERS:
            own[stack[-1]] -= float(nodes[index]["dur"])
        stack.append(index)
    return [max(0.0, us) for us in own]


def _end(node: Mapping[str, Any]) -> int:
    return int(node["ts"]) + int(node["dur"])


def _kernels(events: Iterable[Mapping[str, Any]], starts: Sequence[int]) -> dict[str, list[float]]:
    """Sum what ran on a GPU, by the operator that started it and the run."""
    found: dict[str, list[float]] = {}
    for event in events:
        parent = event.get("args", {}).get("parent_name")
        if event.get("cat") == "Kernel" and parent and int(event["ts"]) >= starts[0]:
            run = bisect_right(starts, int(event["ts"])) - 1
            found.setdefault(parent, [0.0] * len(starts))[run] += float(event["dur"])
    return found


def plain(session: Any, feeds: Mapping[str, Any], runs: int) -> float:
    """Median microseconds of a run without a profile."""
    names = [output.name for output in session.get_outputs()]
    try:
        return float(np.median(timed(lambda: session.run(names, dict(feeds)), runs + 2)[2:]))
    except Exception as error:
        raise RunError(f"onnxruntime failed: {one_line(error)}") from error
