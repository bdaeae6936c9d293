"""Families of decoders, one file for those that are built alike: sizes and names of weights."""

from edgeinfer.convert.llm.families import gemma, llama, phi, qwen
from edgeinfer.convert.llm.families.base import Family

FAMILIES: tuple[Family, ...] = (
    *llama.FAMILIES,
    *qwen.FAMILIES,
    *gemma.FAMILIES,
    *phi.FAMILIES,
)
"""All that are read."""
