"""OneHot of the element types that ONNX Runtime has no kernel for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import given

_D = ir.DataType
_KERNELS = {
    (_D.INT64, _D.INT64, _D.INT64),
    (_D.INT64, _D.INT64, _D.FLOAT),
    (_D.INT64, _D.INT32, _D.FLOAT),
    (_D.INT64, _D.FLOAT, _D.FLOAT),
    (_D.INT64, _D.FLOAT, _D.INT32),
    (_D.INT32, _D.INT32, _D.FLOAT),
    (_D.INT32, _D.FLOAT, _D.FLOAT),
    (_D.FLOAT, _D.INT64, _D.INT64),
    (_D.FLOAT, _D.FLOAT, _D.FLOAT),
}
"""Types of indices, depth and values."""

_FLOATS = {_D.FLOAT, _D.FLOAT16, _D.BFLOAT16}


def without_kernel(node: ir.Node) -> str:
    """Tell which types lack a kernel."""
    types = [None if (v := given(node, i)) is None else v.dtype for i in range(3)]
    if None in types or _D.STRING in types or tuple(types) in _KERNELS:
        return ""
    return "no kernel for its types"


def by_cast(model: ir.Model, node: ir.Node) -> bool:
    """Choose by integers, and give the values in a type that has a kernel.

    Given::

        y = OneHot(int32 i, depth, bool v)

    Result::

        y = Cast<bool>(OneHot(Cast<int64>(i), Cast<int64>(depth), Cast<int64>(v)))
    """
    indices, depth, values = (given(node, i) for i in range(3))
    if indices is None or depth is None or values is None or values.dtype is None:
        return False
    build, options = builder(model, node), {n: a.value for n, a in node.attributes.items()}
    where = [build.op("Cast", v, to=_D.INT64.value) for v in (indices, depth)]
    if values.dtype == _D.DOUBLE:
        hot = build.op("OneHot", *where, build.const(np.array([0, 1]), "hot"), **options)
        off, on = (build.op("Gather", values, build.const(np.array(i), "place")) for i in (0, 1))
        build.op("Where", build.op("Cast", hot, to=_D.BOOL.value), on, off)
    else:
        held = _D.FLOAT if values.dtype in _FLOATS else _D.INT64
        given_values = build.op("Cast", values, to=held.value)
        hot = build.op("OneHot", *where, given_values, **options)
        build.op("Cast", hot, to=values.dtype.value)
    build.commit(model.graph, node)
    return True
