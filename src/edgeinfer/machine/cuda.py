"""NVIDIA devices, asked from the driver itself, which needs no toolkit and no engine."""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from edgeinfer.errors import NotAvailableError, RunError
from edgeinfer.machine.device import Device
from edgeinfer.types import Array

_NAME_BYTES = 256
_MAJOR, _MINOR = 75, 76
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`` and ``_MINOR`` of the CUDA driver API."""


def absence(backend: str, kind: str) -> str:
    """Say why an engine has no unit of a kind here."""
    if kind == "gpu" and cuda_devices():
        return f"this build of {backend} cannot use the NVIDIA device here"
    return f"no {'NVIDIA device' if kind == 'gpu' else kind} here"


def cuda_devices() -> tuple[Device, ...]:
    """Return the devices that the driver offers; empty without a driver or a device."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(Device("gpu", _name(driver, index), index) for index in range(count.value))


def compute_capability(index: int = 0) -> str:
    """Return e.g. ``9.0``; empty without such a device.

    Args:
        index: Index of the device.
    """
    driver = _driver()
    handle = ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(handle), index):
        return ""
    parts = [ctypes.c_int(), ctypes.c_int()]
    for part, attribute in zip(parts, (_MAJOR, _MINOR), strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, handle):
            return ""
    return ".".join(str(part.value) for part in parts)


AMPERE = (8, 0)
"""Compute capability of the first GPUs with bfloat16 and TF32 (CUDA C++ Programming Guide)."""


def check_bf16(backend: str, precision: str) -> None:
    """Refuse an artifact in bfloat16 on a device that has no such arithmetic.

    Args:
        backend: its name, for the message.
        precision: Precision of the artifact, as in a manifest.

    Raises:
        NotAvailableError: the device is older than Ampere.
    """
    if "bf16" in precision.split("+"):
        _check_ampere(backend, "bf16", "fp16")


def check_tf32(backend: str) -> None:
    """Refuse products of TF32 on a device that has no such arithmetic.

    Args:
        backend: its name, for the message.

    Raises:
        NotAvailableError: the device is older than Ampere.
    """
    _check_ampere(backend, "tf32", "fp32")


def _check_ampere(backend: str, kind: str, instead: str) -> None:
    found = compute_capability()
    if found and tuple(int(part) for part in found.split(".")) < AMPERE:
        raise NotAvailableError(
            f"backend {backend!r}: the file is computed in {kind}, which NVIDIA's GPUs have from "
            f"compute capability 8.0 on; this one has {found}: take a variant in {instead}"
        )


def free_bytes(index: int = 0) -> int:
    """Return the bytes of a device's memory that nobody has taken.

    Raises:
        RunError: the driver failed, or there is none.
    """
    transfers = Transfers(index)
    try:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        transfers.enter()
        found = transfers.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        transfers.check(found, "tell its free memory")
        return free.value
    finally:
        transfers.close()


def driver_version() -> str:
    """Return the newest CUDA version that the driver runs, e.g. ``13.0``; empty without one."""
    driver = _driver()
    version = ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


class Transfers:
    """Copies between NumPy arrays and a device, in the memory that the engine uses.

    Pinned arrays are read and written by the device itself
    (CUDA driver API, "Memory Management": ``cuMemHostRegister``).
    """

    def __init__(self, index: int) -> None:
        driver = _driver()
        if driver is None:
            raise RunError("no CUDA driver is loaded")
        self._driver: Any = driver
        self._pinned: list[Array] = []
        handle = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self.check(driver.cuDeviceGet(ctypes.byref(handle), index), "find the device")
        # The primary context is the one of the CUDA runtime, and so the engine's.
        self.check(
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle), "use the device"
        )
        # What is freed while it is pinned would be read where it was: pins go first, in any case.
        self._end = weakref.finalize(self, _let_go, driver, self._context, handle, self._pinned)
        self._end.atexit = False

    @property
    def driver(self) -> Any:
        """The driver's library."""
        return self._driver

    def pin(self, array: Array) -> None:
        """Keep an array's pages in place, so that copies need no detour; undone by ``close``."""
        if not array.nbytes:
            return
        self.enter()
        address = ctypes.c_void_p(array.ctypes.data)
        if self._driver.cuMemHostRegister_v2(address, ctypes.c_size_t(array.nbytes), 0) == 0:
            # Where that cannot be (pinned before, read-only pages) copies are slower, not wrong.
            self._pinned.append(array)

    def to_device(self, address: int, array: Array) -> None:
        """Copy a C-contiguous array.

        Raises:
            RunError: the driver failed.
        """
        if array.nbytes:
            self.enter()
            self.check(
                self._driver.cuMemcpyHtoD_v2(
                    ctypes.c_uint64(address),
                    ctypes.c_void_p(array.ctypes.data),
                    ctypes.c_size_t(array.nbytes),
                ),
                "copy to the device",
            )

    def wait(self) -> None:
        """Wait until what was copied to the device is there.

        A copy from pages that are not pinned returns when they may be reused, not when the device
        has the data (CUDA driver API, "API synchronization behavior"), and the engine's stream does
        not wait for it.

        Raises:
            RunError: the driver failed.
        """
        self.enter()
        self.check(self._driver.cuStreamSynchronize(None), "copy to the device")

    def to_host(self, array: Array, address: int) -> None:
        """Copy into a C-contiguous array.

        Raises:
            RunError: the driver failed.
        """
        if array.nbytes:
            self.enter()
            self.check(
                self._driver.cuMemcpyDtoH_v2(
                    ctypes.c_void_p(array.ctypes.data),
                    ctypes.c_uint64(address),
                    ctypes.c_size_t(array.nbytes),
                ),
                "copy from the device",
            )

    def close(self) -> None:
        """Let go of pinned pages and of the device; a second call does nothing."""
        self._end()

    def enter(self) -> None:
        """Make the device current in this thread; costs less than asking whether it is."""
        self.check(self._driver.cuCtxSetCurrent(self._context), "use the device")

    def check(self, code: int, what: str) -> None:
        """Raise what the driver says of a failed call."""
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"unknown error").decode(errors="replace")
        raise RunError(f"CUDA cannot {what}: {reason} (error {code})")


def _let_go(driver: Any, context: Any, handle: Any, pinned: list[Array]) -> None:
    driver.cuCtxSetCurrent(context)
    for array in pinned:
        driver.cuMemHostUnregister(ctypes.c_void_p(array.ctypes.data))
    pinned.clear()
    driver.cuDevicePrimaryCtxRelease_v2(handle)


class Memory:
    """A piece of the device's memory, which grows when more is requested.

    CUDA driver API, "Memory Management": what ``cuMemAlloc`` gives is aligned for any type.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers, self._address = transfers, ctypes.c_uint64()
        self._size = 0

    @property
    def address(self) -> int:
        """Of its first byte; 0 before any was requested."""
        return int(self._address.value)

    def hold(self, size: int) -> int:
        """Return the address of at least so many bytes; what lay there is lost if it moves.

        Raises:
            RunError: the device has too little memory.
        """
        # An address of nothing is none, so that a tensor without elements has one too.
        size = max(size, 1)
        if size > self._size:
            self.free()
            driver, check = self._transfers.driver, self._transfers.check
            self._transfers.enter()
            found = driver.cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(size))
            check(found, f"reserve {size} bytes")
            self._size = size
        return self.address

    def free(self) -> None:
        """Give it back; a second call does nothing."""
        if self._size:
            self._transfers.enter()
            self._transfers.driver.cuMemFree_v2(self._address)
            self._address, self._size = ctypes.c_uint64(), 0


class Stream:
    """A stream of its own, which does not wait for the default one, and copies on it.

    CUDA driver API, "Stream Management".
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers, self._driver = transfers, transfers.driver
        self._stream = ctypes.c_void_p()
        transfers.enter()
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NOT_WITH_LEGACY)

    @property
    def handle(self) -> int:
        """The driver's own."""
        return int(self._stream.value or 0)

    def wait(self) -> None:
        """Wait until all that was started is done.

        Raises:
            RunError: the driver failed.
        """
        self._call("cuStreamSynchronize", self._stream)

    def to_device(self, address: int, array: Array) -> None:
        """Copy an array before what is started next."""
        if array.nbytes:
            here = ctypes.c_void_p(array.ctypes.data)
            size = ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyHtoDAsync_v2", _LONG(address), here, size, self._stream)

    def to_host(self, array: Array, address: int) -> None:
        """Copy into an array after what was started; it is there after ``wait``."""
        if array.nbytes:
            here = ctypes.c_void_p(array.ctypes.data)
            size = ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyDtoHAsync_v2", here, _LONG(address), size, self._stream)

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        self._transfers.enter()
        if self._stream.value is not None:
            self._driver.cuStreamDestroy_v2(self._stream)
        self._stream = ctypes.c_void_p()

    def _call(self, name: str, *arguments: Any) -> None:
        self._transfers.check(getattr(self._driver, name)(*arguments), name)


class Recording(Stream):
    """Work on a stream of its own, recorded as a CUDA graph and replayed with one call.

    CUDA driver API, "Graph Management".

    Args:
        work: starts the work on the stream with the given handle; called twice, first to load what
            is loaded late, which cannot be recorded.
        transfers: Transfers of the device.
    """

    def __init__(self, work: Callable[[int], None], transfers: Transfers) -> None:
        # What is recorded calls code that is unloaded with the last that refers to it.
        self._work = work
        self._graph = ctypes.c_void_p()
        super().__init__(transfers)
        call, stream, graph = self._call, self._stream, ctypes.c_void_p()
        try:
            work(self.handle)
            call("cuStreamSynchronize", stream)
            call("cuStreamBeginCapture_v2", stream, _THIS_THREAD)
            try:
                work(self.handle)
            finally:
                # Also after an error: the stream can do nothing else before.
                call("cuStreamEndCapture", stream, ctypes.byref(graph))
            call("cuGraphInstantiateWithFlags", ctypes.byref(self._graph), graph, _LONG(0))
            call("cuGraphDestroy", graph)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the work.

        Raises:
            RunError: the driver failed.
        """
        self._transfers.enter()
        self._call("cuGraphLaunch", self._graph, self._stream)

    def close(self) -> None:
        """Let go of graph and stream; a second call does nothing."""
        self._transfers.enter()
        if self._graph.value is not None:
            self._driver.cuGraphExecDestroy(self._graph)
        self._graph = ctypes.c_void_p()
        super().close()


_LONG = ctypes.c_uint64
_NOT_WITH_LEGACY, _THIS_THREAD = 1, 1
"""``CU_STREAM_NON_BLOCKING``, ``CU_STREAM_CAPTURE_MODE_THREAD_LOCAL``."""


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return None if driver.cuInit(0) else driver


def _name(driver: ctypes.CDLL, index: int) -> str:
    handle = ctypes.c_int()
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    failed = driver.cuDeviceGet(ctypes.byref(handle), index) or driver.cuDeviceGetName(
        buffer, _NAME_BYTES, handle
    )
    return f"CUDA device {index}" if failed else buffer.value.decode(errors="replace")
