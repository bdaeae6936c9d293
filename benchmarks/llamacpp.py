"""llama.cpp as a peer: its prebuilt libraries by ctypes.

They come with the npm package ``@node-llama-cpp/linux-x64`` (3.22.1 has llama.cpp v0.5.0); the
folder is ``package/bins/linux-x64``::

    npm pack @node-llama-cpp/linux-x64@3.22.1 && tar xzf *.tgz

Structures are larger than the library's, and only their first fields are touched: offsets are those
of that version's ``llama.h``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.types import Array

VERSION = "v0.5.0"


class _Blob(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embedding", ctypes.c_void_p),
        ("position", ctypes.POINTER(ctypes.c_int32)),
        ("owners", ctypes.POINTER(ctypes.c_int32)),
        ("owner", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("wanted", ctypes.POINTER(ctypes.c_int8)),
    )


Part = tuple[int, Sequence[int], int, int]
"""Sequence, tokens, first position, last tokens whose logits are wanted."""


class Library:
    """llama.cpp with the library for one kind of CPU.

    Args:
        folder: of its libraries.
        cpu: of the CPU, such as ``haswell``; others lie in the same folder.
    """

    def __init__(self, folder: Path, cpu: str) -> None:
        load = ctypes.CDLL
        load(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        ggml = load(str(folder / f"libggml.{VERSION}.so"), mode=ctypes.RTLD_GLOBAL)
        self.llama = load(str(folder / f"libllama.{VERSION}.so"), mode=ctypes.RTLD_GLOBAL)
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        self.llama.llama_log_set(self._quiet, None)
        ggml.ggml_backend_load.restype = ctypes.c_void_p
        if not ggml.ggml_backend_load(str(folder / f"libggml-cpu-{cpu}.so").encode()):
            raise SystemExit(f"{folder}: llama.cpp has no library for {cpu} that runs here")
        self.llama.llama_backend_init()
        self._declare()

    def _declare(self) -> None:
        llama, pointer, number = self.llama, ctypes.c_void_p, ctypes.c_int32
        for name in ("model", "context"):
            getattr(llama, f"llama_{name}_default_params").restype = _Blob
        llama.llama_model_load_from_file.restype = pointer
        llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Blob]
        llama.llama_init_from_model.restype = pointer
        llama.llama_init_from_model.argtypes = [pointer, _Blob]
        llama.llama_decode.argtypes = [pointer, _Batch]
        llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        llama.llama_get_logits_ith.argtypes = [pointer, number]
        llama.llama_get_memory.restype = pointer
        llama.llama_get_memory.argtypes = [pointer]
        llama.llama_memory_seq_rm.argtypes = [pointer, number, number, number]
        llama.llama_memory_seq_rm.restype = ctypes.c_bool
        llama.llama_batch_init.restype = _Batch
        llama.llama_batch_init.argtypes = [number] * 3
        llama.llama_model_get_vocab.restype = pointer
        llama.llama_model_get_vocab.argtypes = [pointer]
        llama.llama_vocab_n_tokens.argtypes = [pointer]
        llama.llama_synchronize.argtypes = [pointer]
        llama.llama_model_quantize_default_params.restype = _Blob
        llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, pointer]
        llama.llama_model_quantize.restype = ctypes.c_uint32

    def requantize(self, source: Path, target: Path, kind: int) -> None:
        """Write a file with other types of weights (``LLAMA_FTYPE``); its head stays Q8_0."""
        params = bytearray(bytes(self.llama.llama_model_quantize_default_params().bytes))
        struct.pack_into("<iiii", params, 0, 1, kind, 8, 8)
        params[16], params[19] = 1, 0
        blob = _Blob.from_buffer_copy(bytes(params))
        given = str(source).encode(), str(target).encode(), ctypes.addressof(blob)
        if self.llama.llama_model_quantize(*given):
            raise SystemExit(f"{source}: llama.cpp cannot write type {kind}")


class Peer:
    """A model in llama.cpp.

    Args:
        library: of llama.cpp.
        path: of a GGUF file.
        threads: how many.
        context: tokens of a sequence.
        sequences: at once.
        cache: 1 for float16, 8 for q8_0.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        threads: int,
        context: int,
        sequences: int,
        cache: int = 1,
    ) -> None:
        self._llama: Any = library.llama
        params = self._llama.llama_model_default_params()
        model = self._llama.llama_model_load_from_file(str(path).encode(), params)
        blob = bytearray(bytes(self._llama.llama_context_default_params().bytes))
        struct.pack_into("<IIII", blob, 0, context * sequences, 512, 512, sequences)
        struct.pack_into("<ii", blob, 28, threads, threads)
        struct.pack_into("<ii", blob, 104, cache, cache)
        made = _Blob.from_buffer_copy(bytes(blob))
        self._context = model and self._llama.llama_init_from_model(model, made)
        if not self._context:
            raise SystemExit(f"{path}: llama.cpp cannot open it")
        self.vocab = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(model))
        self._batch = self._llama.llama_batch_init(512, 0, 1)
        self._memory = self._llama.llama_get_memory(self._context)

    def forget(self, sequence: int, first: int = -1) -> None:
        """Drop a sequence's tokens from a position on."""
        self._llama.llama_memory_seq_rm(self._memory, sequence, first, -1)

    def step(self, parts: Sequence[Part], *, read: bool = True) -> Array | None:
        """Decode; logits of the wanted rows where they are to be read."""
        batch, at, wanted = self._batch, 0, []
        for sequence, tokens, first, last in parts:
            for k, token in enumerate(tokens):
                batch.token[at], batch.position[at] = int(token), first + k
                batch.owners[at], batch.owner[at][0] = 1, sequence
                is_wanted = k >= len(tokens) - last
                batch.wanted[at] = is_wanted
                wanted += [at] if is_wanted else []
                at += 1
        batch.count = at
        if self._llama.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp cannot decode")
        if not read:
            self._llama.llama_synchronize(self._context)
            return None
        get, shape = self._llama.llama_get_logits_ith, (self.vocab,)
        return np.stack([np.ctypeslib.as_array(get(self._context, i), shape) for i in wanted])
