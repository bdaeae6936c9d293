"""Normalisation: what every target wants of a graph is decided once, here.

After ``normalise`` a model is at opset ``OPSET`` (or the newer one it came with), its weights are
initializers, its functions are inlined, its shapes are inferred, what can be folded is folded and
what an exporter took apart is whole again (``Gelu``, ``LayerNormalization``, ...). Nothing later
needs to know which exporter made it.
"""

from __future__ import annotations

OPSET = 24
"""Every model is raised to this version of the default domain, so a lowering knows one version of
each operator. 24 is the first that has all fused operators the passes recover (Gelu 20,
RMSNormalization 23, Attention 23, Swish 24)."""
