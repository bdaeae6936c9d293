"""Verification: each artifact is run against two oracles on real inputs, before it may ship.

What works on a graph is imported when it is first used: the gate needs none of it, and the process
that runs the gate has to be small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.finding import Finding
from edgeinfer.convert.verify.gate import EngineResult, OutputResult, VariantResult, verify_variant
from edgeinfer.convert.verify.report import Change, Report

if TYPE_CHECKING:
    from edgeinfer.convert.verify.bisect import LowerAndRun, explain
    from edgeinfer.convert.verify.oracles import Oracles
    from edgeinfer.convert.verify.vectors import UserData, gather_vectors, make_vectors

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
    "gather_vectors",
    "make_vectors",
    "verify_variant",
]

_LATE = {
    "LowerAndRun": "bisect",
    "Oracles": "oracles",
    "UserData": "vectors",
    "explain": "bisect",
    "gather_vectors": "vectors",
    "make_vectors": "vectors",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
    globals()[name] = value
    return value
