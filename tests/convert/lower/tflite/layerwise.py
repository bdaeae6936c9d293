"""Each stretch between two roundings by itself, on the very integers that the model has there.

Deep nets of integers differ from ONNX Runtime by more than one step at the end: a value that lies
between two steps is rounded the one way or the other, and the layers behind go on from there.
Whether that is all, is seen where every layer is given equal integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes import input_specs, normalise
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.media.samples import open_data
from edgeinfer.profiles import load
from tests.convert.lower.tflite.run import Array, Feeds, expected, lower, outputs


def quantized(model: ir.Model, samples: Sequence[Feeds]) -> ir.Model:
    """The model in integers, calibrated with samples whatever they are."""
    normal = normalise(model).model
    quantizer = Quantizer(normal, recipe("static_wi8_ai8"), Settings(force=True))
    limits, inputs = limits_of(load("rpi5"), "tflite"), input_specs(normal)
    quantizer.calibrate(open_data(list(samples), inputs), [limits], inputs)
    return quantizer.write(limits).model


def roundings(model: ir.Model) -> list[ir.Node]:
    """What makes integers of computed values, and is no output."""
    found = [n for n in model.graph if n.op_type == "QuantizeLinear"]
    return [n for n in found if n.inputs[0] is not None and n.inputs[0].const_value is None]


def apart(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """Cut behind every rounding: what it gives is an output, what was read of it an input."""
    cut = model.clone()
    names = []
    for node in roundings(cut):
        value = node.outputs[0]
        name = value.name or ""
        given = ir.Value(name=f"{name}_given", type=value.type, shape=value.shape)
        value.replace_all_uses_with(given)
        cut.graph.inputs.append(given)
        cut.graph.outputs.append(value)
        names.append(name)
    return cut, names


def worst_steps(model: ir.Model, feeds: Feeds, *, xnnpack: bool = True) -> dict[str, int]:
    """By which number of steps LiteRT and ONNX Runtime differ at most behind each layer."""
    whole = model.clone()
    for node in roundings(whole):
        whole.graph.outputs.append(node.outputs[0])
    values = expected(whole, feeds)
    layers, names = apart(model)
    given = {**feeds, **{f"{n}_given": values[n] for n in names}}
    want, got = expected(layers, given), outputs(lower(layers), given, xnnpack=xnnpack)
    return {n: _steps(got[n], want[n]) for n in names}


def _steps(got: Array, want: Array) -> int:
    return int(np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0))
