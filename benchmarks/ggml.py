"""llama.cpp's own products of 4-bit weights, called through its C interface, as a peer.

Needs ggml as shared libraries for this CPU, for instance from the sources in llama-cpp-python's
source distribution:

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build/ggml -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
    cmake --build build/ggml --target ggml ggml-cpu
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.types import Array

_F32, _Q4_0 = 0, 2
_BLOCK_BYTES = 18
"""32 weights: half a byte each and a scale in half precision."""


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """ggml's CPU backend from a folder of shared libraries."""

    def __init__(self, folder: Path) -> None:
        found = {p.name: p for p in sorted(folder.rglob("libggml*.so"))}
        missing = {"libggml-base.so", "libggml-cpu.so", "libggml.so"} - set(found)
        if missing:
            raise FileNotFoundError(f"{folder} lacks {', '.join(sorted(missing))}")
        mode = ctypes.RTLD_GLOBAL
        self._base = ctypes.CDLL(str(found["libggml-base.so"]), mode=mode)
        self._cpu = ctypes.CDLL(str(found["libggml-cpu.so"]), mode=mode)
        for library, names in (
            (self._base, ("init", "new_tensor_2d", "mul_mat", "new_graph_custom")),
            (self._base, ("backend_alloc_ctx_tensors_from_buft", "backend_cpu_buffer_type")),
            (self._base, ("backend_dev_buffer_type", "backend_reg_dev_get")),
            (self._base, ("backend_reg_get_proc_address",)),
            (self._cpu, ("backend_cpu_reg", "backend_cpu_init")),
        ):
            for name in names:
                getattr(library, f"ggml_{name}").restype = ctypes.c_void_p
        self._cpu.ggml_cpu_init()

    def _repacked(self) -> int | None:
        """The buffer type whose weights are laid out for this CPU, or None."""
        registered = self._cpu.ggml_backend_cpu_reg()
        device = self._base.ggml_backend_reg_dev_get(
            ctypes.c_void_p(registered), ctypes.c_size_t(0)
        )
        address = self._base.ggml_backend_reg_get_proc_address(
            ctypes.c_void_p(registered), b"ggml_backend_dev_get_extra_bufts"
        )
        if not address:
            return None
        ask = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        self._base.ggml_backend_buft_name.restype = ctypes.c_char_p
        i, types = 0, ask(device)
        while types and types[i]:
            if b"REPACK" in self._base.ggml_backend_buft_name(ctypes.c_void_p(types[i])):
                return int(types[i])
            i += 1
        return None

    def products(
        self, weights: list[Array], x: Array, threads: int, repacked: bool
    ) -> tuple[Callable[[], None], Callable[[], Array]]:
        """Products of Q4_0 weights with one vector, computed as one graph.

        Args:
            weights: float32 (N, K) each; rounded to Q4_0 here.
            x: float32 (K,).
            threads: that compute.
            repacked: in the layout that llama.cpp prefers on this CPU.

        Returns:
            What computes all products, and what reads the last one, float32 (N,).

        Raises:
            LookupError: this build has no such layout.
        """
        n, k = weights[0].shape
        plain = self._base.ggml_backend_cpu_buffer_type()
        kind = self._repacked() if repacked else plain
        if kind is None:
            raise LookupError("this build of ggml repacks nothing")
        held, values, graphs = (self._context(len(weights) + 8) for _ in range(3))
        matrices = [self._tensor(held, _Q4_0, k, n) for _ in weights]
        vector = self._tensor(values, _F32, k, 1)
        self._allocate(held, kind)
        for matrix, weight in zip(matrices, weights, strict=True):
            packed = self._quantized(weight)
            self._base.ggml_backend_tensor_set(
                matrix, packed, ctypes.c_size_t(0), ctypes.c_size_t(len(packed))
            )
        graph = ctypes.c_void_p(
            self._base.ggml_new_graph_custom(
                graphs, ctypes.c_size_t(len(weights) + 8), ctypes.c_bool(False)
            )
        )
        results = [ctypes.c_void_p(self._base.ggml_mul_mat(values, m, vector)) for m in matrices]
        for result in results:
            self._base.ggml_build_forward_expand(graph, result)
        self._allocate(values, plain)
        data = np.ascontiguousarray(x, np.float32).tobytes()
        self._base.ggml_backend_tensor_set(
            vector, data, ctypes.c_size_t(0), ctypes.c_size_t(len(data))
        )
        backend = ctypes.c_void_p(self._cpu.ggml_backend_cpu_init())
        self._cpu.ggml_backend_cpu_set_n_threads(backend, threads)

        def compute() -> None:
            status = self._base.ggml_backend_graph_compute(backend, graph)
            if status != 0:
                raise RuntimeError(f"ggml answers status {status}")

        def read() -> Array:
            out = np.empty(n, np.float32)
            self._base.ggml_backend_tensor_get(
                results[-1],
                out.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_size_t(0),
                ctypes.c_size_t(out.nbytes),
            )
            return out

        return compute, read

    def _context(self, tensors: int) -> ctypes.c_void_p:
        # Descriptions only: 512 bytes are more than a tensor's or a node's.
        room = 512 * (2 * tensors) + (1 << 16)
        self._base.ggml_init.argtypes = [_InitParams]
        return ctypes.c_void_p(self._base.ggml_init(_InitParams(room, None, True)))

    def _tensor(self, context: Any, kind: int, columns: int, rows: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(
            self._base.ggml_new_tensor_2d(
                context, kind, ctypes.c_int64(columns), ctypes.c_int64(rows)
            )
        )

    def _allocate(self, context: Any, kind: int) -> None:
        made = self._base.ggml_backend_alloc_ctx_tensors_from_buft(context, ctypes.c_void_p(kind))
        if not made:
            raise MemoryError("ggml cannot allocate its tensors")

    def _quantized(self, weight: Array) -> bytes:
        n, k = weight.shape
        packed = ctypes.create_string_buffer(n * k // 32 * _BLOCK_BYTES)
        source = np.ascontiguousarray(weight, np.float32)
        self._base.ggml_quantize_chunk(
            _Q4_0,
            source.ctypes.data_as(ctypes.c_void_p),
            packed,
            ctypes.c_int64(0),
            ctypes.c_int64(n),
            ctypes.c_int64(k),
            None,
        )
        return packed.raw
