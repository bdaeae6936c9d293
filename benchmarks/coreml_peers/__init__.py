"""Our Core ML packages against those of onnx2coreml and onnxsim: see ``__main__``."""
