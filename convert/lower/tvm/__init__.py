"""The format ``tvm``: a shared library of machine code, made by TVM for one instruction set."""
