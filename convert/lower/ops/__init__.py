"""One lowering an ONNX operator for all formats; a target's own stands with its reason."""

from edgeinfer.convert.lower.ops import activation, function, norm, reduce, softmax, unary

__all__ = ["activation", "function", "norm", "reduce", "softmax", "unary"]
