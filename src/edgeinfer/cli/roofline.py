"""What this machine's memory and arithmetic give, and where a model's operators lie below it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.errors import NotAvailableError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_READ_BYTES = 128 << 20
_HOT = 12
_PRODUCTS = frozenset(
    {
        *("MatMul", "FusedMatMul", "MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "QLinearMatMul"),
    }
)
_GEMMS = frozenset({"Gemm", "FusedGemm", "QGemm"})
_CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""By the place of their weights among the inputs; the first axis is that of the results."""
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
"""Weights for the input, and for the state, are the second and third."""


@dataclass(frozen=True, slots=True)
class Roof:
    """What was measured.

    Attributes:
        machine: instruction set of the loops that measured it.
        threads: that ran them.
        gb_s: bytes read from memory, in 10⁹ a second.
        gflop_s: multiplications and additions of float32, in 10⁹ a second.
    """

    machine: str
    threads: int
    gb_s: float
    gflop_s: float

    def at(self, intensity: float) -> float:
        """The most operations a second for so many operations a byte, in 10⁹."""
        return min(self.gflop_s, intensity * self.gb_s)


@dataclass(frozen=True, slots=True)
class Placed:
    """An operator below the roof.

    Attributes:
        node: its name.
        op: its type.
        us: median microseconds.
        share: Share of the whole run.
        gflop_s: reached.
        gb_s: reached, counting inputs, weights and outputs once.
        intensity: operations a byte.
        bound: ``memory`` or ``arithmetic``.
        of_roof: part of what the roof allows at this intensity.
    """

    node: str
    op: str
    us: float
    share: float
    gflop_s: float
    gb_s: float
    intensity: float
    bound: str
    of_roof: float


def measure(threads: int) -> Roof:
    """Measure memory and arithmetic with loops compiled for this CPU.

    Raises:
        NotAvailableError: TVM is not installed, or no code is made for this CPU.
    """
    from edgeinfer.backends.engines import import_tvm

    try:
        tvm = import_tvm()
        import tvm_ffi
    except ImportError as error:
        raise NotAvailableError(f"--roofline compiles its loops: {error}; {_INSTALL}") from error
    from edgeinfer.backends.tvm.library import cpu_features
    from edgeinfer.convert.lower.tvm.machines import MACHINES
    from edgeinfer.kernels.defs.emit import KernelCpu
    from edgeinfer.kernels.defs.roofline import STREAMS, multiply_add, read_bytes

    known = cpu_features()
    fit = [m for m in MACHINES.values() if not m.cuda and m.features and known >= {*m.features}]
    if not fit:
        raise NotAvailableError("--roofline: no code is made for this CPU")
    here = max(fit, key=lambda m: (m.lanes, len(m.features)))
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)

    def compiled(kernel: Any) -> Callable[..., object]:
        module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
        function: Callable[..., object] = tvm.compile(module, target=here.target())["kernel"]
        return function

    count = _READ_BYTES // 4
    peak, operations = multiply_add(KernelCpu(here.lanes, here.registers))
    # Pages that were never written are all one page, which would stay in a cache.
    whole, out = np.ones(count, np.float32), np.zeros(64, np.float32)
    few = np.full(16, 0.5, np.float32)
    wrapped = [tvm_ffi.from_dlpack(a) for a in (whole, few, out)]
    loops = [compiled(read_bytes(count, here.lanes, streams)) for streams in STREAMS]
    read_s = min(_fastest(loop, wrapped[0], wrapped[2]) for loop in loops)
    peak_s = _fastest(compiled(peak), wrapped[1], wrapped[2])
    return Roof(here.name, threads, _READ_BYTES / read_s / 1e9, operations / peak_s / 1e9)


_INSTALL = "pip install 'edgeinfer[tvm]'"


def _fastest(call: Callable[..., object], *arguments: Any) -> float:
    times = []
    # Short calls and many of them: what else the machine does falls between some.
    for _ in range(40):
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def place(model: Path, feeds: Mapping[str, Array], roof: Roof, folder: Path) -> list[Placed]:
    """Run a model in ONNX Runtime with its profile on; return the operators that take longest."""
    events = _profile(model, feeds, roof.threads, folder / "times", 12)
    # What it has packed for itself it counts neither among sizes nor among bytes.
    plain = _profile(model, feeds, roof.threads, folder / "sizes", 1, packed=False)
    return placed(events, roof, plain)


def _profile(
    model: Path,
    feeds: Mapping[str, Array],
    threads: int,
    path: Path,
    runs: int,
    *,
    packed: bool = True,
) -> list[dict[str, Any]]:
    from edgeinfer.backends.engines import import_onnxruntime

    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(path)
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "0" if packed else "1")
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, dict(feeds))
    events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return events


def placed(
    events: list[dict[str, Any]], roof: Roof, plain: Sequence[dict[str, Any]] = ()
) -> list[Placed]:
    """Place the operators of a profile; the first runs, which warm up, are left out.

    Args:
        events: Events of the profile.
        roof: that they are placed below.
        plain: a profile that has the sizes of all operands; ``events`` themselves if it is empty.
    """
    nodes = _by_node(events)
    facts = {name: found[-1]["args"] for name, found in (nodes | _by_node(plain)).items()}
    times = {
        name: float(np.median([e["dur"] for e in found[len(found) // 4 :]]))
        for name, found in nodes.items()
    }
    whole = sum(times.values()) or 1.0
    hot = sorted(times, key=lambda n: -times[n])[:_HOT]
    return [_placed(n, facts[n], times[n], whole, roof) for n in hot]


def _by_node(events: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    nodes: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes.setdefault(event["name"].removesuffix("_kernel_time"), []).append(event)
    return nodes


def _placed(name: str, facts: Mapping[str, Any], us: float, whole: float, roof: Roof) -> Placed:
    ins, outs = (_shapes(facts.get(f"{side}_type_shape", [])) for side in ("input", "output"))
    operations = _operations(facts.get("op_name", ""), ins, outs)
    moved = sum(
        float(facts.get(k, 0)) for k in ("activation_size", "parameter_size", "output_size")
    )
    moved = max(moved, 1.0)
    seconds = max(us, 1e-3) * 1e-6
    intensity = operations / moved
    reached = operations / seconds / 1e9
    bound = "memory" if intensity * roof.gb_s < roof.gflop_s else "arithmetic"
    return Placed(
        node=name,
        op=str(facts.get("op_name", "")),
        us=us,
        share=us / whole,
        gflop_s=reached,
        gb_s=moved / seconds / 1e9,
        intensity=intensity,
        bound=bound,
        of_roof=reached / roof.at(intensity),
    )


def _shapes(facts: list[dict[str, list[int]]]) -> list[list[int]]:
    return [shape for item in facts for shape in item.values()]


def _operations(op: str, ins: list[list[int]], outs: list[list[int]]) -> float:
    """Multiplications and additions; one for each element of what is no product."""
    weights = _CONVOLUTIONS.get(op)
    if weights is not None and len(ins) > weights:
        return 2 * prod(outs[0]) * float(prod(ins[weights][1:]))
    if op == "ConvTranspose" and len(ins) > 1:
        return 2 * prod(ins[0]) * float(prod(ins[1][1:]))
    if op in _PRODUCTS and ins and ins[0]:
        return 2 * prod(outs[0]) * float(ins[0][-1])
    if op in _GEMMS and ins and ins[0] and outs and outs[0]:
        # Either operand may be transposed; the rows of the result are those of the first.
        return 2 * prod(outs[0]) * float(prod(ins[0]) // max(1, outs[0][0]))
    if op in _RECURRENT and len(ins) > 2:
        return 2 * float(prod(ins[0][:2])) * (prod(ins[1]) + prod(ins[2]))
    if op == "MultiHeadAttention" and len(ins) > 1 and len(ins[1]) > 2:
        # Queries by keys, and as many for the values.
        return 4 * prod(ins[0]) * float(ins[1][-2])
    return float(sum(prod(s) for s in outs))


def lines(roof: Roof, found: list[Placed]) -> list[str]:
    """Return what is printed."""
    head = (
        f"roof: {roof.gb_s:.1f} GB/s read from memory, {roof.gflop_s:.0f} GFLOP/s "
        f"({roof.machine}, threads: {roof.threads}); they meet at "
        f"{roof.gflop_s / roof.gb_s:.1f} operations a byte"
    )
    return [
        head,
        *(
            f"{p.share:5.1%} {p.us:9.1f} us  {p.gflop_s:7.1f} GFLOP/s  {p.gb_s:6.1f} GB/s  "
            f"{p.intensity:7.2f} op/B  {p.of_roof:4.0%} of the {p.bound} roof  {p.op} {p.node}"
            for p in found
        ),
    ]


def to_data(roof: Roof, found: list[Placed]) -> dict[str, Any]:
    """Return what is saved."""
    return {"roof": asdict(roof), "operators": [asdict(p) for p in found]}
