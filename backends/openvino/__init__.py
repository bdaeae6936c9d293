"""OpenVINO: ``openvino_ir`` and ``onnx``."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.backend import OpenVinoBackend as OpenVinoBackend

__getattr__ = offers("edgeinfer.backends.openvino.backend", "OpenVinoBackend")
