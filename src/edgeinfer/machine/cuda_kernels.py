"""Machine code of an NVIDIA GPU, loaded and started by the driver itself."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from edgeinfer.errors import LoadError, RunError
from edgeinfer.machine.cuda import Transfers

_EARLY = 6
"""``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``."""


class _Config(ctypes.Structure):
    """``CUlaunchConfig`` of the CUDA driver API."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``; its value takes 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class Kernels:
    """Kernels of a file of machine code.

    Args:
        transfers: Transfers of the device.
        code: what CUDA's compiler wrote.
        may_start_early: kernels wait by themselves for what came before them.

    Raises:
        LoadError: the code is not for this device.
    """

    def __init__(self, transfers: Transfers, code: bytes, *, may_start_early: bool) -> None:
        self._transfers, self._driver = transfers, transfers.driver
        self._module = ctypes.c_void_p()
        self._code = ctypes.create_string_buffer(code, len(code))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._attributes = (_Attribute * 1)()
        self._attributes[0].id = _EARLY
        self._attributes[0].value[0] = 1
        self._count = int(may_start_early)
        transfers.enter()
        try:
            found = self._driver.cuModuleLoadData(ctypes.byref(self._module), self._code)
            transfers.check(found, "load the kernels")
        except RunError as e:
            raise LoadError(f"kernels of the language model: {e}") from e

    def start(
        self,
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[int | float],
        stream: int,
    ) -> None:
        """Start a kernel; integers may be addresses.

        Raises:
            LoadError: there is no kernel of that name.
            RunError: the driver failed.
        """
        values = b"".join(
            struct.pack("<f4x" if isinstance(v, float) else "<q", v) for v in arguments
        )
        held = ctypes.create_string_buffer(values, len(values))
        begin = ctypes.addressof(held)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(begin + 8 * i for i in range(len(arguments)))
        )
        config = _Config(
            grid, (threads, 1, 1), 0, stream, ctypes.addressof(self._attributes), self._count
        )
        code = self._driver.cuLaunchKernelEx(
            ctypes.byref(config), self._function(name), pointers, None
        )
        self._transfers.check(code, f"start {name}")

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            made = ctypes.c_void_p()
            if self._driver.cuModuleGetFunction(ctypes.byref(made), self._module, name.encode()):
                raise LoadError(f"the kernels of the language model lack {name!r}")
            self._functions[name] = made
        return self._functions[name]

    def close(self) -> None:
        """Unload the code; a second call does nothing."""
        if self._module.value is not None:
            self._transfers.enter()
            self._driver.cuModuleUnload(self._module)
        self._module = ctypes.c_void_p()
