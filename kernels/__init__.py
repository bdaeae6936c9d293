"""Kernels tuned with TVM, used only where they win."""
