"""What tests themselves run in ONNX Runtime is written as a version that the installed one takes.

ONNX Runtime 1.23, the oldest that is allowed, ends at version 23 of the operators, and passes raise
models to 24. The product asks before (``takes``, ``choose``); what it calls is left alone.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

NEW_ENOUGH = (1, 24)
NEWEST_OPSET = 23


def let_tests_run_newer_models() -> None:
    """Wrap ``onnxruntime.InferenceSession`` for callers in tests, where it is needed."""
    try:
        found = version("onnxruntime")
    except PackageNotFoundError:
        return
    if tuple(map(int, found.split(".")[:2])) >= NEW_ENOUGH:
        return
    import onnxruntime

    session = onnxruntime.InferenceSession

    class Session(session):  # type: ignore[misc,valid-type]
        def __init__(self, model: Any, *args: Any, **more: Any) -> None:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if isinstance(model, bytes) and str(caller).partition(".")[0] in ("tests", "test"):
                model = _older(model)
            super().__init__(model, *args, **more)

    onnxruntime.InferenceSession = Session


def _older(raw: bytes) -> bytes:
    import onnx
    import onnx_ir as ir

    from edgeinfer.convert.lower.expand import expand
    from edgeinfer.convert.lower.onnxruntime.opset import choose, write_as
    from edgeinfer.convert.lower.onnxruntime.probe import OnnxRuntimeProbe, lacking

    model = ir.from_proto(onnx.load_from_string(raw))
    if choose(model) > NEWEST_OPSET:
        expand(model, lacking(model, OnnxRuntimeProbe()))
    write_as(model, choose(model))
    return bytes(ir.to_proto(model).SerializeToString())
