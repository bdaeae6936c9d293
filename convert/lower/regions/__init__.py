"""Parts of a graph as machine code inside ONNX Runtime, where that makes the whole model faster."""
