"""Tensors that lie on an NVIDIA device, taken and given by DLPack without a copy.

Source: the Python specification of DLPack (https://dmlc.github.io/dlpack/latest/python_spec.html).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.types import Array

_CUDA = frozenset({2, 13})
"""``kDLCUDA`` and ``kDLCUDAManaged`` of ``DLDeviceType``."""

_HOST = frozenset({1, 3, 11})
"""``kDLCPU``, and what CUDA and ROCm keep in place on the host."""

_LEGACY_STREAM = 1
"""The default stream of CUDA, for which the engine waits before it reads."""

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
} | {
    f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class DeviceTensor:
    """A tensor on a device: what a run gave there, or what somebody else holds.

    ``torch.from_dlpack(tensor)`` and ``cupy.from_dlpack(tensor)`` share its memory; ``numpy()``
    copies it to the host.

    Args:
        value: the engine's own object.
        owner: what the memory belongs to, if that is somebody else.
    """

    __slots__ = ("_owner", "_value", "dtype", "shape")

    def __init__(self, value: Any, owner: object = None) -> None:
        self._value, self._owner = value, owner
        self.shape: tuple[int, ...] = tuple(value.shape())
        kind = value.data_type()
        if kind not in _DTYPES:
            raise TypeError(f"{kind} has no NumPy type")
        self.dtype = np.dtype(_DTYPES[kind])

    def __repr__(self) -> str:
        return (
            f"<DeviceTensor {self.dtype}{list(self.shape)} on cuda:{self.__dlpack_device__()[1]}>"
        )

    @property
    def value(self) -> Any:
        """The engine's own object."""
        return self._value

    @property
    def nbytes(self) -> int:
        """Size of its elements together."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Of its first element on the device."""
        return int(self._value.data_ptr())

    def numpy(self) -> Array:
        """Copy it to the host."""
        return np.array(self._value.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a tensor on a device cannot become an array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        # A run has ended when it returns, so no stream has to wait for another.
        if options.get("copy"):
            raise BufferError("a copy is for the taker to make")
        return self._value.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._value.__dlpack_device__()
        return int(kind), int(index)


class DeviceFeeds(dict[str, Any]):
    """Inputs some of which lie on a device, checked."""


def is_on_device(value: object) -> bool:
    """Whether something offers a tensor on an NVIDIA device."""
    ask = getattr(value, "__dlpack_device__", None)
    return callable(ask) and int(ask()[0]) in _CUDA


def is_on_host(value: Any) -> bool:
    """Whether something that offers a tensor has it in the host's memory."""
    return int(value.__dlpack_device__()[0]) in _HOST


def device_of(value: Any) -> str:
    """Spell where a tensor lies, e.g. ``cuda:0``, or device type 8 of DLPack."""
    kind, index = value.__dlpack_device__()
    return f"cuda:{index}" if int(kind) in _CUDA else f"device type {int(kind)} of DLPack"


def taken(value: Any) -> DeviceTensor:
    """Share somebody's tensor on a device.

    What its owner has started on another stream is waited for.

    Raises:
        TypeError: the engine cannot share it: says why.
    """
    if isinstance(value, DeviceTensor):
        return value
    share = getattr(import_onnxruntime().OrtValue, "from_dlpack", None)
    if share is None:
        raise TypeError("this version of onnxruntime takes no tensors by DLPack")
    try:
        return DeviceTensor(share(value.__dlpack__(stream=_LEGACY_STREAM)), value)
    except TypeError:
        raise
    except Exception as error:  # its owner may raise anything, and so may the engine
        if "ontiguous" in str(error):
            # The engine's own words are a path in its sources.
            raise TypeError("it is not contiguous; call .contiguous()") from error
        raise TypeError(one_line(error)) from error
