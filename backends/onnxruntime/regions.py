"""ONNX Runtime: graphs in which some parts are operators of a library that lies next to.

The library is machine code that edgeinfer's converter made for one instruction set, for one graph.
The engine maps it; what the code needs of the CPU is compared before that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.base import DeviceKind, LoadOptions
from edgeinfer.backends.checks import one_line
from edgeinfer.backends.onnxruntime.backend import WITH_REGIONS
from edgeinfer.bounded import parse_json
from edgeinfer.errors import LoadError

if TYPE_CHECKING:
    from edgeinfer.backends.operators import OperatorProfile

FORMAT = WITH_REGIONS
"""An ONNX graph with such a library."""

DOMAIN = "edgeinfer.regions"
"""Of the operators."""

LIBRARY, TOLD = "regions.so", "regions.json"
"""Next to the graph: the library, and what was measured of each region."""


def with_nodes(profile: OperatorProfile, graph: Path) -> OperatorProfile:
    """Name the model's operators that each region computes, where a file next to the graph says."""
    try:
        trials = parse_json(graph.with_name(TOLD).read_text("utf-8"))["trials"]
        nodes = {str(t["name"]): tuple(map(str, t["nodes"])) for t in trials if t["kept"]}
    except (OSError, ValueError, KeyError, TypeError):
        return profile
    named = (
        replace(op, nodes=nodes[op.kind]) if op.kind in nodes else op for op in profile.operators
    )
    return replace(profile, operators=tuple(named))


def without_trial(options: LoadOptions) -> tuple[bool, LoadOptions]:
    """Take out what is asked of the trial; the rest is for the engine.

    Raises:
        LoadError: it is neither ``on`` nor ``off``.
    """
    extra = dict(options.extra)
    value = extra.pop("trial", "on")
    if value not in ("on", "off"):
        raise LoadError(f"onnxruntime: option trial: expected on or off, received {value!r}")
    return value == "on", replace(options, extra=extra)


def register(settings: Any, graph: Path, device: DeviceKind, trial: bool, version: str) -> None:
    """Give a graph's library to the engine.

    Args:
        settings: the engine's options of a session.
        graph: the file that is going to be opened.
        device: the kind of unit that it is to run on.
        trial: run a library that was never run here in a process of its own first.
        version: Version of the engine.

    Raises:
        LoadError: the library is missing, damaged, for another CPU, or refused.
    """
    # Few graphs have such a library.
    from edgeinfer.backends.onnxruntime.regions_trial import check_runs
    from edgeinfer.backends.tvm.library import check_machine, read

    path = graph.with_name(LIBRARY)
    about = read(path)
    if about.kind != "regions":
        raise LoadError(f"onnxruntime refuses {path}: it is a library of kind {about.kind!r}")
    check_machine(path, about)
    if about.device != device:
        raise LoadError(f"onnxruntime refuses {path}: it is for a {about.device}, not a {device}")
    if trial:
        check_runs(path, graph, version)
    try:
        settings.register_custom_ops_library(str(path.absolute()))
    except Exception as error:
        raise LoadError(f"onnxruntime refuses {path}: {one_line(error)}") from error
