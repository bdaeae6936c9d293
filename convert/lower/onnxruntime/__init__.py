"""Target format `onnx`: ONNX for ONNX Runtime, with its contrib operators where they win."""
