"""Activations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_BOUNDS = {"RELU_0_TO_1": (0, 1), "RELU_N1_TO_1": (-1, 1), "RELU6": (0, 6)}


@READERS.reader("RELU")
def relu(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Relu."""
    return g.emit("Relu", x)


@READERS.reader(*_BOUNDS)
def clip(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Clip to fixed bounds."""
    low, high = _BOUNDS[o.code]
    return g.emit("Clip", x, np.float32(low), np.float32(high))


@READERS.reader("LEAKY_RELU")
def leaky_relu(g: Importer, o: Options, x: Operand) -> ir.Value:
    """LeakyRelu."""
    return g.emit("LeakyRelu", x, alpha=float(o.alpha))


@READERS.reader("PRELU")
def prelu(g: Importer, o: Options, x: Operand, slope: Operand) -> ir.Value:
    """PRelu."""
    return g.emit("PRelu", x, slope)


@READERS.reader("ELU")
def elu(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Elu with a factor of one."""
    return g.emit("Elu", x, alpha=1.0)


@READERS.reader("HARD_SWISH")
def hard_swish(g: Importer, o: Options, x: Operand) -> ir.Value:
    """HardSwish."""
    return g.emit("HardSwish", x)


@READERS.reader("GELU")
def gelu(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Gelu, exact or by tanh."""
    return g.emit("Gelu", x, approximate="tanh" if o.approximate else "none")


@READERS.reader("LOGISTIC")
def logistic(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Sigmoid."""
    return g.emit("Sigmoid", x)


@READERS.reader("TANH")
def tanh(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Tanh."""
    return g.emit("Tanh", x)


@READERS.reader("SOFTMAX")
def softmax(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Softmax over the last axis; ``beta`` is a factor on what goes in."""
    beta = float(o.beta) or 1.0
    scaled = x.real if beta == 1.0 else g.emit("Mul", x, np.float32(beta))
    return g.emit("Softmax", scaled, axis=-1)


@READERS.reader("LOG_SOFTMAX")
def log_softmax(g: Importer, o: Options, x: Operand) -> ir.Value:
    """LogSoftmax over the last axis."""
    return g.emit("LogSoftmax", x, axis=-1)
