"""The contract of a step, as the engine's modules name it."""

from edgeinfer.llm.step import PAGE, Bytes, Executor, Floats, Ints, StepBatch

__all__ = ["PAGE", "Bytes", "Executor", "Floats", "Ints", "StepBatch"]
