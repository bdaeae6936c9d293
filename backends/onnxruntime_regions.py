"""ONNX Runtime: graphs in which some parts are operators of a library that lies beside.

The library is machine code that edgeinfer's converter made for one instruction set, for one graph.
The engine maps it; what the code needs of the CPU is compared before that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeinfer.backends.base import DeviceKind
from edgeinfer.backends.checks import one_line
from edgeinfer.backends.tvm_library import check_machine, read
from edgeinfer.errors import LoadError

FORMAT = "onnx_tvm"
"""An ONNX graph with such a library."""

DOMAIN = "edgeinfer.regions"
"""Of the operators."""

LIBRARY = "regions.so"
"""The library's name, next to the graph."""


def register(settings: Any, graph: Path, device: DeviceKind) -> None:
    """Give a graph's library to the engine.

    Args:
        settings: the engine's options of a session.
        graph: the file that is going to be opened.
        device: the kind of unit that it is to run on.

    Raises:
        LoadError: the library is missing, damaged, for another CPU, or refused.
    """
    path = graph.with_name(LIBRARY)
    about = read(path)
    if about.kind != "regions":
        raise LoadError(f"onnxruntime refuses {path}: it is a library of kind {about.kind!r}")
    check_machine(path, about)
    if about.device != device:
        raise LoadError(f"onnxruntime refuses {path}: it is for a {about.device}, not a {device}")
    try:
        settings.register_custom_ops_library(str(path.absolute()))
    except Exception as error:
        raise LoadError(f"onnxruntime refuses {path}: {one_line(error)}") from error
