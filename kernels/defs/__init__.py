"""Kernels as loops: Python that builds TVM's TensorIR for given sizes and a given CPU."""
