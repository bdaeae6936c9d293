"""Fewer bits: one set of scales for every target, written into the graph, and the proof it holds."""
