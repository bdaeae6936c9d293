"""Lowering: one normalised graph to the artifact of one target format."""
