"""Run products on a GPU, or on one that the CPU stands in for, in a process of its own.

Usage: gemv_cuda_worker.py FILE; the file has sizes and arrays, and gets what the kernels gave.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.machine.cuda import cuda_devices
from tests import cuda_emulator


def main(path: Path) -> None:
    """Run each kernel once; an emulated GPU tells as well whether it was launched early."""
    real = bool(cuda_devices())
    if not real:
        cuda_emulator.start()
    import tvm

    from edgeinfer.convert.lower.tvm import cuda_code
    from edgeinfer.convert.lower.tvm.machines import machine
    from edgeinfer.kernels.defs import ahead
    from edgeinfer.kernels.defs.gemv_cuda import Share, gemv, pack
    from edgeinfer.kernels.tuning import workload

    if real:
        cuda_code.get_ready("sm_90")
        early = ctypes.c_int()
    else:
        early = ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), "emulated_early")
    target, device = machine("sm_90").target(), tvm.cuda(0)
    found = []
    for q, scales, x, bits, block, cut in pickle.loads(path.read_bytes()):
        kernel = gemv(len(q), q.shape[1], bits, block, len(x), Share(*cut))
        module = tvm.IRModule({workload.NAME: workload.plain(kernel)})
        with target:
            call = tvm.compile(module, target=target, tir_pipeline=ahead.PIPELINE).jit()
        result: Any = np.full((len(x), len(q)), np.nan, np.float32)
        arrays = [tvm.runtime.tensor(a, device) for a in (pack(q, bits), scales, x, result)]
        before = early.value
        call[workload.NAME](*arrays)
        told = None if real else early.value - before
        found.append((arrays[-1].numpy(), told))
    path.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
