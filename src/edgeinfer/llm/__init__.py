"""Language models as both halves know them: the description of a decoder and its weights."""

from edgeinfer.llm.config import Experts, LlmConfig, Rope

__all__ = ["Experts", "LlmConfig", "Rope"]
