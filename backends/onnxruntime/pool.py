"""One store of memory for the runs of many sessions, instead of one for each.

A session of its own keeps what its largest run needed. Of a hundred sessions only as many run at
once as there are threads; from a common arena they take no more than those need.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.machine import pages

_UNLIMITED, _DOUBLING, _DEFAULT = 0, 0, -1
"""For ``OrtArenaCfg``. Regions that double are joined again; regions as requested are not, and 120
runs of sizes that change made such an arena twice as large."""

_ANY_MODEL = (
    b'\x08\x07:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01'
    b"\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x02\x10\r"
)
"""``y = Identity(x)`` of one number in ONNX: only a run can make the engine give memory back."""


def can_pool() -> bool:
    """Whether the store is this process's own.

    One that the parent of a forked process made may be locked by a thread that is not here.
    """
    return _pool() == os.getpid()


def use_pool(settings: Any) -> None:
    """Have a session that is about to be opened take its memory from the common store.

    Args:
        settings: the engine's ``SessionOptions``.
    """
    _pool()
    _enter(settings)


def _enter(settings: Any) -> None:
    settings.add_session_config_entry("session.use_env_allocators", "1")
    # Weights would stay in the store when their session is closed.
    settings.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


@functools.cache
def _pool() -> int:
    """Make the store of this process, and say which that is; it lives as long as the engine."""
    onnxruntime = import_onnxruntime()
    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    growth = {
        "max_mem": _UNLIMITED,
        "arena_extend_strategy": _DOUBLING,
        "initial_chunk_size_bytes": _DEFAULT,
        "max_dead_bytes_per_chunk": _DEFAULT,
    }
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(growth))
    # The first region is never given back, so it had better be a small one.
    shrink = functools.partial(_shrink, onnxruntime, os.getpid())
    shrink()
    pages.when_giving_back(shrink)
    return os.getpid()


def _shrink(onnxruntime: Any, owner: int) -> None:
    """Give the system back what no run uses now."""
    import numpy as np

    if owner != os.getpid():
        return
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    _enter(settings)
    session = onnxruntime.InferenceSession(_ANY_MODEL, settings, providers=["CPUExecutionProvider"])
    run = onnxruntime.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, {"x": np.zeros(1, np.float32)}, run)
