"""Quantization of the graph: integers for weights, scales around nodes, corrections."""
