"""Memory that is kept although nobody needs it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import onnx_ir as ir


def release_memory(*models: ir.Model) -> None:
    """Give freed memory back to the system, and unmap weights that were read from files.

    A closed engine leaves hundreds of megabytes in glibc's arenas, and the next engine adds its own
    to them; other allocators return large blocks by themselves. A mapped weight is mapped again
    when it is next read.
    """
    for model in models:
        for graph in model.graphs():
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    # Where an array still looks into the file, it stays mapped.
                    with contextlib.suppress(BufferError):
                        value.const_value.release()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
