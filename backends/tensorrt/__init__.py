"""TensorRT by its own Python package."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.tensorrt.backend import TensorRTBackend as TensorRTBackend

__getattr__ = offers("edgeinfer.backends.tensorrt.backend", "TensorRTBackend")
