"""Products with 4-bit weights on an NVIDIA GPU, beside ONNX Runtime's ``MatMulNBits`` and PyTorch.

    python -m benchmarks.gemv_cuda [--rows 4096] [--layers 16] [--rounds 30]

A chain of square layers, each with weights of its own, so that they come from memory and not from a
cache; all in a CUDA graph over arrays on the card, in turns. PyTorch's are its 4-bit product, which
takes bfloat16, and a plain one of float16 weights. The bandwidth counts each weight and
scale once; beside it stands what a copy on the card reaches, bytes read and written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi

from edgeinfer.backends.cuda import Recording, Transfers
from edgeinfer.convert.lower.tvm import cuda_code
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.defs.gemv_cuda import BLOCK, Share, gemv, pack
from edgeinfer.kernels.tuning import workload

SHARES = [
    *(Share(2, 2), Share(4, 1), Share(4, 2), Share(4, 4), Share(8, 2)),
    *(Share(2, 4, 4), Share(4, 2, 2), Share(4, 2, 4), Share(4, 4, 4), Share(8, 2, 4)),
    *(Share(8, 4, 2), Share(8, 4, 4), Share(16, 4, 4)),
]


def _layers(n: int, count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    scale = 1 / np.sqrt(21 * n)
    scales = np.full((n, n // BLOCK), scale, np.float16)
    return [(rng.integers(0, 16, (n, n), np.uint8), scales) for _ in range(count)]


def _ours(n: int, kept: list[list[Any]], first: Any, share: Share) -> Any:
    device = tvm.cuda(0)
    module = tvm.IRModule({workload.NAME: workload.plain(gemv(n, n, share=share))})
    target = machine("sm_90").target()
    with target:
        call = tvm.compile(module, target=target).jit()[workload.NAME]
    arrays = [tvm.runtime.tensor(first, device)]
    arrays += [tvm.runtime.empty((1, n), "float32", device) for _ in kept]

    def work(stream: int) -> None:
        with tvm_ffi.use_raw_stream(device, stream):
            for (w, s), (x, y) in zip(kept, pairwise(arrays), strict=True):
                call(w, s, x, y)

    recording = Recording(work, Transfers(0))

    def run() -> None:
        recording.start()
        recording.wait()

    return run, lambda: arrays[-1].numpy()


def _onnxruntime(n: int, layers: list[tuple[Any, Any]], first: Any) -> Any:
    from edgeinfer.backends.engines import import_onnxruntime

    onnxruntime = import_onnxruntime()
    nodes, tensors = [], []
    for i, (q, s) in enumerate(layers):
        packed = (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(n, n // BLOCK, BLOCK // 2)
        tensors += [
            onnx.numpy_helper.from_array(packed, f"w{i}"),
            onnx.numpy_helper.from_array(s.astype(np.float16).reshape(-1), f"s{i}"),
        ]
        about = {"K": n, "N": n, "bits": 4, "block_size": BLOCK}
        nodes.append(
            onnx.helper.make_node(
                "MatMulNBits",
                [f"x{i}", f"w{i}", f"s{i}"],
                [f"x{i + 1}"],
                domain="com.microsoft",
                **about,
            )
        )
    kind = onnx.TensorProto.FLOAT16
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x0", kind, [1, n])],
        [onnx.helper.make_tensor_value_info(f"x{len(layers)}", kind, [1, n])],
        tensors,
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(model, path)
        session = onnxruntime.InferenceSession(str(path), options, [provider])
    binding = session.io_binding()
    x = onnxruntime.OrtValue.ortvalue_from_numpy(first.astype(np.float16), "cuda", 0)
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type([1, n], np.float16, "cuda", 0)
    binding.bind_ortvalue_input("x0", x)
    binding.bind_ortvalue_output(f"x{len(layers)}", y)
    return lambda: session.run_with_iobinding(binding), y.numpy


def _torch(n: int, layers: list[tuple[Any, Any]], first: Any, *, packed: bool) -> Any:
    import torch

    kind = torch.bfloat16 if packed else torch.float16
    weights = []
    for q, s in layers:
        if not packed:
            weights.append(torch.from_numpy((q.T - 8.0) * float(s[0, 0])).to("cuda", kind))
            continue
        nibbles = torch.from_numpy(q[:, 0::2] << 4 | q[:, 1::2]).cuda()
        scales = torch.zeros((n // BLOCK, n, 2), dtype=kind, device="cuda")
        scales[:, :, 0] = torch.from_numpy(s.T.astype(np.float32)).to("cuda", kind)
        weights.append((torch.ops.aten._convert_weight_to_int4pack(nibbles, 8), scales))
    x = torch.from_numpy(first).to("cuda", kind)

    def work() -> Any:
        y = x
        for w in weights:
            y = torch.ops.aten._weight_int4pack_mm(y, w[0], BLOCK, w[1]) if packed else y @ w
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


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    cuda_code.get_ready("sm_90")
    n, layers = given.rows, _layers(given.rows, given.layers)
    first = np.random.default_rng(1).standard_normal((1, n)).astype(np.float32)
    right = first.astype(np.float64)
    for q, s in layers:
        right = (right @ (q.T - 8.0)) * float(s[0, 0])
    device = tvm.cuda(0)
    kept = [[tvm.runtime.tensor(a, device) for a in (pack(q, 4), s)] for q, s in layers]
    calls: dict[str, Any] = {str(s): _ours(n, kept, first, s) for s in SHARES}
    peers: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: _onnxruntime(n, layers, first),
        "torch, 4 bits": lambda: _torch(n, layers, first, packed=True),
        "torch, float16": lambda: _torch(n, layers, first, packed=False),
    }
    for name, make in peers.items():
        try:
            calls[name] = make()
        except Exception as error:  # whatever it lacks here is told
            print(f"{name}: {type(error).__name__}: {str(error)[-200:]}")
    for name, (call, answer) in calls.items():
        call()
        worst = float(np.abs(answer() - right).max() / np.abs(right).max())
        print(f"{name}: relative error {worst:.2g}")
    times: dict[str, list[float]] = {name: [] for name in calls}
    copies, copy = [], _copy(512)
    for _ in range(given.rounds):
        for name, (call, _) in calls.items():
            times[name].append(_ms(call))
        copies.append(_ms(copy))
    total = sum(q.size // 2 + s.nbytes for q, s in layers)
    best = min((n for n in calls if n.startswith("Share")), key=lambda n: np.median(times[n]))
    print(f"copy on the card: {2 * (512 << 20) / np.median(copies) / 1e9:.3g} TB/s")
    for name, row in times.items():
        low, middle, high = np.quantile(row, (0.25, 0.5, 0.75))
        each = middle / len(layers) * 1e3
        print(
            f"{name}: {each:.3g} us a layer, {total / middle / 1e9:.3g} TB/s, "
            f"quartiles {low:.4g} to {high:.4g} ms, n {len(row)}"
        )
    for name in calls:
        if name in peers:
            ratios = np.array(times[name]) / np.array(times[best])
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            print(f"{name} takes {middle:.3g} times as long as {best}, {low:.3g} to {high:.3g}")


if __name__ == "__main__":
    main()
