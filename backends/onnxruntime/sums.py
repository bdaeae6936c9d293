"""Whether this processor adds up products of 8-bit integers exactly in ONNX Runtime.

On x86-64 without VNNI, AVX-VNNI or AMX its kernels add pairs in 16 bits, which saturate. The
session entry ``session.x64quantprecision`` avoids that by other kernels, which are 2 to 3 times
slower where they are not needed. Features of processors are many and their names differ by system,
and an emulator shows the host's: one product tells. It takes a session, a tenth of loading a small
model, so a processor that NumPy found to have AVX-512 with VNNI, asking it by its own instruction,
is taken at its word.
"""

from __future__ import annotations

import functools
import platform
import sys
from typing import Any

import numpy as np

ENTRY = "session.x64quantprecision"

_TERMS, _COLUMNS = 64, 16
_LARGEST = 255 * 127 * _TERMS
# y = MatMulInteger(x, w): x is uint8[1, 64], every w of int8[64, 16] is 127; opset 13. Written out
# because a device has no onnx.
_MODEL = (
    b'\x08\x08\x12\x00:\xd6\x08\n\x18\n\x01x\n\x01w\x12\x01y"\rMatMulInteger\x12\x01g*\x8c\x08'
    b"\x08@\x08\x10\x10\x03B\x01wJ\x80\x08" + b"\x7f" * (_TERMS * _COLUMNS) + b"Z\x13\n\x01x\x12"
    b"\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08@b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12"
    b"\x08\n\x02\x08\x01\n\x02\x08\x10B\x04\n\x00\x10\r"
)


def precise_entries(ort: Any) -> dict[str, str]:
    """Return the session entries that make sums of integer products exact here; few need any.

    Args:
        ort: the module ``onnxruntime``.
    """
    return {} if _is_exact(ort) else {ENTRY: "1"}


@functools.cache
def _is_exact(ort: Any) -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64") or _has_vnni():
        return True
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(_MODEL, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, _TERMS), 255, np.uint8)})
    return bool((found == _LARGEST).all())


def _has_vnni() -> bool:
    """Whether NumPy, which was imported before, found AVX-512 with VNNI; where it hides it: no."""
    for package in ("numpy._core", "numpy.core"):
        found = sys.modules.get(f"{package}._multiarray_umath")
        if found is not None:
            return bool(getattr(found, "__cpu_features__", {}).get("AVX512_CLX"))
    return False
