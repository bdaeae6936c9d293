"""Run models on a GPU that the CPU stands in for, in a process of its own.

Usage: gpu_worker.py FILE; the file has models with what they take, and gets what they gave.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir

from edgeinfer.backends import engines
from tests import cuda_emulator

UNRECORDED = ("views",)
"""Run by TVM's virtual machine, as if they had too many kernels to be one function."""


def main(path: Path) -> None:
    """Run each model on its feeds twice, since the second run replays what the first recorded."""
    cuda_emulator.start()
    # As in the process of a conversion, where CUDA's part is loaded when a machine asks for it.
    engines.leave_out_gpus_of_tvm()
    from edgeinfer.convert.lower.tvm import build
    from tests.convert.lower.tvm.run import load

    found, most = {}, build.RECORDED_UP_TO
    for name, (text, feeds) in pickle.loads(path.read_bytes()).items():
        build.RECORDED_UP_TO = 0 if name in UNRECORDED else most
        with tempfile.TemporaryDirectory() as folder:
            executable = load(ir.from_onnx_text(text), Path(folder), machine="sm_90")
            executable.run(feeds)
            found[name] = {k: v.copy() for k, v in executable.run(feeds).items()}
            executable.close()
    path.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
