"""What Core ML's compute units are known to get wrong, by deployment target, and what is done.

A package runs on every system from its deployment target on, so a fault stays in the table until
the oldest system concerned is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import onnx_ir as ir

from edgeinfer.convert.lower.coreml.deployment import Deployment, deployment
from edgeinfer.convert.lower.coreml.rewrites import deepen, flat_product
from edgeinfer.convert.lower.rules import attribute
from edgeinfer.convert.passes.infra import static_shape
from edgeinfer.errors import Remarks
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a compute unit.

    Attributes:
        id: short name.
        ops: ONNX operators concerned.
        what: the fault.
        source: how it is known.
        remedy: ``fp32`` keeps the operators out of half precision, and so off the Neural Engine;
            ``deepen`` computes with four axes in half precision; ``warn`` tells the user.
        concerns: whether a node is concerned.
        fixed: first generation without the fault; empty while none is known.
    """

    id: str
    ops: frozenset[str]
    what: str
    source: str
    remedy: Literal["fp32", "deepen", "warn"]
    concerns: Callable[[ir.Node], bool] = lambda _: True
    fixed: str = ""

    def is_in(self, oldest: Deployment) -> bool:
        """Whether a package for this deployment target may meet the fault."""
        return not self.fixed or oldest < deployment(self.fixed)


def _is_last(node: ir.Node) -> bool:
    return any(v.is_graph_output() for v in node.outputs)


def _is_grouped(node: ir.Node) -> bool:
    group = attribute(node, "group", 1)
    shape = static_shape(node.inputs[0]) if node.inputs else None
    channels = shape[1] if shape is not None and len(shape) > 1 else 0
    return isinstance(group, int) and 1 < group < channels


def _is_uneven(node: ir.Node) -> bool:
    weight = static_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    strides = attribute(node, "strides", None)
    steps = [int(s) for s in strides] if isinstance(strides, (list, tuple)) else []
    kernel = weight[2:] if weight is not None else ()
    even, odd = any(k % 2 == 0 for k in kernel), any(k % 2 for k in kernel)
    return len(kernel) == 2 and even and odd and max(steps, default=1) > 1


FAULTS = (
    Fault(
        "ane-softplus",
        frozenset({"Softplus", "Mish"}),
        "the Neural Engine's softplus drops to 0 from 10.4 on in half precision",
        "https://github.com/apple/coremltools/issues/2687, /issues/2359",
        "fp32",
    ),
    Fault(
        "ane-log-sum-exp",
        frozenset({"ReduceLogSumExp", "LogSoftmax"}),
        "the Neural Engine's reduce_log_sum_exp overflows in half precision from 7.6 on",
        "https://github.com/apple/coremltools/issues/2690",
        "fp32",
    ),
    Fault(
        "ane-rms-norm",
        frozenset({"RMSNormalization"}),
        "squares overflow in half precision; coremltools' own remedy changes the epsilon",
        "https://github.com/apple/coremltools/issues/2821",
        "fp32",
    ),
    Fault(
        "ane-flat-product-hard-swish",
        frozenset({"HardSwish"}),
        "the Neural Engine is 0.2 off in half precision where HardSwish follows a product of "
        "matrices without further axes, as in MobileNetV3's classifier; not so with four axes",
        "https://github.com/apple/coreai-torch/issues/51, coremltools/issues/2625",
        "deepen",
        lambda node: flat_product(node) is not None,
    ),
    Fault(
        "ane-argmax-last",
        frozenset({"ArgMax", "ArgMin"}),
        "the position of the largest half-precision value at the end of a graph was wrong on the "
        "Neural Engine of an iPhone 17 Pro, of single-precision values it was right",
        "https://github.com/apple/coreai-torch/issues/116 (Core AI)",
        "fp32",
        _is_last,
    ),
    Fault(
        "grouped-conv-activation",
        frozenset({"Conv"}),
        "a grouped convolution with a fused activation was measured 10-15 dB off on macOS 26: "
        "compare on the device",
        "the tests of onnx2coreml 1.1.0, run by its author on macOS 26",
        "warn",
        _is_grouped,
    ),
    Fault(
        "uneven-kernel",
        frozenset({"Conv"}),
        "the last element of a convolution with an odd and an even kernel size and steps was "
        "wrong: compare on the device",
        "https://github.com/apple/coremltools/issues/2515",
        "warn",
        _is_uneven,
    ),
)
"""The table; a new fault is one more entry."""


def kept_single(model: ir.Model, oldest: Deployment) -> frozenset[str]:
    """Names of the nodes that half precision would spoil on some unit."""
    return frozenset(n.name or "" for fault, n in _found(model, oldest) if fault.remedy == "fp32")


def rewrite(model: ir.Model, oldest: Deployment, notes: Remarks) -> None:
    """Rewrite, for half precision, what some unit is known to get wrong as it is."""
    faults = {f.id: f for f, _ in _found(model, oldest) if f.remedy == "deepen"}
    for fault in faults.values():
        notes.add(f"{fault.id}: {deepen(model)} products have four axes: {fault.source}")


def warn(model: ir.Model, oldest: Deployment, notes: Remarks) -> None:
    """Tell of faults that are not worked around."""
    counts: dict[str, tuple[Fault, int]] = {}
    for fault, _ in _found(model, oldest):
        if fault.remedy == "warn":
            counts[fault.id] = (fault, counts.get(fault.id, (fault, 0))[1] + 1)
    for fault, count in counts.values():
        notes.add(f"{fault.id}: {count} nodes: {fault.what} ({fault.source})")


def _found(model: ir.Model, oldest: Deployment) -> Iterator[tuple[Fault, ir.Node]]:
    for node in model.graph:
        for fault in FAULTS:
            known = node.op_type in fault.ops and not node.domain and fault.is_in(oldest)
            if known and fault.concerns(node):
                yield fault, node
