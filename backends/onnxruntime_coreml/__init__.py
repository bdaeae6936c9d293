"""ONNX Runtime's Core ML provider on a Mac."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.onnxruntime_coreml.backend import (
        OnnxRuntimeCoreMLBackend as OnnxRuntimeCoreMLBackend,
    )

__getattr__ = offers("edgeinfer.backends.onnxruntime_coreml.backend", "OnnxRuntimeCoreMLBackend")
