"""Memory that is kept although nobody needs it."""

from __future__ import annotations

import contextlib

import onnx_ir as ir

from edgeinfer.machine.pages import SMALL_MB, give_back


def release_memory(*models: ir.Model) -> None:
    """Unmap weights that were read from files, and give back what else is not needed.

    A mapped weight is mapped again when it is next read.
    """
    for model in models:
        for graph in model.graphs():
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    # Where an array still looks into the file, it stays mapped.
                    with contextlib.suppress(BufferError):
                        value.const_value.release()
    give_back(SMALL_MB)
