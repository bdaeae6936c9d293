"""Ask ONNX Runtime itself, node by node, what it has a kernel for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import onnx
import onnx_ir as ir

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.convert.lower.single import op_name, single, walk
from edgeinfer.errors import NotAvailableError, Problem, Reason

_KNOWN: dict[tuple[str, bytes], str] = {}
"""What a version said of a node, by the digest of its model: the search for a precision writes
nearly the same graph over and over."""


class OnnxRuntimeProbe:
    """Remembers the answer for each distinct node.

    Raises:
        NotAvailableError: ONNX Runtime is not installed.
    """

    def __init__(self, bf16: AbstractSet[str] | None = None) -> None:
        """Prepare.

        Args:
            bf16: operators that the device's engine computes in bfloat16, empty for all; None asks
                the CPU provider at hand about them too, which has no kernels for it.
        """
        try:
            onnxruntime = import_onnxruntime()
        except ImportError as e:
            raise NotAvailableError(
                "format 'onnx': onnxruntime is needed to check the model; pip install onnxruntime"
            ) from e
        self._ort, self._bf16 = onnxruntime, bf16
        self.version = ".".join(str(onnxruntime.__version__).split(".")[:2])
        # The binding's exceptions have no base class of their own; anything else is a bug of ours.
        state = onnxruntime.capi.onnxruntime_pybind11_state
        kinds = [k for k in vars(state).values() if isinstance(k, type)]
        self._errors: tuple[type[Exception], ...] = (
            RuntimeError,
            # Of a message with a text of the model in it that is no UTF-8.
            UnicodeDecodeError,
            *(k for k in kinds if issubclass(k, Exception)),
        )

    def fault(self, node: ir.Node, model: ir.Model) -> str:
        """Return what ONNX Runtime says against the node; empty when it takes it."""
        if self._bf16 is not None and _in_bf16(node):
            # Moving values and changing their types needs no arithmetic.
            able = not self._bf16 or node.op_type in self._bf16 or node.op_type == "Cast"
            return "" if able and not node.domain else _NOT_THERE
        data = single(node, model)
        if data is None:
            return ""
        key = str(self._ort.__version__), hashlib.blake2b(data, digest_size=16).digest()
        if key not in _KNOWN:
            _KNOWN[key] = self._ask(data)
        return _KNOWN[key]

    def _ask(self, data: bytes) -> str:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except self._errors as e:
            return " ".join(str(e).split())
        return ""


_NOT_THERE = "no kernel for bfloat16 on the device"


def _in_bf16(node: ir.Node) -> bool:
    values = (*node.inputs, *node.outputs)
    return any(v is not None and v.dtype == ir.DataType.BFLOAT16 for v in values)


def problems(model: ir.Model, probe: OnnxRuntimeProbe) -> list[Problem]:
    """List every node that ONNX Runtime has no kernel for."""
    return [p for name, node in walk(model) if (p := _problem(name, node, model, probe))]


def lacking(model: ir.Model, probe: OnnxRuntimeProbe) -> list[ir.Node]:
    """Return the nodes of the default domain without a kernel."""
    return [n for _, n in walk(model) if not n.domain and probe.fault(n, model)]


def lacks_brain(model: ir.Model, probe: OnnxRuntimeProbe) -> bool:
    """Whether a node that reads or makes bfloat16 has no kernel."""
    return any(_in_bf16(n) and not n.domain and probe.fault(n, model) for _, n in walk(model))


def _problem(name: str, node: ir.Node, model: ir.Model, probe: OnnxRuntimeProbe) -> Problem | None:
    fault = probe.fault(node, model)
    if not fault:
        return None
    for pattern, reason, words in _FAULTS:
        if pattern.search(fault):
            return Problem(name, op_name(node), reason(node), words(node, probe), "")
    detail = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |/onnxruntime_src/\S+ ", "", fault)
    return Problem(name, op_name(node), "unsupported_attribute", detail[:200])


def _types(node: ir.Node) -> str:
    return ", ".join(
        "none" if v is None else v.dtype.name.lower() if v.dtype else "?" for v in node.inputs
    )


def _kernel_reason(node: ir.Node) -> Reason:
    usual = {ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, None}
    all_usual = all(v is None or v.dtype in usual for v in node.inputs)
    return "unsupported_op" if all_usual else "unsupported_dtype"


def _known(node: ir.Node) -> str:
    known = node.domain in onnx_domains()
    return "" if known else f"; the domain {node.domain!r} is a custom one"


def onnx_domains() -> frozenset[str]:
    """Return the domains that the standard defines."""
    return frozenset(s.domain for s in onnx.defs.get_all_schemas())


_FAULTS: tuple[
    tuple[re.Pattern[str], Callable[[ir.Node], Reason], Callable[[ir.Node, OnnxRuntimeProbe], str]],
    ...,
] = (
    (
        re.compile(_NOT_THERE),
        lambda n: "unsupported_dtype",
        lambda n, p: f"{_NOT_THERE}: ({_types(n)})",
    ),
    (
        re.compile(r"not a registered|No Op registered|No opset import"),
        lambda n: "unsupported_op",
        lambda n, p: f"ONNX Runtime {p.version} does not know it{_known(n)}",
    ),
    (
        re.compile(r"Could not find an implementation|Failed to find kernel"),
        _kernel_reason,
        lambda n, p: f"ONNX Runtime {p.version} has no CPU kernel for ({_types(n)})",
    ),
    (
        re.compile(r"Type 'tensor\(.*?\)' of input parameter|Type Error"),
        lambda n: "unsupported_dtype",
        lambda n, p: f"ONNX Runtime {p.version} does not take ({_types(n)})",
    ),
)
