"""Put products with activations that are measured in each run back together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    constant,
    input_at,
    is_op,
    outcome,
)
from edgeinfer.convert.passes.rewrite import ReplacementBuilder, sweep


class JoinDynamic(ir.passes.InPlacePass):
    """Write a dynamically quantized product as one of floats with stored weights.

    For targets whose kernels measure the activations themselves; each does so in its own way, so
    that this is no identity: only a graph that was made for such kernels may be rewritten.

    Given::

        q, s, z = DynamicQuantizeLinear(x)
        y = Mul(Cast(MatMulInteger(q, w, z, 0)), Mul(s, w_scale))

    Result::

        y = MatMul(x, DequantizeLinear<axis=1>(w, w_scale))
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Join every product of this form."""
        namer, count = Namer(model), 0
        for node in list(all_nodes(model)):
            if not is_op(node, "Mul") or node.graph is None:
                continue
            for floats, factor in _orders(node):
                found = _product(floats, factor)
                if found is None:
                    continue
                x, weights, scale = found
                out = node.outputs[0]
                build = ReplacementBuilder(namer, out.name or "product")
                wide = build.op("DequantizeLinear", weights, scale, axis=1)
                wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), weights.shape
                made = build.op("MatMul", x, wide)
                made.type, made.shape = out.type, out.shape
                build.commit(model.graph, node)
                sweep([p for v in (floats, factor) if (p := v.producer()) is not None])
                count += 1
                break
        return outcome(model, count)


def _orders(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    a, b = input_at(node, 0), input_at(node, 1)
    if a is not None and b is not None:
        yield a, b
        yield b, a


def _product(floats: ir.Value, factor: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The activations, the weights (K, N) and their scales."""
    cast, scales = floats.producer(), factor.producer()
    integer = None if cast is None else _producer(input_at(cast, 0))
    if cast is None or scales is None or integer is None:
        return None
    if not (is_op(cast, "Cast") and is_op(scales, "Mul") and is_op(integer, "MatMulInteger")):
        return None
    steps, weights, zero, weights_zero = (input_at(integer, i) for i in range(4))
    measured = _producer(steps)
    if measured is None or not is_op(measured, "DynamicQuantizeLinear") or weights is None:
        return None
    if steps is not measured.outputs[0] or zero is not measured.outputs[2]:
        return None
    scale = next((b for a, b in _orders(scales) if a is measured.outputs[1]), None)
    stored, shift = constant(weights), constant(weights_zero)
    if scale is None or constant(scale) is None or stored is None or len(stored.shape) != 2:
        return None
    if weights_zero is not None and (shift is None or np.any(shift.numpy())):
        return None
    x = input_at(measured, 0)
    return None if x is None else (x, weights, scale)


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
