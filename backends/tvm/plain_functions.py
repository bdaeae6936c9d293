"""Functions that TVM compiled, called without TVM: arrays as DLPack describes them, through ctypes.

A call lets other threads of Python run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.tvm.library import check_machine, read
from edgeinfer.errors import LoadError, RunError
from edgeinfer.types import Array

FOLDER = "code"
"""Of a bundle, with one library for each architecture: ``x86_64.so``, ``aarch64.so``."""

_CPU, _TENSOR = 1, 7
_CODES = {"i": 0, "u": 1, "f": 2}
"""Of DLPack, by NumPy's kind."""

_PREFIX = "__tvm_ffi_"


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


class _Argument(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("zero", ctypes.c_uint32),
        ("pointer", ctypes.c_void_p),
    )


class HeldArray:
    """An array as a function takes it; keeps the array alive.

    Args:
        array: in one piece.

    Raises:
        ValueError: it is not.
    """

    __slots__ = ("_kept", "_shape", "address", "described")

    def __init__(self, array: Array) -> None:
        if not array.flags.c_contiguous:
            raise ValueError("an array that is not contiguous")
        kind = array.dtype
        self._kept = array
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.described = _DlTensor(
            array.ctypes.data,
            _CPU,
            0,
            array.ndim,
            _CODES[kind.kind],
            kind.itemsize * 8,
            1,
            ctypes.addressof(self._shape),
            None,
            0,
        )
        self.address = ctypes.addressof(self.described)


class Functions:
    """A library of functions.

    Args:
        path: Path of the file.

    Raises:
        LoadError: it is no such library, or for another CPU.
    """

    def __init__(self, path: Path) -> None:
        self.machine = check_functions(path)
        try:
            self._library = ctypes.CDLL(str(path.absolute()))
            self._fault = self._library.edgeinfer_fault
        except (OSError, AttributeError) as e:
            raise LoadError(f"{path}: {one_line(e)}") from e
        self._fault.restype = ctypes.c_char_p
        self._known: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Whether there is a function of this name."""
        return hasattr(self._library, _PREFIX + name)

    def call(self, name: str, arguments: Sequence[Array | HeldArray]) -> None:
        """Call a function; outputs are written where they lie.

        Raises:
            RunError: there is no such function, or it does not take these arrays.
        """
        function = self._known.get(name)
        if function is None:
            try:
                function = getattr(self._library, _PREFIX + name)
            except AttributeError as e:
                raise RunError(f"the library has no function {name!r}") from e
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
            self._known[name] = function
        tensors = [a if isinstance(a, HeldArray) else HeldArray(a) for a in arguments]
        given = (_Argument * len(tensors))(*(_Argument(_TENSOR, 0, t.address) for t in tensors))
        result = _Argument()
        if function(None, given, len(tensors), ctypes.byref(result)):
            text = self._fault().decode(errors="replace")
            raise RunError(f"function {name!r}: {one_line(ValueError(text))}")


def check_functions(path: Path) -> str:
    """Return the instruction set that a library is for; none of its code is mapped.

    Raises:
        LoadError: it is no such library, or for another CPU.
    """
    about = read(path)
    if about.kind != "functions":
        raise LoadError(f"{path}: it holds a model, not functions")
    check_machine(path, about)
    return about.machine
