"""Every operator of the standard has an evaluation in float64, but for those named here."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference.op_run import RuntimeImplementationError
from onnx.reference.ops._op_list import load_op

from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.convert.verify.operators import OPERATORS

LACKING = {"MaxRoiPool", "Multinomial"}
"""The first has ONNX Runtime alone for an oracle, which the report says; the second draws."""

_CONTROL = {"If", "Loop", "Scan"}


def _is_evaluated(schema: onnx.defs.OpSchema) -> bool:
    if schema.has_function or schema.has_context_dependent_function:
        return True
    try:
        load_op("", schema.name, None)
    except RuntimeImplementationError:
        return False
    return True


def test_no_operator_is_forgotten() -> None:
    """``GlobalLpPool`` had one oracle only."""
    found = {
        s.name
        for s in onnx.defs.get_all_schemas()
        if not s.domain and not s.deprecated and s.name not in {*OPERATORS, *_CONTROL}
        if not _is_evaluated(s)
    }
    assert found == LACKING


def test_a_global_norm_is_that_of_all_positions() -> None:
    text = "g (float[1,2,2,2] x) => (float[1,2,1,1] y) { y = GlobalLpPool<p=3>(x) }"
    source = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    x = np.arange(-4, 4, dtype=np.float32).reshape(1, 2, 2, 2)
    found = Evaluator(source, wide=True).run({"x": x})["y"].ravel()
    np.testing.assert_allclose(found, [100 ** (1 / 3), 36 ** (1 / 3)])


def test_powers_that_float64_does_not_hold_have_roots() -> None:
    """A power of 20 of 1e30 is 1e600."""
    text = """g (float[1,1,2,2] x) => (float[1,1,1,1] y, float[1,1,2,1] z) {
        y = GlobalLpPool<p=20>(x) z = LpPool<kernel_shape=[1,2], p=20>(x) }"""
    source = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    x = np.array([[1e30, 1e30], [1e-30, 0]], np.float32).reshape(1, 1, 2, 2)
    found = Evaluator(source, wide=True).run({"x": x})
    size = 2 ** (1 / 20) * float(x[0, 0, 0, 0])
    np.testing.assert_allclose(found["y"].ravel(), [size])
    np.testing.assert_allclose(found["z"].ravel(), [size, x[0, 0, 1, 0]])
