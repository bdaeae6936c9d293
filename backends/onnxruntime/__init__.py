"""ONNX Runtime: ``onnx`` on CPUs and NVIDIA GPUs."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend as OnnxRuntimeBackend

__getattr__ = offers("edgeinfer.backends.onnxruntime.backend", "OnnxRuntimeBackend")
