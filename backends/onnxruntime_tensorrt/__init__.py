"""ONNX Runtime's TensorRT provider."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.onnxruntime_tensorrt.backend import (
        OnnxRuntimeTensorRTBackend as OnnxRuntimeTensorRTBackend,
    )

__getattr__ = offers(
    "edgeinfer.backends.onnxruntime_tensorrt.backend", "OnnxRuntimeTensorRTBackend"
)
