"""Every format writes every primitive that a shared lowering may use."""

from __future__ import annotations

import importlib

import pytest

from edgeinfer.convert.lower.core.portable import Elements, Tensors

OWN = {"tflite": {"acos", "asin", "atan", "cos", "cosh", "erf", "sin", "sinh", "tan"}}
"""Functions that a format composes in lowerings of its own, which no shared one may need."""


def _methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("target", ["tflite", "coreml", "coreai", "tvm"])
def test_no_primitive_is_missing(target: str) -> None:
    if target == "tvm":
        pytest.importorskip("tvm")
    ops = importlib.import_module(f"edgeinfer.convert.lower.{target}.ops")
    assert ops.adopt_shared
    portable = importlib.import_module(f"edgeinfer.convert.lower.{target}.portable")
    both = getattr(portable, "Portable", None)
    elements, tensors = (both, both) if both else (portable.Scalars, portable.Whole)
    assert _methods(Elements) - _methods(elements) == OWN.get(target, set())
    assert _methods(Tensors) - _methods(tensors) == set()
