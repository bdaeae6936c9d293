"""Verification: each artifact is run against two oracles on real inputs, before it may ship.

What works on a graph is in modules of its own (``bisect``, ``oracles``, ``vectors``): the gate
needs none of it, and the process that runs the gate has to be small.
"""

from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.finding import Finding
from edgeinfer.convert.verify.gate import EngineResult, OutputResult, VariantResult, verify_variant
from edgeinfer.convert.verify.report import Change, Report

__all__ = [
    "Answer",
    "Change",
    "EngineResult",
    "Expected",
    "Finding",
    "OutputResult",
    "Report",
    "VariantResult",
    "Vector",
    "verify_variant",
]
