"""OpenVINO: which operators a device takes, and the engine's counters read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.backends.operators import (
    Elsewhere,
    Operator,
    OperatorProfile,
    Placement,
    Role,
    role_of,
    timed,
)

COUNTERS = {"PERF_COUNT": "YES"}

_ROLES: dict[str, Role] = {
    "Reorder": "reorder",
    "Transpose": "transpose",
    "Convert": "convert",
    "MemoryInput": "copy",
    "MemoryOutput": "copy",
}
_WITHOUT_BIAS = "/WithoutBiases"
_NO_WORK = frozenset({"Parameter", "Result", "Constant"})
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_TYPES |= {
    f"{s}{bits}": f"{w}{bits}" for s, w in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
}


def placement(core: Any, model: Any, device: str) -> Placement:
    """Ask which operators of a model a device takes.

    Args:
        core: Core of the engine.
        model: read, not compiled.
        device: the engine's name of it; ``HETERO:GPU,CPU`` asks for the first of them.
    """
    wanted = device.removeprefix("HETERO:").split(",")[0]
    taken = dict(core.query_model(model, device))
    ops = [op for op in model.get_ordered_ops() if op.get_type_name() not in _NO_WORK]
    elsewhere = []
    for op in ops:
        name = str(op.get_friendly_name())
        where = str(taken.get(name, ""))
        if where.split(".")[0] != wanted.split(".")[0]:
            unit = where or "no unit"
            reason = f"the plugin of {wanted} does not take it"
            elsewhere.append(Elsewhere(name, str(op.get_type_name()), unit, reason))
    return Placement(wanted, len(ops), tuple(elsewhere), "OpenVINO's query_model")


def profile(
    plain: Callable[[], object],
    counted: Callable[[], object],
    request: Any,
    model: Any,
    *,
    runs: int,
    past: int,
) -> OperatorProfile:
    """Run a request whose model was compiled with ``COUNTERS``, and read its counters.

    Args:
        plain: runs the same inputs without counters.
        counted: runs the request.
        request: Request of the compiled model.
        model: the compiled model.
        runs: to time.
        past: runs that the request has behind it.
    """
    warm = max(1, runs // 4)
    timed(plain, warm)
    plain_us = float(np.median(timed(plain, runs)))
    timed(counted, warm)
    before = _totals(request, past + warm)
    spent = timed(counted, runs)
    after = _totals(request, past + warm + runs)
    facts = _facts(model)
    device = _device(model)
    operators = tuple(
        _operator(
            info, (after[info.node_name] - before.get(info.node_name, 0.0)) / runs, facts, device
        )
        for info in request.profiling_info
        if str(info.status).endswith("EXECUTED")
    )
    return OperatorProfile("OpenVINO's counters", operators, runs, float(np.mean(spent)), plain_us)


def _totals(request: Any, runs: int) -> dict[str, float]:
    """The engine tells means over all runs so far, in whole microseconds."""
    return {
        info.node_name: info.real_time.total_seconds() * 1e6 * runs
        for info in request.profiling_info
    }


def _operator(
    info: Any, us: float, facts: Mapping[str, Mapping[str, str]], device: str
) -> Operator:
    fact = facts.get(info.node_name, {})
    given = fact.get("originalLayersNames", "")
    # A convolution with a bias is two operators to the engine, and one node of the file.
    nodes = tuple(dict.fromkeys(n.removesuffix(_WITHOUT_BIAS) for n in given.split(",") if n))
    precision = fact.get("runtimePrecision", "")
    kind = str(info.node_type)
    return Operator(
        name=str(info.node_name),
        kind=kind,
        unit=device,
        us=max(0.0, us),
        precision=_TYPES.get(precision, precision),
        role=role_of(kind, _ROLES),
        nodes=nodes,
    )


def _facts(model: Any) -> dict[str, dict[str, str]]:
    """What the compiled graph says of each step, as text."""
    found = {}
    for op in model.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        keys = ("originalLayersNames", "runtimePrecision")
        found[str(op.get_friendly_name())] = {k: _text(info[k]) for k in keys if k in info}
    return found


def _text(value: Any) -> str:
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _device(model: Any) -> str:
    try:
        return ",".join(map(str, model.get_property("EXECUTION_DEVICES")))
    # Not every plugin knows the property.
    except Exception:
        return ""
