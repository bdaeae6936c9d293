"""Core ML: ML Programs written with coremltools' MIL builder."""
