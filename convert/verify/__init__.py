"""Verification: each artifact is run against two oracles on real inputs, before it may ship."""

from edgeinfer.convert.verify.bisect import Finding, LowerAndRun, explain
from edgeinfer.convert.verify.gate import EngineResult, OutputResult, VariantResult, verify_variant
from edgeinfer.convert.verify.oracles import Answer, Expected, Oracles
from edgeinfer.convert.verify.report import Change, Report
from edgeinfer.convert.verify.vectors import UserData, Vector, make_vectors

__all__ = [
    "Answer",
    "Change",
    "EngineResult",
    "Expected",
    "Finding",
    "LowerAndRun",
    "Oracles",
    "OutputResult",
    "Report",
    "UserData",
    "VariantResult",
    "Vector",
    "explain",
    "make_vectors",
    "verify_variant",
]
