"""Quantization: one set of scales for every target, written into the graph and verified."""
