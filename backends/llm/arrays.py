"""What a tape's kernels read and write: arrays of an executor, and how kernels get them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgeinfer.errors import LoadError
from edgeinfer.llm.tape import ALIGNMENT, Argument, Call, Tape
from edgeinfer.machine.largepages import map_large
from edgeinfer.types import Array

SLACK = 16
"""Rows behind the last token: products take several at once, whether there are so many or not."""

_CODES = {"i": 0, "u": 1, "f": 2}
_POINTER = 7
"""Kind of an argument that points to a tensor."""

BEST = 5
"""Arguments of the phase that looks for the largest logits."""


class DLTensor(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


ARGUMENT = np.dtype([("kind", "<i4"), ("zero", "<u4"), ("value", "<u8")])
"""TVM FFI's ``TVMFFIAny``."""


def aligned(shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros that begin at the start of a line of memory."""
    return together([(shape, dtype)])[0]


def together(wanted: Sequence[tuple[tuple[int, ...], str]]) -> list[Array]:
    """Zeros in one block of memory, each at the start of a line.

    NumPy asks the system for large pages for a block of several megabytes, not for small ones.
    """
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    raw = np.zeros(sum(-(-size // ALIGNMENT) for size in sizes) * ALIGNMENT + ALIGNMENT, np.uint8)
    at = -raw.ctypes.data % ALIGNMENT
    made = []
    for size, (shape, dtype) in zip(sizes, wanted, strict=True):
        made.append(raw[at : at + size].view(dtype).reshape(shape))
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return made


def map_weights(path: Path, tape: Tape) -> Array:
    """Map ``weights.bin``; processes share it.

    Raises:
        LoadError: an array lies outside the file.
    """
    with path.open("rb") as file:
        whole = np.frombuffer(map_large(file), np.uint8)
    for name, array in tape.weights.items():
        size = int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
        outside = array.offset < 0 or min(array.shape, default=1) < 0
        if outside or array.offset % ALIGNMENT or array.offset + size > whole.size:
            raise LoadError(f"{path}: array {name!r} lies outside the file")
    return whole


class Arrays:
    """Arrays by the names of a tape.

    Args:
        tape: that names them.
        weights: the file's bytes.
        shared: arrays of the executor.
        private: by thread, those that each has for itself.
        caches: by layer, the cache's arrays in the order of kernels.
        spans: address of each thread's span, and of the one for what comes before.
    """

    def __init__(
        self,
        tape: Tape,
        weights: Array,
        shared: Mapping[str, Array],
        private: list[dict[str, Array]],
        caches: list[list[Array]],
        spans: list[tuple[int, int]],
    ) -> None:
        self._tape, self._weights, self._shared = tape, weights, shared
        self._private, self._caches, self._spans = private, caches, spans
        self._tensors: dict[tuple[int, str, tuple[int, ...]], int] = {}
        self._kept: list[object] = [weights, shared, private, caches]

    def weight(self, name: str) -> Array:
        """A packed array."""
        array = self._tape.weights[name]
        size = int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
        part = self._weights[array.offset : array.offset + size]
        return np.asarray(part.view(array.dtype).reshape(array.shape))

    def place(self, name: str) -> int:
        """Address of an array that all threads share."""
        if name.startswith("w:"):
            return int(self._weights.ctypes.data) + self._tape.weights[name[2:]].offset
        return self._own(name, 0, False)

    @property
    def span_places(self) -> list[int]:
        """Address of each thread's span."""
        return [span for span, _ in self._spans]

    def keep(self, *held: object) -> None:
        """Let objects live as long as this one."""
        self._kept += held

    def arguments(self, call: Call, *, layer: int, private: bool, before: bool = False) -> int:
        """Return the address of a call's arguments, one thread's behind the other's.

        Args:
            call: a kernel and names.
            layer: whose cache is meant.
            private: arrays that a thread may have for itself are these.
            before: it is called for a thread's own use.
        """
        declared = self._tape.kernels[call.kernel]
        made = np.zeros((len(self._spans), len(declared)), ARGUMENT)
        made["kind"] = _POINTER
        for thread in range(len(self._spans)):
            addresses = self._places(call, thread, layer, private, before)
            for at, (place, argument) in enumerate(zip(addresses, declared, strict=True)):
                made["value"][thread, at] = self._tensor(place, argument)
        self._kept.append(made)
        return int(made.ctypes.data)

    def of_best(self, vocab: int) -> int:
        """Return the address of what the phase that looks for the largest logits is given."""
        logits = self._shared["logits"]
        made = np.zeros((len(self._spans), BEST), ARGUMENT)
        given = (logits.ctypes.data, logits.shape[1], vocab, self._shared["best"].ctypes.data)
        for thread, (span, _) in enumerate(self._spans):
            made["value"][thread] = (*given, span)
        self._kept.append(made)
        return int(made.ctypes.data)

    def _places(
        self, call: Call, thread: int, layer: int, private: bool, before: bool
    ) -> list[int]:
        found: list[int] = []
        for name in call.arguments:
            if name == "cache":
                found += [a.ctypes.data for a in self._caches[layer]]
            elif name == "span":
                found.append(self._spans[thread][1 if before else 0])
            elif name.startswith("w:"):
                found.append(self.place(name))
            else:
                found.append(self._own(name, thread, private))
        return found

    def _own(self, name: str, thread: int, private: bool) -> int:
        stem, _, column = name.partition("@")
        own = self._private[thread].get(stem) if private else None
        array = self._shared[stem] if own is None else own
        return int(array.ctypes.data) + int(column or 0) * array.itemsize

    def _tensor(self, place: int, argument: Argument) -> int:
        key = place, argument.dtype, argument.shape
        if key not in self._tensors:
            dtype = np.dtype(argument.dtype)
            shape = (ctypes.c_int64 * len(argument.shape))(*argument.shape)
            bits = dtype.itemsize * 8
            made = DLTensor(place, 1, 0, len(shape), _CODES[dtype.kind], bits, 1, shape, None, 0)
            self._kept += [shape, made]
            self._tensors[key] = ctypes.addressof(made)
        return self._tensors[key]
