"""Operators in NumPy, once for all that evaluates models in it."""
