"""Inputs and outputs of a compiled model: how arrays go in and come out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from edgeinfer.backends.checks import array_type
from edgeinfer.backends.engines import import_openvino
from edgeinfer.bundle.values import beyond
from edgeinfer.errors import RunError
from edgeinfer.types import Array, TensorSpec

_WIDE = ("int64", "uint64", "uint32")
_INT32 = (-(1 << 31), (1 << 31) - 1)

LARGE = 1 << 16
"""Bytes of a result from which the engine writes into memory of the caller's own: to copy it takes
longer than to name a buffer for it."""


@cache
def _module() -> Any:
    """Return the engine's module; to import it in each run takes microseconds."""
    return import_openvino()


class BoundPort:
    """One input or output: how arrays go in and come out."""

    __slots__ = ("bounds", "dtype", "name", "port", "size", "spec")

    def __init__(self, spec: TensorSpec, port: Any, bounds: Sequence[int] = ()) -> None:
        self.spec = spec
        self.bounds = bounds or (_INT32 if spec.dtype in _WIDE else ())
        self.name = spec.name
        self.dtype = array_type(spec.dtype)
        self.port = port
        self.size = self._large_size()

    def _large_size(self) -> tuple[int, ...] | None:
        """Return the shape of a tensor that is large, and whose size no run decides."""
        shape = self.port.partial_shape
        if shape.is_dynamic or self.spec.dtype == "bfloat16":
            return None
        size = tuple(shape.to_shape())
        return size if np.prod(size, dtype=np.int64) * self.dtype.itemsize >= LARGE else None

    def share(self, array: Array) -> Any:
        """Return an engine's tensor over the array, or over a copy where it cannot be shared."""
        if array.dtype != self.dtype:
            raise RunError(
                f"run: input {self.name!r}: expected {self.spec.dtype}, received {array.dtype}"
            )
        if self.bounds:
            self.check_range(array)
        if not (array.flags.c_contiguous and array.flags.writeable):
            array = array.copy(order="C")
        return self.tensor(array)

    def tensor(self, array: Array) -> Any:
        """Return an engine's tensor in the array's memory."""
        openvino = _module()
        if self.spec.dtype == "bfloat16":
            return openvino.Tensor(array.view(np.uint16), array.shape, openvino.Type.bf16)
        return openvino.Tensor(array, shared_memory=True)

    def fresh(self, request: Any) -> Array | None:
        """Have a large result of known size written into a new array, and return that."""
        if self.size is None:
            return None
        array: Array = np.empty(self.size, self.dtype)
        request.set_tensor(self.port, self.tensor(array))
        return array

    def copy(self, request: Any) -> Array:
        """Return the result in memory of its own."""
        data = request.get_tensor(self.port).data
        # The engine shows bfloat16 as float16 of the same bits.
        return np.array(data.view(self.dtype) if self.spec.dtype == "bfloat16" else data)

    def check_fixed(self) -> None:
        """Refuse a result that the engine cannot write into a given buffer."""

    def check_range(self, array: Array) -> None:
        """Refuse values that the engine would cut to 32 bits."""
        if found := beyond(self.bounds, array):
            what = "float64" if self.spec.dtype == "float64" else "64-bit integers"
            raise RunError(
                f"run: input {self.name!r}: openvino computes {what} in 32 bits and {found}; "
                "use onnxruntime"
            )


class SqueezedPort(BoundPort):
    """An output whose axes of size 1 are removed after the engine."""

    __slots__ = ()

    def _large_size(self) -> None:
        return None

    def copy(self, request: Any) -> Array:
        """Return the squeezed result in memory of its own."""
        return super().copy(request).squeeze()

    def check_fixed(self) -> None:
        """Refuse: the engine's buffer has more axes than the result."""
        raise RunError(f"bind: output {self.name!r}: its rank follows from the sizes; use run()")
