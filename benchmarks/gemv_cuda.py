"""Products with 4-bit weights on an NVIDIA GPU, next to ONNX Runtime's ``MatMulNBits`` and PyTorch.

    python -m benchmarks.gemv_cuda [--rows 4096 --columns 4096] [--layers 16] [--rounds 30]

A chain of layers, each with weights of its own, so that they come from memory and not from a
cache; where rows and columns differ, every second layer is the other way round, as in a language
model. All in a CUDA graph over arrays on the card, in turns. ONNX Runtime's run with activations in
float16 and in float32, as ours are; PyTorch's are its 4-bit product, which takes bfloat16, and a
plain one of float16 weights. The bandwidth counts each weight and scale once; next to it stands
what a copy on the card reaches, bytes read and written.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi

from edgeinfer.convert.lower.tvm import cuda_code
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.defs import ahead
from edgeinfer.kernels.defs.gemv_cuda import Share, fitted, gemv, pack, share_for
from edgeinfer.kernels.tuning import workload
from edgeinfer.machine.cuda import Recording, Transfers

_AHEAD = [
    *(Share(4, 4, 2), Share(4, 4, 4), Share(4, 4, 4, blocks=2), Share(4, 4, 8)),
    *(Share(8, 4, 1), Share(8, 4, 2), Share(8, 4, 2, blocks=4), Share(8, 4, 4)),
    *(Share(8, 4, 4, blocks=2), Share(16, 4, 1), Share(16, 4, 2), Share(2, 4, 4)),
    *(Share(4, 4, 2, False), Share(4, 4, 4, False), Share(8, 4, 1, False)),
    *(Share(8, 4, 2, False), Share(8, 4, 4, False, blocks=2), Share(16, 4, 2, False)),
]
_AFTER = [
    *(Share(4, 4, 2, ahead=False), Share(4, 4, 4, ahead=False), Share(8, 4, 1, ahead=False)),
    *(Share(8, 4, 2, ahead=False), Share(8, 4, 4, ahead=False), Share(16, 4, 2, ahead=False)),
    *(Share(4, 4, 2, False, False), Share(4, 4, 4, False, False), Share(8, 4, 2, False, False)),
]
SHARES = [*_AHEAD, *_AFTER]
_DEFAULT = "ours, as a model has it"


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of 0 to 15 and their scales, (rows, columns) and (rows, blocks)."""

    q: Any
    scales: Any

    @property
    def block(self) -> int:
        """Weights that share a scale."""
        return int(self.q.shape[1] // self.scales.shape[1])

    def matrix(self) -> Any:
        """What the weights stand for, in float32."""
        scales = np.repeat(self.scales.astype(np.float32), self.block, axis=1)
        return (self.q - np.float32(8)) * scales

    def times(self, x: Any) -> Any:
        """The product, in float64."""
        whole = self.q.reshape(len(self.q), -1, self.block) - 8.0
        parts = np.einsum("nbk,bk->nb", whole, x.reshape(-1, self.block))
        return (parts * self.scales.astype(np.float64)).sum(axis=1)[np.newaxis]


def _layers(rows: int, columns: int, count: int, block: int) -> list[Layer]:
    rng = np.random.default_rng(0)
    found = []
    for i in range(count):
        n, k = (rows, columns) if i % 2 == 0 else (columns, rows)
        # No -8, so that weights have no mean, which would grow in the chain beyond float16.
        q = rng.integers(1, 16, (n, k), np.uint8)
        usual = 1 / np.sqrt(56 / 3 * k)
        scales = (usual * rng.uniform(0.8, 1.2, (n, k // block))).astype(np.float16)
        found.append(Layer(q, scales))
    return found


def _made(path: str, sizes: tuple[int, int, int], cut: tuple[Any, ...]) -> str:
    """Write one kernel's library, in a process of its own."""
    cuda_code.get_ready("sm_90")
    n, k, block = sizes
    kernel = gemv(n, k, block=block, share=Share(*cut))
    target = machine("sm_90").target()
    with target:
        module = tvm.IRModule({workload.NAME: workload.plain(kernel)})
        tvm.compile(module, target=target, tir_pipeline=ahead.PIPELINE).export_library(path)
    return path


class _Kernels:
    """Libraries of kernels, several made at a time."""

    def __init__(self, folder: str, jobs: int) -> None:
        self._folder, self._made = Path(folder), dict[Any, Future[str]]()
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn"))

    def order(self, layer: Layer, share: Share | None) -> tuple[Any, ...]:
        n, k = layer.q.shape
        cut = share_for(n, k) if share is None else fitted(k, like=share)
        key = (n, k, layer.block, *astuple(cut))
        if key not in self._made:
            path = str(self._folder / f"{len(self._made)}.so")
            self._made[key] = self._pool.submit(_made, path, key[:3], key[3:])
        return key

    def get(self, layer: Layer, share: Share | None) -> Any:
        path = self._made[self.order(layer, share)].result()
        return tvm.runtime.load_module(path)[workload.NAME]


def _ours(
    kernels: _Kernels, layers: Sequence[Layer], kept: Any, first: Any, share: Share | None
) -> Any:
    device = tvm.cuda(0)
    calls = [kernels.get(layer, share) for layer in layers]
    arrays = [tvm.runtime.tensor(first, device)]
    arrays += [tvm.runtime.empty((1, len(layer.q)), "float32", device) for layer in layers]

    def work(stream: int) -> None:
        with tvm_ffi.use_raw_stream(device, stream):
            for call, (w, s), (x, y) in zip(calls, kept, pairwise(arrays), strict=True):
                call(w, s, x, y)

    recording = Recording(work, Transfers(0))

    def run() -> None:
        recording.start()
        recording.wait()

    return run, lambda: arrays[-1].numpy()


def _model(layers: Sequence[Layer], kind: Any) -> Any:
    nodes, tensors = [], []
    for i, layer in enumerate(layers):
        n, k = layer.q.shape
        packed = (layer.q[:, 0::2] | (layer.q[:, 1::2] << 4)).reshape(n, -1, layer.block // 2)
        scales = layer.scales.reshape(-1).astype(kind)
        tensors += [
            onnx.numpy_helper.from_array(packed, f"w{i}"),
            onnx.numpy_helper.from_array(scales, f"s{i}"),
        ]
        about = {"K": k, "N": n, "bits": 4, "block_size": layer.block, "accuracy_level": 0}
        names = [f"x{i}", f"w{i}", f"s{i}"], [f"x{i + 1}"]
        nodes.append(onnx.helper.make_node("MatMulNBits", *names, domain="com.microsoft", **about))
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    info = onnx.helper.make_tensor_value_info
    ends = [
        info("x0", code, [1, layers[0].q.shape[1]]),
        info(f"x{len(layers)}", code, [1, len(layers[-1].q)]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _onnxruntime(layers: Sequence[Layer], first: Any, kind: Any, *, mixed: bool = False) -> Any:
    from edgeinfer.backends.engines import import_onnxruntime

    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if mixed:
        # Its products of float16 and integers that are distinguished from the usual ones.
        options.add_session_config_entry("ep.cuda.fpa_intb_gemm", "1")
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(_model(layers, kind), path)
        session = onnxruntime.InferenceSession(str(path), options, [provider])
    binding = session.io_binding()
    x = onnxruntime.OrtValue.ortvalue_from_numpy(first.astype(kind), "cuda", 0)
    shape = [1, len(layers[-1].q)]
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, kind, "cuda", 0)
    binding.bind_ortvalue_input("x0", x)
    binding.bind_ortvalue_output(f"x{len(layers)}", y)
    return lambda: session.run_with_iobinding(binding), y.numpy


def _torch(layers: Sequence[Layer], first: Any, *, packed: bool) -> Any:
    import torch

    kind = torch.bfloat16 if packed else torch.float16
    weights: list[Any] = []
    for layer in layers:
        if not packed:
            weights.append(torch.from_numpy(layer.matrix()).to("cuda", kind).T.contiguous())
            continue
        nibbles = torch.from_numpy(layer.q[:, 0::2] << 4 | layer.q[:, 1::2]).cuda()
        scales = torch.zeros((*layer.scales.T.shape, 2), dtype=kind, device="cuda")
        scales[:, :, 0] = torch.from_numpy(layer.scales.T.astype(np.float32)).to("cuda", kind)
        tiles = torch.ops.aten._convert_weight_to_int4pack(nibbles, 8)
        weights.append((tiles, layer.block, scales))
    x = torch.from_numpy(first).to("cuda", kind)

    def work() -> Any:
        y = x
        for w in weights:
            y = torch.ops.aten._weight_int4pack_mm(y, *w) if packed else y @ w
        return y

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = work()

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    # A graph keeps no weights.
    run.__dict__["kept"] = weights
    return run, lambda: y.float().cpu().numpy()


def _copy(megabytes: int) -> Any:
    """A copy on the card, for its bandwidth."""
    device = tvm.cuda(0)
    one, other = (tvm.runtime.empty((megabytes << 18,), "float32", device) for _ in range(2))

    def run() -> None:
        one.copyto(other)
        device.sync()

    return run


def _ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(5):
        call()
    return (time.perf_counter() - start) / 5 * 1e3


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--block", type=int, default=32, help="weights that share a scale")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="regular expression for ways to cut the work")
    parser.add_argument("--jobs", type=int, default=4, help="kernels compiled at once")
    return parser.parse_args()


def _calls(given: argparse.Namespace, kernels: _Kernels, layers: list[Layer], first: Any) -> Any:
    """Everything that is measured, by name: how to run it, how to get its answer."""
    device = tvm.cuda(0)
    kept = [
        [tvm.runtime.tensor(a, device) for a in (pack(layer.q, 4), layer.scales)]
        for layer in layers
    ]
    shares: dict[str, Share | None] = {str(s): s for s in SHARES if re.search(given.only, str(s))}
    shares[_DEFAULT] = None
    for share in shares.values():
        for layer in layers:
            kernels.order(layer, share)
    make: dict[str, Callable[[], Any]] = {
        "onnxruntime, float16": lambda: _onnxruntime(layers, first, np.float16),
        "onnxruntime, float32": lambda: _onnxruntime(layers, first, np.float32),
        "onnxruntime, mixed": lambda: _onnxruntime(layers, first, np.float16, mixed=True),
        "torch, 4 bits": lambda: _torch(layers, first, packed=True),
        "torch, float16": lambda: _torch(layers, first, packed=False),
    }
    make |= {n: partial(_ours, kernels, layers, kept, first, s) for n, s in shares.items()}
    calls = {}
    right = first.astype(np.float64)
    for layer in layers:
        right = layer.times(right)
    for name, one in make.items():
        try:
            call, answer = one()
            call()
            worst = float(np.abs(answer() - right).max() / np.abs(right).max())
        except Exception as error:  # whatever it lacks here is told
            print(f"{name}: {type(error).__name__}: {str(error)[-200:]}", flush=True)
            continue
        calls[name] = call
        print(f"{name}: relative error {worst:.2g}", flush=True)
    return calls


def _measure(calls: dict[str, Any], rounds: int, layers: list[Layer]) -> None:
    times: dict[str, list[float]] = {name: [] for name in calls}
    copies, copy = [], _copy(512)
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_ms(call))
        copies.append(_ms(copy))
    total = sum(layer.q.size // 2 + layer.scales.nbytes for layer in layers)
    print(f"copy on the card: {2 * (512 << 20) / np.median(copies) / 1e9:.3g} TB/s")
    for name, row in sorted(times.items(), key=lambda item: float(np.median(item[1]))):
        low, middle, high = np.quantile(row, (0.25, 0.5, 0.75))
        each = middle / len(layers) * 1e3
        print(
            f"{name}: {each:.3g} us a layer, {total / middle / 1e9:.3g} TB/s, "
            f"quartiles {low:.4g} to {high:.4g} ms, n {len(row)}"
        )
    ours = [name for name in calls if name.startswith("Share") or name == _DEFAULT]
    best = min(ours, key=lambda n: np.median(times[n]))
    for name in [best, *(n for n in calls if n not in ours)]:
        ratios = np.array(times[name]) / np.array(times[_DEFAULT])
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        print(f"{name} takes {middle:.3g} times as long as {_DEFAULT}, {low:.3g} to {high:.3g}")


def main() -> None:
    """Measure."""
    given = _parsed()
    cuda_code.get_ready("sm_90")
    layers = _layers(given.rows, given.columns, given.layers, given.block)
    first = np.random.default_rng(1).standard_normal((1, given.columns)).astype(np.float32)
    with TemporaryDirectory() as folder:
        calls = _calls(given, _Kernels(folder, given.jobs), layers, first)
        _measure(calls, given.rounds, layers)


if __name__ == "__main__":
    main()
