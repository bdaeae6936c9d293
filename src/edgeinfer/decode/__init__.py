"""Tensors that a model gives to names, boxes, notes and texts: NumPy only, no engine.

Each module serves one kind of head of ``edgeinfer.heads``.
"""
