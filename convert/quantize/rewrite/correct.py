"""Bias correction: what rounded weights add on average is taken off the bias again.

A rounded weight differs from its float by at most half a step, but not by zero on average over the
few weights of a channel; multiplied with inputs whose mean is not zero, every output of the channel
is shifted. The shift is the weights' error times the inputs' mean, seen in calibration.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant
from edgeinfer.convert.quantize.calibrate.histogram import ChannelStats
from edgeinfer.convert.quantize.rewrite.weights import store
from edgeinfer.convert.quantize.units import Unit, array_of, weights_axis
from edgeinfer.profiles.schema import Quantization
from edgeinfer.types import Array


def corrected_biases(
    units: Iterable[Unit],
    channels: Mapping[str, ChannelStats],
    limits: Quantization,
    rounded: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return new biases by name of the unit; units without a bias are left alone.

    Args:
        units: Units of the float graph.
        channels: means of what weights are multiplied with.
        limits: Limits of the target.
        rounded: weights by name of a unit, where they are not rounded to the nearest.
    """
    rounded = rounded or {}
    found: dict[str, Array] = {}
    for unit in units:
        if unit.kind != "weighted":
            continue
        bias = bias_of(unit)
        stats = channels.get(unit.reads[0].name or "")
        if bias is None or stats is None or stats.count == 0:
            continue
        shift = _shift(unit, stats, limits, rounded.get(unit.name))
        if shift is not None:
            flat = np.broadcast_to(bias.ravel(), shift.shape).astype(np.float64)
            found[unit.name] = (flat - shift).astype(np.float32)
    return found


def bias_of(unit: Unit) -> Array | None:
    """Return the bias of a weighted unit, or None."""
    node = unit.nodes[0]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return array_of(node.inputs[2])
    for user in unit.nodes[1:]:
        if user.op_type == "Add":
            return array_of(next(v for v in user.inputs if constant(v) is not None))
    return None


def _shift(
    unit: Unit, stats: ChannelStats, limits: Quantization, rounded: Array | None
) -> Array | None:
    node = unit.nodes[0]
    weights = array_of(node.inputs[1])
    axis = weights_axis(node)
    if not np.isfinite(weights).all():
        return None
    meant = weights if rounded is None else rounded
    error = store(meant, axis if unit.op in limits.per_channel else None).floats() - weights
    if unit.op == "Conv":
        return _conv(error, stats.mean, node)
    if unit.op == "ConvTranspose" or error.ndim != 2:
        return None
    if axis == 0:
        error = error.T
    if error.shape[0] != stats.mean.size:
        return None
    return np.asarray(stats.mean @ error)


def _conv(error: Array, mean: Array, node: ir.Node) -> Array | None:
    """Return the mean shift of each output channel; borders count as if there were none."""
    attr = node.attributes.get("group")
    groups = 1 if attr is None else attr.as_int()
    outputs, inputs = error.shape[:2]
    if inputs * groups != mean.size or outputs % groups:
        return None
    summed = error.reshape(groups, outputs // groups, inputs, -1).sum(axis=3, dtype=np.float64)
    return np.asarray(np.einsum("goi,gi->go", summed, mean.reshape(groups, inputs)).ravel())
