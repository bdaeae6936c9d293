"""The backend ``llm``: a language model as a function from a prompt to the logits that follow."""

from __future__ import annotations

import hashlib
import platform
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from edgeinfer._version import __version__
from edgeinfer.backends.base import Artifact, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    check_device,
    check_file,
    one_line,
    thread_count,
)
from edgeinfer.backends.copying import Copying
from edgeinfer.backends.llm.cuda import CudaExecutor
from edgeinfer.backends.llm.executor import NativeExecutor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.errors import (
    BundleError,
    ClosedError,
    InputError,
    LoadError,
    NotAvailableError,
)
from edgeinfer.llm import LlmConfig
from edgeinfer.llm import config as description
from edgeinfer.llm import tape as tapes
from edgeinfer.llm.generation import FORMAT
from edgeinfer.llm.gpu import is_for_gpu
from edgeinfer.llm.step import PAGE, StepBatch
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.types import Array, Feeds, TensorSpec

NAME = "llm"

_MOST = 4096
"""Tokens of a prompt that this backend takes, where the model takes more."""
_CHUNK = 256

TapeExecutor = NativeExecutor | CudaExecutor

INPUT = TensorSpec("tokens", "int32", ("tokens",))


def signature(config: LlmConfig) -> tuple[TensorSpec, TensorSpec]:
    """Input and output of a model as an ordinary one."""
    return INPUT, TensorSpec("logits", "float32", (config.vocab,))


def open_executor(folder: Path, sizes: ExecutorSizes, contents: str = "") -> TapeExecutor:
    """Open the files of a variant.

    Args:
        folder: that holds them.
        sizes: what there is to be room for.
        contents: Hashes of the files, where whoever opens them has checked these; without, what
            the tape says of its weights and code is believed.

    Raises:
        LoadError: files lack, are damaged, or are not for this processor.
        UsageError: sizes contradict the model.
        NotAvailableError: memory or threads lack.
    """
    try:
        texts = [(folder / n).read_bytes() for n in (description.FILE_NAME, tapes.FILE_NAME)]
        config, tape = LlmConfig.from_json(texts[0]), tapes.Tape.from_json(texts[1])
    except (OSError, BundleError) as e:
        raise LoadError(f"llm refuses {folder}: {one_line(e)}") from e
    # Ropes, windows and scales are in no code: pages of a cache depend on them all the same, and on
    # how this version takes them.
    parts = (*texts, contents.encode(), __version__.encode())
    digest = hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()[:32]
    weights, library = folder / tapes.WEIGHTS_NAME, folder / tapes.LIBRARY_NAME
    if is_for_gpu(tape.machine):
        return CudaExecutor(config, tape, weights, sizes, digest)
    return NativeExecutor(config, tape, weights, library, sizes, digest)


def open_native(folder: Path, sizes: ExecutorSizes) -> NativeExecutor:
    """Open the files of a variant for the CPU; see ``open_executor``.

    Raises:
        LoadError: also where its code is for another device.
    """
    executor = open_executor(folder, sizes)
    if not isinstance(executor, NativeExecutor):
        executor.close()
        raise LoadError(f"llm refuses {folder}: its code is for the {executor.device}")
    return executor


class LlmBackend:
    """Runs a language model's tape over one prompt at a time."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """It needs no engine besides the system's loader."""
        found = self.probe_cpu()
        if not found.available:
            return found
        return replace(found, devices=(*found.devices, *cuda_devices()))

    def probe_cpu(self) -> Probe:
        """Likewise; NVIDIA's driver is not started."""
        if platform.system() != "Linux":
            reason = f"code of language models is made for Linux, this is {platform.system()}"
            return Probe(NAME, __version__, reason=reason)
        return Probe(NAME, __version__, (Device("cpu", platform.machine()),))

    def capabilities(self) -> Capabilities:
        """One prompt of any length."""
        return Capabilities(frozenset({FORMAT}), frozenset({"int32", "float32"}), zero_copy=False)

    def load(self, artifact: Artifact, options: LoadOptions) -> LlmExecutable:
        """Open a variant's files.

        Raises:
            NotAvailableError: this system or the device is not one it runs on.
            LoadError: files lack or are damaged, the code is not for this processor, or an option
                is unknown.
        """
        here = self.probe_cpu() if options.device == "cpu" else self.probe()
        check_device(here, options.device, "code of language models is for these")
        unknown = sorted(options.extra.keys() - {"cache"})
        if unknown:
            raise LoadError(f"backend {NAME!r}: unknown options {unknown}; known: cache")
        path = check_file(NAME, artifact, (FORMAT,))
        config = LlmConfig.from_json(path.read_bytes())
        context = min(config.context, _MOST)
        threads = thread_count(NAME, options) or 0
        pages = -(-context // PAGE)
        sizes = ExecutorSizes(pages, _CHUNK, 1, context, options.extra.get("cache", ""), threads)
        executor = open_executor(path.parent, sizes)
        if executor.device != options.device:
            executor.close()
            raise NotAvailableError(f"backend {NAME!r}: its code is for the {executor.device}")
        return LlmExecutable(executor, signature(config))


class LlmExecutable(Copying):
    """A language model that forgets each prompt; runs of several threads wait for each other."""

    def __init__(self, executor: TapeExecutor, specs: tuple[TensorSpec, TensorSpec]) -> None:
        self.inputs, self.outputs = specs[:1], specs[1:]
        self._executor = executor
        self._dtypes = {s.name: np.dtype(s.dtype) for s in specs}
        self._lock, self._closed = threading.Lock(), False

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Return the logits behind the last token.

        Raises:
            InputError: there is no token, one is not in the vocabulary, or there are too many.
            ClosedError: after ``close``.
        """
        tokens = np.ascontiguousarray(feeds[INPUT.name], np.int32)
        with self._lock:
            executor = self._opened()
            if not 0 < tokens.size <= executor.context:
                what = f"1 to {executor.context} tokens"
                raise InputError(INPUT.name, what, f"{tokens.size} tokens")
            if tokens.min() < 0 or tokens.max() >= executor.vocab:
                raise InputError(INPUT.name, f"tokens from 0 to {executor.vocab - 1}", "others")
            table = np.arange(executor.pages, dtype=np.int32)[None]
            for start in range(0, tokens.size, _CHUNK):
                part = tokens[start : start + _CHUNK]
                is_last = start + _CHUNK >= tokens.size
                rows = [len(part) - 1] if is_last else []
                batch = StepBatch(
                    tokens=part,
                    positions=np.arange(start, start + len(part), dtype=np.int32),
                    owner=np.zeros(len(part), np.int32),
                    table=table,
                    rows=np.array(rows, np.int32),
                )
                logits = executor.step(batch)
            return {self.outputs[0].name: logits[0].copy()}

    def _opened(self) -> TapeExecutor:
        if self._closed:
            raise ClosedError(f"backend {NAME!r}: used after close()")
        return self._executor

    def close(self) -> None:
        """Free memory and threads."""
        with self._lock:
            self._closed = True
            self._executor.close()
